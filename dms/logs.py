"""Where DMS's logs stand. It imports nothing, so that who reads a data folder needs no store for it."""

NAMESPACE = "dms"
TABLES_NAMESPACE = "dms-tables"
"""Apart from the queues, whose names are the users'."""
QUEUES = "queues"

"""Where LogMQ's logs stand. It imports nothing, so that who reads a data folder needs no store for it."""

NAMESPACE = "logmq"
TABLES_NAMESPACE = "logmq-tables"
"""Apart from the topics, whose names are the users'."""
GROUPS, WRITERS = "groups", "writers"

"""Where DMP's logs stand. It imports nothing, so that who reads a data folder needs no store for it."""

BODIES = "dmp-bodies"
QUEUES = "dmp-queues"
TABLES = "dmp-tables"

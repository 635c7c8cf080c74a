"""DMS: work queues; a message leaves its queue when a consumer acknowledges it."""

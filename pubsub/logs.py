"""Where pub/sub's logs stand. It imports nothing, so that who reads a data folder needs no store for it."""

NAMESPACE = "pubsub"
SESSIONS, KEPT = "sessions", "kept"

"""The host: one process, one trio nursery, every protocol that is installed."""

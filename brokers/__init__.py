"""The host: one process and one trio nursery for all installed protocols."""

"""LogMQ: a disk-backed, offset-addressed log over a plain-text protocol (PROTOCOL.md)."""

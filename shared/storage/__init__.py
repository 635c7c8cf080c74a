"""The storage core: logs by byte offset, one journal for all of them (STORAGE.md)."""

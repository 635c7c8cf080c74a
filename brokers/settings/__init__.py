"""Settings: read from flags, the environment and a file; checked, explained and reloaded."""

"""Tools for a data folder that no broker is using (and for backups of one that a broker is)."""

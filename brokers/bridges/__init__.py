"""Bridges: messages that came in by one protocol go out by another. See README.md in this folder."""

"""Bridges carry messages from one protocol to another. See README.md in this folder."""

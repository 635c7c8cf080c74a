"""What every protocol stands on: storage, networking, and the contract with the host (ARCHITECTURE.md)."""

PROJECT = "brokers"
"""Protocols look for it: `shared` is a name that other projects use too."""

"""What every protocol stands on: storage, networking, and the contract with the host (ARCHITECTURE.md)."""

PROJECT = "brokers"
"""Protocols check for this name, because other projects have a package `shared`, too."""

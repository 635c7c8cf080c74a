"""What every protocol stands on: storage, networking, and the contract with the host (ARCHITECTURE.md)."""

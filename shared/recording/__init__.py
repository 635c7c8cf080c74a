"""Recording what passes through protocols that keep nothing themselves; RECORDING.md has the bytes."""

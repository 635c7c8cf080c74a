"""Recording the messages of protocols that store none themselves; RECORDING.md describes the bytes."""

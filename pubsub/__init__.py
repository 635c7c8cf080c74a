"""Topics with levels and wildcards: UDP publishers, TCP subscribers (PROTOCOL.md)."""

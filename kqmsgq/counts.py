"""What a KqueueMsgQ counts: plain ints, no call per message."""

import attrs


@attrs.define(eq=False)
class Counts:
    """Plain ints, read when metrics are scraped."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_delivered: int = 0
    messages_unrouted: int = 0
    """Nobody was subscribed to their queue."""
    messages_dropped: int = 0
    """Of slow consumers, all together."""
    bytes_dropped: int = 0
    consumers_dropped_from: int = 0
    """Consumers that have lost at least one message."""
    producers: int = 0
    consumers: int = 0
    faults: dict[str, int] = attrs.field(factory=dict)
    """Connections closed for breaking the protocol, by how."""

    def fault(self, reason: str) -> None:
        self.faults[reason] = self.faults.get(reason, 0) + 1

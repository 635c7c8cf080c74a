"""What pub/sub counts: plain ints, no call per message."""

import attrs


@attrs.define(eq=False)
class Counts:
    """Plain ints, read when metrics are scraped."""

    messages_in: int = 0
    """Datagrams that were messages."""
    messages_delivered: int = 0
    """Frames handed to subscribers, each to each."""
    messages_unmatched: int = 0
    """Nobody was subscribed, nor away with a subscription that keeps."""
    messages_kept: int = 0
    """For clients that were away, each for each."""
    kept_dropped: int = 0
    """Of those, dropped for newer ones, or for lack of memory."""
    kept_lost: int = 0
    """Of those, lost to damage, as far as the log's index tells."""
    frames_dropped: int = 0
    """Of slow subscribers."""
    subscribers_dropped_from: int = 0
    """Connections that have lost at least one frame."""
    unpersisted: int = 0
    """Changes of subscriptions that the store did not take."""
    connected: int = 0
    datagrams_bad: dict[str, int] = attrs.field(factory=dict)
    """Datagrams that were no messages, by why."""
    faults: dict[str, int] = attrs.field(factory=dict)
    """Connections closed for breaking the protocol, by how."""

    def bad(self, reason: str) -> None:
        self.datagrams_bad[reason] = self.datagrams_bad.get(reason, 0) + 1

    def fault(self, reason: str) -> None:
        self.faults[reason] = self.faults.get(reason, 0) + 1

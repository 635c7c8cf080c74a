"""What a DMS counts: plain ints, no call per message."""

import attrs

from dms.wire import Status


@attrs.define(eq=False)
class Counts:
    """Plain ints, read when metrics are scraped."""

    produced: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    returned: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    """Dead, with no queue to go to."""
    held_back: int = 0
    """Times that the first of a queue's dead was tried in vain: no queue, no room, or no disk for it."""
    purged: int = 0
    imported: int = 0
    timeouts: int = 0
    clients_refused: int = 0
    too_late: int = 0
    unkept: int = 0
    """Changes answered although the disk has failed (best-effort)."""
    damaged_ranges: int = 0
    """Of queues' logs: messages there are lost."""
    snapshots: int = 0
    fetches: int = 0
    refusals: dict[int, int] = attrs.field(factory=dict)

    def refused(self, status: Status | int, count: int = 1) -> None:
        self.refusals[int(status)] = self.refusals.get(int(status), 0) + count

"""What a LogMQ counts: plain ints, no call per message."""

import attrs

from logmq.wire import Refusal


@attrs.define(eq=False)
class Counts:
    """Plain ints, read when metrics are scraped."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_consumed: int = 0
    bytes_fetched: int = 0
    bytes_tailed: int = 0
    batches_repeated: int = 0
    too_late: int = 0
    http: int = 0
    """Connections closed because they brought HTTP."""
    tls: int = 0
    """Connections closed because they brought TLS to a port without."""
    refusals: dict[str, int] = attrs.field(factory=dict)
    tails: int = 0
    tails_fallen_behind: int = 0
    fetches_waiting: int = 0

    def refused(self, refusal: Refusal, count: int = 1) -> None:
        self.refusals[refusal.code] = self.refusals.get(refusal.code, 0) + count

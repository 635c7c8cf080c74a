"""What is counted: plain ints, no call per message."""

import attrs


@attrs.define(eq=False)
class Counts:
    """Plain ints, read when metrics are scraped; all connections together."""

    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    got: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    rejected: int = 0
    requeued: int = 0
    confirmed: int = 0
    refused_publishes: int = 0
    returned: int = 0
    unroutable: int = 0
    expired: int = 0
    overflowed: int = 0
    dropped_full: int = 0
    too_large_for_feeds: int = 0
    dead_lettered: int = 0
    dead_letters_lost: int = 0
    recovered: int = 0
    memory_waits: int = 0
    warned: int = 0
    logins_refused: int = 0
    heartbeats_missed: int = 0
    too_late: int = 0
    crashes: int = 0
    returns_lost: int = 0
    leases_given: int = 0
    leases_refused: int = 0
    leases_lapsed: int = 0
    sunk: int = 0
    sinks: int = 0
    feeds: int = 0
    connections: int = 0
    channels: int = 0
    consumers: int = 0
    refusals: dict[str, int] = attrs.field(factory=dict)

    def refused(self, code: str) -> None:
        self.refusals[code] = self.refusals.get(code, 0) + 1

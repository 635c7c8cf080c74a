"""What was asked of DMP's durable queues, over AMQP 0-9-1, and what it confirmed and delivered.

A message is known by its first word, which is never the same twice, and by the digest of its body. One that
is published to several queues has a copy in each.

Nothing is answered to an acknowledgement. It counts as confirmed here with the next publish on its channel
that is: by then the server has read it, and what it has read before is on disk with that publish, or before.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b

import attrs

QUEUES = ("orders", "mails", "audit", "marks")
FANOUT = ("orders", "audit")
"""The queues that one publish may go to together."""
EXCHANGE = "both"


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).digest()


def key_of(body: bytes) -> bytes:
    return body.partition(b" ")[0]


@attrs.define(eq=False)
class Copy:
    """A message in one queue."""

    key: bytes
    digest: bytes
    writer: str
    place: int
    """In the order in which its writer sent."""
    sent: float
    confirmed: float | None = None
    """When that was read; 0: a verification has found it."""
    shown: float | None = None
    """When a consumer first got it."""
    held: bool = False
    """Delivered, on a connection that lives, and neither acknowledged nor given back."""
    acked: bool = False
    """An acknowledgement was sent."""
    ack_confirmed: float = math.inf
    others: list["Copy"] = attrs.field(factory=list, repr=False)
    """Those of the same publish in other queues."""

    def promised(self, until: float) -> bool:
        """Confirmed by then, or shown to a consumer, who is shown nothing that a crash could take back."""
        return any(when is not None and when <= until for when in (self.confirmed, self.shown))


@attrs.define(eq=False)
class QueueBook:
    """`settled`: what the last verification found, in order; `gone`: what was there, and is not any more."""

    name: str
    made: float | None = None
    """When its declaration was answered; None: it is not there."""
    copies: dict[bytes, Copy] = attrs.field(factory=dict)
    settled: list[Copy] = attrs.field(factory=list)
    gone: set[bytes] = attrs.field(factory=set)


@attrs.define(eq=False)
class DmpBook:
    """All queues of one broker, which has one `mode` for all of them."""

    mode: str = "always"
    queues: dict[str, QueueBook] = attrs.field(factory=lambda: {name: QueueBook(name) for name in QUEUES})
    places: int = 0

    def send(self, body: bytes, queues: Iterable[str], writer: str, now: float) -> list[Copy]:
        """A publish to these queues."""
        self.places += 1
        copies = [Copy(key_of(body), digest(body), writer, self.places, now) for _ in queues]
        for name, copy in zip(queues, copies, strict=True):
            copy.others = [other for other in copies if other is not copy]
            self.queues[name].copies[copy.key] = copy
        return copies

    def promised(self, until: float) -> int:
        """Confirmed by then, since the last verification, and not acknowledged."""
        return sum(
            bool(copy.confirmed) and copy.promised(until) and not copy.acked
            for queue in self.queues.values()
            for copy in queue.copies.values()
        )

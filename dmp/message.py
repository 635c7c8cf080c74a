"""A message: a head, which messages of one kind share, and a body.

A producer usually sends many messages that differ in nothing but their bodies. What they have in common is
one `Head` object, made once and found again by the bytes it was made of, and everything that is derived from
it (frames, a record's beginning) is made once too. So a message costs a slice of the receive buffer, and a
`Message` only where it has to wait somewhere.
"""

import math
import struct
from typing import Any

from dmp.properties import NO_PROPERTIES, Noted, headers_of, note_untrusted

MESSAGE_BYTES = 200
"""A waiting message's own cost beside its body: the object, its number, its places in a deque and a dict."""

_U32 = struct.Struct(">I")


class Head:
    """Everything of a message but its body.

    `exchange` and `key`: bytes, 255 at most; `more_keys`: what else it is routed by. `properties`: property
    flags and properties as on the wire, well formed. `body_bytes`: the length of each body. `large`: messages
    have a reference in its place (`bodies`). `stored_bytes`: what they have, body or reference. `frames` and
    `envelope` are for the wires that keep there what they put before a body.
    """

    __slots__ = (
        "_headers",
        "body_bytes",
        "cost_bytes",
        "envelope",
        "exchange",
        "frames",
        "key",
        "large",
        "more_keys",
        "noted",
        "persistent",
        "properties",
        "record",
        "stored_bytes",
        "ttl_ms",
    )

    def __init__(
        self,
        exchange: bytes,
        key: bytes,
        body_bytes: int,
        properties: bytes = NO_PROPERTIES,
        noted: Noted | None = None,
        reference_bytes: int = 0,
    ) -> None:
        """`noted`: what `note_untrusted` found in `properties`, where that is known. `reference_bytes`: of
        what messages have in place of a large body."""
        if noted is None:
            noted = note_untrusted(properties)
        self.exchange = exchange
        self.key = key
        self.more_keys: tuple[bytes, ...] = ()
        self.properties = properties
        self.body_bytes = body_bytes
        self.noted = noted
        self.large = reference_bytes > 0
        self.stored_bytes = reference_bytes or body_bytes
        self.cost_bytes = self.stored_bytes + MESSAGE_BYTES + 2 * len(properties) + len(key)
        """What a message takes in memory: all that may be its own, its properties also as a frame."""
        self.persistent = noted.persistent
        self.ttl_ms = noted.ttl_ms
        self.frames: dict[int, bytes] = {}
        self.envelope: bytes | None = None
        self.record: bytes | None = None
        self._headers: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Head({self.exchange!r}, {self.key!r}, {self.body_bytes} bytes)"

    def sent_to(self, exchange: bytes, key: bytes | None, properties: bytes) -> "Head":
        """Of the same bodies, to another exchange; `key`: None: by the same."""
        reference_bytes = self.stored_bytes if self.large else 0
        new_key = self.key if key is None else key
        return Head(exchange, new_key, self.body_bytes, properties, reference_bytes=reference_bytes)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table, decoded once."""
        if self._headers is None:
            self._headers = headers_of(self.properties, self.noted)
        return self._headers


class Message:
    """A message in one queue.

    `number` gives its place in the queue, also when it comes back. `expires`: monotonic seconds, inf for
    never. `offset`: of its record in the queue's log, -1 where it has none.
    """

    __slots__ = ("body", "expires", "head", "number", "offset", "redelivered")

    def __init__(self, head: Head, body: bytes, number: int) -> None:
        self.head = head
        self.body = body
        self.number = number
        self.expires = math.inf
        self.offset = -1
        self.redelivered = False

    def __repr__(self) -> str:
        return f"Message({self.number}, {self.head!r})"

"""The head of messages: all but their bodies, which messages of one kind share.

A producer usually sends many messages that differ in nothing but their bodies. They share one `Head`, which
is made once and found again by its bytes. What is derived from it (frames, a record's beginning) is made
once, too. So a message costs a slice of the receive buffer, and where it waits a place in a run
(`shared.queues.runs`).
"""

import struct
from contextlib import suppress
from copy import copy
from typing import Any, ClassVar

import attrs

from dmp.data_types import read_field
from dmp.memory import UserMemory
from dmp.properties import NO_PROPERTIES, Noted, headers_of, note_untrusted
from dmp.refusals import Refusal
from dmp.timing import DELAY, delay_in, eta_in

MESSAGE_BYTES = 200
"""A waiting message's own cost beside its body: its bytes object, and a run and a head of its own, as
messages that all differ have them."""

KEY = b"x-key"
"""The header with a message's key, unless its queue names another."""
KEY_BYTES_MAX = 128
_DATED_MS = 100
"""Messages that come within this time share a head, also where it says when they came."""
_U32 = struct.Struct(">I")


@attrs.define(eq=False, repr=False, weakref_slot=False)
class Head:
    """Everything of a message but its body.

    `exchange` and `key`: bytes, 255 at most. `body_bytes`: the length of each body. `properties`: property
    flags and properties as on the wire, well formed; `noted`: what `note_untrusted` finds there.
    `reference_bytes`: of what messages have in place of a large body (`bodies`); 0: it is not large.
    """

    exchange: bytes
    key: bytes
    body_bytes: int
    properties: bytes = NO_PROPERTIES
    noted: Noted = attrs.Factory(lambda self: note_untrusted(self.properties), takes_self=True)
    reference_bytes: int = 0
    more_keys: tuple[bytes, ...] = attrs.field(default=(), init=False)  # what else it is routed by
    large: bool = attrs.field(init=False)
    stored_bytes: int = attrs.field(init=False)  # what messages have, body or reference
    cost_bytes: int = attrs.field(init=False)
    """What a message takes in memory: all that may be its own, its properties also as a frame."""
    delay_ms: int = attrs.field(default=0, init=False)
    """Its header `x-delay`."""
    due_ms: int | None = attrs.field(default=None, init=False)
    """When its messages may be delivered, in Unix ms; 0: at once. None: their queue is to say (`timing`)."""
    by_clock: bool = attrs.field(default=False, init=False)
    """That is a time of the wall clock, whatever is done to that meanwhile."""
    came_ms: int = attrs.field(default=0, init=False)
    """When its messages came, in Unix ms, where a log says it: they may expire. 0: it does not."""
    tries: int = attrs.field(default=0, init=False)
    """How many tries of them have failed, where their queue counts that (`tries`)."""
    persistent: bool = attrs.field(init=False)
    ttl_ms: int | None = attrs.field(init=False)
    envelope: bytes | None = attrs.field(default=None, init=False)
    """What DMP puts before a body."""
    record: bytes | None = attrs.field(default=None, init=False)
    """What stands before the body in a queue's log."""
    died: bool = attrs.field(default=False, init=False)
    """Its header `x-death` is the broker's own. What a publisher puts there says nothing."""
    trail: tuple[str, ...] = attrs.field(default=(), init=False)
    """The bridges that have carried it; a restart forgets them."""
    payer: UserMemory | None = attrs.field(default=None, init=False)
    """What its messages count in while they are in memory: its publisher's. It never changes once they do."""
    cold: ClassVar[bool] = False
    _dated: "Head | None" = attrs.field(default=None, init=False)
    _headers: dict[str, Any] | None = attrs.field(default=None, init=False)
    _texts: dict[bytes, str] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.large = self.reference_bytes > 0
        self.stored_bytes = self.reference_bytes or self.body_bytes
        self.cost_bytes = self.stored_bytes + MESSAGE_BYTES + 2 * len(self.properties) + len(self.key)
        self.persistent = self.noted.persistent
        self.ttl_ms = self.noted.ttl_ms
        if self.noted.headers is not None and DELAY in self.properties:
            self.delay_ms = delay_in(self.properties[slice(*self.noted.headers)])

    def __repr__(self) -> str:
        return f"Head({self.exchange!r}, {self.key!r}, {self.body_bytes} bytes)"

    def sent_to(self, exchange: bytes, key: bytes | None, properties: bytes) -> "Head":
        """A head for the same bodies and another exchange. `key`: None for the same key."""
        new_key = self.key if key is None else key
        sent = Head(exchange, new_key, self.body_bytes, properties, reference_bytes=self.reference_bytes)
        sent.trail, sent.died, sent.payer, sent.due_ms = self.trail, self.died, self.payer, self.due_ms
        return sent

    def dated(self, now_ms: int) -> "Head":
        """The head of such messages that come now. Those of a tenth of a second have one head, with its end:
        none expires early."""
        came_ms = (now_ms // _DATED_MS + 1) * _DATED_MS
        head = self._dated
        if head is None or head.came_ms != came_ms:
            head = self._dated = copy(self)
            head.came_ms, head.record, head._dated = came_ms, None, None
        return head

    def in_time(self, now_ms: int, eta_header: bytes | None) -> "Head":
        """The head of such messages in a queue with this header of a time: with `due_ms`, where it is to
        come. What a bridge carries has waited before."""
        due_ms = now_ms + self.delay_ms if self.delay_ms and not self.trail else 0
        eta_ms = 0 if eta_header is None else self.eta_ms(eta_header, now_ms)
        if not (due_ms or eta_ms):
            return self
        head = self.sent_to(self.exchange, None, self.properties)
        head.due_ms, head.by_clock = max(due_ms, eta_ms), eta_ms > due_ms
        return head

    def eta_ms(self, header: bytes, now_ms: int) -> int:
        """The time that this header names, in Unix ms, where that is to come; else 0."""
        headers = self.noted.headers
        return 0 if headers is None else eta_in(self.properties[slice(*headers)], header, now_ms)

    def text_in(self, header: bytes) -> str:
        """What this header says: a text of up to 128 bytes, or a whole number; "" where it says something
        else."""
        if self._texts is None:
            self._texts = {}
        text = self._texts.get(header)
        if text is None:
            text = self._texts[header] = self._read_text(header)
        return text

    def _read_text(self, header: bytes) -> str:
        if self.noted.headers is None:
            return ""
        table = self.properties[slice(*self.noted.headers)]
        value = None
        if header in table:
            with suppress(Refusal):
                value = read_field(table, header)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        return value if isinstance(value, str) and len(value.encode()) <= KEY_BYTES_MAX else ""

    @property
    def headers(self) -> dict[str, Any]:
        """The headers table, decoded once. Raises Refusal where Python has no value for one, but not of what
        has died: there it is `NO_VALUE`."""
        if self._headers is None:
            self._headers = headers_of(self.properties, self.noted, leniently=self.died)
        return self._headers

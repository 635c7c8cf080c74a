"""The records of a durable queue's log, byte for byte. No I/O, no state.

| op | |
|---|---|
| 1 PUT | `[number u64][exchange shortstr][key shortstr][properties length u32][properties][body]` |
| 2 TAKEN | numbers, u64 each: these messages have left |
| 3 PAGED | as PUT, of a message that is not persistent: here for want of memory, gone after a restart |
| 4 PURGED | `[first u64][end u64]`: all from the one up to the other have left |
| 5 LARGE | as PUT, with a reference in place of the body (`bodies`) |
| 6 LARGE_PAGED | as PAGED, likewise |
| 7 TRIED | `[tries u32][time u64]`, then numbers, u64 each: failed tries of these, and their time, as below |

Each begins with its op in one byte. A message is in the queue where nothing behind its last PUT says that it
has left; one may be put again, at the end, with the number that it had. A PURGED of no messages, from 0 to 0,
says that what cannot be read before it is known to be lost. The last TRIED of a message counts.

The last bit of the property flags says that the message has died, and that its `x-death` is the broker's own.
The bit before it says that a time stands behind the properties (u64, Unix ms), and is counted in their
length: the message is not to be delivered before; 0: at once. With the time's first bit another one stands
before it: when the message came, if it may expire. The time's second bit says that it is one of the wall
clock, and moves where that is set (`later`). On the wire no message has these bits.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

import attrs

from dmp.bodies import length_in
from dmp.cold_records import TriesNote
from dmp.data_types import short
from dmp.message import Head
from dmp.refusals import Refusal
from shared.errors import CorruptRecord
from shared.queues.runs import Run
from shared.storage.format import LENGTH_BYTES, length_at

QUEUES = "dmp-queues"  # where the logs stand
_HEAD = struct.Struct(">IBQ")
_PLACE = struct.Struct(">BQ")
_PURGED = struct.Struct(">IBQQ")
_LENGTH = struct.Struct(">I")
_DIED, _DUE = 1, 2  # in the second byte of the property flags
_TIME = struct.Struct(">Q")
_CAME, _BY_CLOCK = 1 << 63, 1 << 62  # in the time
_TRIED = struct.Struct(">BIQ")
_HEADS_MAX = 1024
"""Parsed forms that are kept: most messages of a queue have what is before the body in common."""


KNOWN_LOST = 0, 0  # what a PURGED record says then


class Op(IntEnum):
    """What a record says."""

    PUT = 1
    TAKEN = 2
    PAGED = 3
    PURGED = 4
    LARGE = 5
    LARGE_PAGED = 6
    TRIED = 7


PUTS = frozenset((Op.PUT, Op.LARGE))  # messages that a restart has again
PAGES = frozenset((Op.PAGED, Op.LARGE_PAGED))  # those that it has not
_LARGE = frozenset((Op.LARGE, Op.LARGE_PAGED))


def put(head: Head, bodies: Sequence[bytes], first: int) -> bytes:
    """PUT (or PAGED, LARGE, LARGE_PAGED) records of messages numbered from `first` on."""
    size, op, common = _beginning(head)
    pack = _HEAD.pack
    parts: list[bytes] = []
    for number, body in enumerate(bodies, first):
        parts += (pack(size, op, number), common, body)
    return b"".join(parts)


def _beginning(head: Head) -> tuple[int, int, bytes]:
    """What is before the body: the record's size and op, and what all records of these messages have."""
    common = _common(head)
    if head.large:
        op = int(Op.LARGE if head.persistent else Op.LARGE_PAGED)
    else:
        op = int(Op.PUT if head.persistent else Op.PAGED)
    return _HEAD.size - LENGTH_BYTES + len(common) + head.stored_bytes, op, common


def _common(head: Head) -> bytes:
    """What all records of these messages have."""
    if head.record is None:
        properties = head.properties
        bits = _DIED * head.died + _DUE * bool(head.due_ms or head.came_ms)
        if bits:
            properties = bytes((properties[0], properties[1] | bits)) + properties[2:]
        if head.came_ms:
            properties += _TIME.pack(head.came_ms)
        if bits & _DUE:
            due_ms = head.due_ms or 0
            properties += _TIME.pack(_CAME * (head.came_ms > 0) | _BY_CLOCK * head.by_clock | due_ms)
        names = short(head.exchange) + short(head.key)
        head.record = b"".join((names, _LENGTH.pack(len(properties)), properties))
    return head.record


def put_bytes(head: Head) -> int:
    """The bytes of a record that puts one of these messages."""
    return _HEAD.size + len(head.record or _common(head)) + head.stored_bytes


def taken(messages: Sequence[int]) -> bytes:
    """A TAKEN record; nothing for nothing."""
    if not messages:
        return b""
    payload = struct.pack(f">B{len(messages)}Q", Op.TAKEN, *messages)
    return _LENGTH.pack(len(payload)) + payload


def tried(noted: TriesNote, numbers: Sequence[int]) -> bytes:
    """A TRIED record."""
    tries, due_ms, by_clock = noted
    time = _BY_CLOCK * by_clock | due_ms
    payload = _TRIED.pack(Op.TRIED, tries, time) + struct.pack(f">{len(numbers)}Q", *numbers)
    return _LENGTH.pack(len(payload)) + payload


def tried_in(data: bytes, start: int, end: int) -> tuple[TriesNote, tuple[int, ...]]:
    """What a TRIED record notes, and the messages' numbers."""
    _, tries, time = _TRIED.unpack_from(data, start)
    at = start + _TRIED.size
    return TriesNote(tries, *_due(time)), struct.unpack_from(f">{(end - at) // 8}Q", data, at)


def purged(first: int, end: int) -> bytes:
    """A PURGED record."""
    return _PURGED.pack(_PURGED.size - LENGTH_BYTES, Op.PURGED, first, end)


def operations(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield of each record its op, where its payload begins, and where it ends."""
    at = 0
    while at < len(data):
        start = at + LENGTH_BYTES
        at = start + length_at(data, at)[0]
        yield (data[start] if start < at else 0), start, at


def number_in(data: bytes, start: int) -> int:
    """The number of the message that a record puts."""
    number: int = _PLACE.unpack_from(data, start)[1]
    return number


def due_in(data: bytes, start: int) -> tuple[int, bool]:
    """When the message that a record puts may be delivered, in Unix ms; 0: at once; and whether that is a
    time of the wall clock. Raises IndexError, struct.error."""
    at = start + _PLACE.size
    at += 1 + data[at]
    at += 1 + data[at]
    properties = at + _LENGTH.size
    if not data[properties + 1] & _DUE:
        return 0, False
    end = properties + _LENGTH.unpack_from(data, at)[0]
    return _due(_TIME.unpack_from(data, end - _TIME.size)[0])


def body_bytes_in(data: bytes, start: int, end: int) -> int:
    """The length of the body in a record that puts a message. Raises IndexError, struct.error."""
    at = start + _PLACE.size
    at += 1 + data[at]
    at += 1 + data[at]
    before: int = _LENGTH.unpack_from(data, at)[0]
    return max(end - at - _LENGTH.size - before, 0)


def _due(time: int) -> tuple[int, bool]:
    return time & ~(_CAME | _BY_CLOCK), time & _BY_CLOCK > 0


def numbers_in(data: bytes, start: int, end: int) -> tuple[int, ...]:
    """The messages' numbers in a TAKEN record; in a PURGED one the first number, and the end."""
    return struct.unpack_from(f">{(end - start - 1) // 8}Q", data, start + 1)


@attrs.define(eq=False)
class MessageReader:
    """Reads such records. Those that are alike share a head, as they did before."""

    _path: str
    _heads: dict[bytes, Head] = attrs.Factory(dict)

    def read(self, data: bytes, start: int, end: int, offset: int) -> Run:
        """The message whose record has the payload [start, end), and stands at `offset`. Raises
        CorruptRecord."""
        try:
            exchange_at = start + _PLACE.size
            key_at = exchange_at + 1 + data[exchange_at]
            length_at_ = key_at + 1 + data[key_at]
            body_at = length_at_ + 4 + _LENGTH.unpack_from(data, length_at_)[0]
            if body_at > end:
                raise IndexError
            common = data[exchange_at:body_at]
            large = data[start] in _LARGE
            like = common + (data[body_at:end] if large else _LENGTH.pack(end - body_at))
            head = self._heads.get(like)
            if head is None:
                exchange = data[exchange_at + 1 : key_at]
                key = data[key_at + 1 : length_at_]
                properties = data[length_at_ + 4 : body_at]
                died, time, came_ms = properties[1] & _DIED, 0, 0
                if properties[1] & _DUE:
                    (time,) = _TIME.unpack(properties[-_TIME.size :])
                    properties = properties[: -_TIME.size]
                    if time & _CAME:
                        (came_ms,) = _TIME.unpack(properties[-_TIME.size :])
                        properties = properties[: -_TIME.size]
                if properties[1] & (_DIED | _DUE):
                    properties = bytes((properties[0], properties[1] & ~(_DIED | _DUE))) + properties[2:]
                body_bytes, reference_bytes = end - body_at, 0
                if large:
                    body_bytes, reference_bytes = length_in(data[body_at:end]), end - body_at
                head = Head(exchange, key, body_bytes, properties, reference_bytes=reference_bytes)
                head.record, head.died, head.came_ms = common, died > 0, came_ms
                head.due_ms, head.by_clock = _due(time)
                if len(self._heads) >= _HEADS_MAX:
                    self._heads.clear()
                self._heads[like] = head
        except (struct.error, IndexError, Refusal) as error:
            raise CorruptRecord(self._path, offset) from error
        number = number_in(data, start)
        return Run(head, [data[body_at:end]], number, 0, offset, end - start + LENGTH_BYTES)

"""Many like frames at once, at the speed of slices: what the server reads and writes most.

A producer's read is mostly PRODUCE frames of one queue and one size, a consumer's an ACK and a CONSUME by
turns. Such a run is recognised as a whole, by a few strided slices, and answered with one piece of bytes.
"""

import struct
from collections.abc import Iterable, Sequence
from itertools import chain

from dms.wire import HEADER_BYTES, MAGIC, VERSION, Type

WORDS = struct.Struct(">IIII")
"""A header as the server takes it apart: magic, payload length, word, message id."""
RUN_LEAST = 4
"""Fewer frames than this are taken one by one."""

_ID_AT = 12
_LENGTH = struct.Struct(">I")
_HALVES = struct.Struct(">QQ")


def word(type_: Type, status: int = 0) -> int:
    """Type, version and status as one number."""
    return type_ << 24 | VERSION << 16 | status


_DELIVER_WORD = word(Type.DELIVER)
_DELIVER = _DELIVER_WORD << 32


def head(type_: Type, length: int = 0, status: int = 0) -> bytes:
    """A header but for its message id."""
    return WORDS.pack(MAGIC, length, word(type_, status), 0)[:_ID_AT]


def produced(data: bytes, at: int, length: int, name: bytes) -> int:
    """How many frames from `at` on are PRODUCE to `name`, as it stands in a payload, and of one `length`.

    All must be, but for what is less than such a frame at the end, else it is 0; so it is for few. The first
    is known to be one.
    """
    step = HEADER_BYTES + length
    count = (len(data) - at) // step
    if count < RUN_LEAST:
        return 0
    second = at + step
    if not (data.startswith(data[at : at + _ID_AT], second) and data.startswith(name, second + HEADER_BYTES)):
        return 0
    end = at + count * step
    for byte in chain(range(_ID_AT), range(HEADER_BYTES, HEADER_BYTES + len(name))):
        first = at + byte
        if data[first:end:step] != data[first : first + 1] * count:
            return 0
    return count


def by_turns(data: bytes, at: int, name: bytes) -> int:
    """How many times from `at` on an ACK without payload is followed by a CONSUME from `name`; 0 for few."""
    step = 2 * HEADER_BYTES + len(name)
    count = (len(data) - at) // step
    if count < RUN_LEAST:
        return 0
    end = at + count * step
    seen = bytearray(data[at:end])
    nothing = bytes(count)
    for byte in (*range(_ID_AT, HEADER_BYTES), *range(HEADER_BYTES + _ID_AT, 2 * HEADER_BYTES)):
        seen[byte::step] = nothing
    no_id = bytes(4)
    like = b"".join((head(Type.ACK), no_id, head(Type.CONSUME, len(name)), no_id, name))
    return count if seen == like * count else 0


def ids(data: bytes, at: int, step: int, count: int) -> tuple[int, ...]:
    """The message ids of `count` frames, `step` bytes from one to the next, the first at `at`."""
    return struct.unpack(f">{count}I", packed_ids(data, at, step, count))


def packed_ids(data: bytes, at: int, step: int, count: int) -> bytearray:
    """The same as they stand in the frames, side by side."""
    packed = bytearray(4 * count)
    end = at + count * step
    for byte in range(4):
        packed[byte::4] = data[at + _ID_AT + byte : end : step]
    return packed


def answers(type_: Type, packed: bytes | bytearray) -> bytes:
    """A reply without payload for each of the ids, which stand side by side."""
    count = len(packed) // 4
    replies = bytearray((head(type_) + bytes(4)) * count)
    for byte in range(4):
        replies[_ID_AT + byte :: HEADER_BYTES] = packed[byte::4]
    return bytes(replies)


def answers_to(type_: Type, message_ids: Sequence[int]) -> bytes:
    """The same for ids as numbers."""
    if len(message_ids) == 1:
        return WORDS.pack(MAGIC, 0, word(type_), message_ids[0])
    return answers(type_, struct.pack(f">{len(message_ids)}I", *message_ids))


def answered(replies: bytes) -> tuple[int, ...]:
    """The ids in replies without payload."""
    return ids(replies, 0, HEADER_BYTES, len(replies) // HEADER_BYTES)


def delivery(message_id: int, body: bytes) -> bytes:
    """A DELIVER frame."""
    return WORDS.pack(MAGIC, len(body), _DELIVER_WORD, message_id) + body


def deliveries(first_id: int, bodies: Sequence[bytes]) -> bytes:
    """A DELIVER frame for each body, the ids counted up from `first_id`."""
    first = _DELIVER + first_id
    lengths: Iterable[int] = map((MAGIC << 32).__add__, map(len, bodies))
    heads = map(_HALVES.pack, lengths, range(first, first + len(bodies)))
    return b"".join(chain.from_iterable(zip(heads, bodies, strict=True)))


def records(bodies: Sequence[bytes]) -> bytes:
    """Each body behind its length in 4 bytes."""
    size = len(bodies[0])
    if set(map(len, bodies)) == {size}:
        length = size.to_bytes(4, "big")
        return length + length.join(bodies)
    lengths = map(_LENGTH.pack, map(len, bodies))
    return b"".join(chain.from_iterable(zip(lengths, bodies, strict=True)))


def split(data: bytes, at: int, count: int) -> list[bytes]:
    """What `records` joined: `count` bodies, the first one's length at `at`."""
    end = len(data)
    step = 4 + int.from_bytes(data[at : at + 4], "big")
    if at + count * step == end:
        if count == 1:
            return [data[at + 4 :]]
        prefix = data[at : at + 4]
        if all(data[at + byte : end : step] == prefix[byte : byte + 1] * count for byte in range(4)):
            return [data[start + 4 : start + step] for start in range(at, end, step)]
    bodies: list[bytes] = []
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(data[at:start], "big")
        bodies.append(data[start:at])
    return bodies

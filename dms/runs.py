"""Many like frames at once, at the speed of slices: what the server reads and writes most.

A producer's read is mostly PRODUCE frames of one size, a consumer's an ACK and a CONSUME by turns. Such a run
is cut into its columns by one `struct` (heads, ids, names, bodies); that all heads are alike is a count, and
the answers are one head joined by the ids. So an id stays what it is in a frame: four bytes.

What it buys, in microseconds of the processor a message (8 producers, 8 consumers, 64 under way on each, in
memory): without `produced` 2.3 instead of 1.5, without `by_turns` 2.7.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import add

from dms.wire import HEADER_BYTES, ID_AT, MAGIC, NAME_BYTES_MAX, VERSION, Type

WORDS = struct.Struct(">IIII")
"""A header as the server takes it apart: magic, payload length, word, message id."""
RUN_LEAST = 4
"""Fewer frames than this are taken one by one."""
RUN_MOST = 256
"""More are taken as several runs: some hundred microseconds of work."""

_ID_BYTES = HEADER_BYTES - ID_AT
_HEAD = struct.Struct(">III")


def word(type_: Type, status: int = 0) -> int:
    """Type, version and status as one number."""
    return type_ << 24 | VERSION << 16 | status


def head(type_: Type, length: int = 0, status: int = 0) -> bytes:
    """A header but for its message id."""
    return _HEAD.pack(MAGIC, length, word(type_, status))


ACK = head(Type.ACK)
ACK_OK = head(Type.ACK_OK)
CONSUME = tuple(head(Type.CONSUME, length) for length in range(2 + NAME_BYTES_MAX + 1))
"""By the payload's length, which is the name's in it."""
PRODUCE_OK = head(Type.PRODUCE_OK)
_DELIVER_WORD = word(Type.DELIVER)


@lru_cache(maxsize=128)
def _columns(count: int, *widths: int) -> struct.Struct:
    """Columns of these widths in bytes, side by side, `count` times."""
    return struct.Struct("".join(f"{width}s" for width in widths) * count)


@lru_cache(maxsize=RUN_MOST)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f">{count}I")


def begins(data: bytes, at: int, step: int) -> bool:
    """Whether a run may begin with the frame at `at`: what stands `step` bytes behind it begins as it does.

    A look at the rest costs as much as applying some frames, so it is for those who ask this first, and then
    do not look again before `at + RUN_MOST * step`.
    """
    return data.startswith(data[at : at + ID_AT], at + step)


def produced(
    data: bytes, at: int, length: int, width: int
) -> tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids, names and bodies of a run of PRODUCEs, all with a payload of `length` bytes.

    A name is what a payload begins with, `width` bytes; nothing is said about it. The frame at `at` is known
    to be a PRODUCE; all behind it must be, but for what is less than such a frame at the end. None for few.
    """
    step = HEADER_BYTES + length
    count = min((len(data) - at) // step, RUN_MOST)
    if count < RUN_LEAST:
        return None
    parts = _columns(count, ID_AT, _ID_BYTES, width, length - width).unpack_from(data, at)
    if parts[::4].count(parts[0]) < count:
        return None
    return parts[1::4], parts[2::4], parts[3::4]


def by_turns(data: bytes, at: int, name: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids of ACKs without payload, and of the CONSUME from `name` that stands behind each; None for few."""
    width = len(name)
    count = min((len(data) - at) // (2 * HEADER_BYTES + width), RUN_MOST)
    if count < RUN_LEAST:
        return None
    parts = _columns(count, ID_AT, _ID_BYTES, ID_AT, _ID_BYTES, width).unpack_from(data, at)
    if (
        parts[::5].count(ACK) < count
        or parts[2::5].count(CONSUME[width]) < count
        or parts[4::5].count(name) < count
    ):
        return None
    return parts[1::5], parts[3::5]


def counted(first: int, count: int) -> tuple[bytes, ...]:
    """`count` ids, counted up from `first`."""
    packed = _numbers(count).pack(*range(first, first + count))
    return _columns(count, _ID_BYTES).unpack(packed)


def answers(head: bytes, ids: Iterable[bytes]) -> bytes:
    """A reply without payload for each of the ids; `head` is what all begin with."""
    return head + head.join(ids)


def answered(replies: bytes) -> list[bytes]:
    """The ids in replies without payload."""
    return [replies[at + ID_AT : at + HEADER_BYTES] for at in range(0, len(replies), HEADER_BYTES)]


def delivery(delivery_id: bytes, body: bytes) -> bytes:
    """A DELIVER frame."""
    return _HEAD.pack(MAGIC, len(body), _DELIVER_WORD) + delivery_id + body


def deliveries(ids: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    """A DELIVER frame for each body."""
    if len(ids) == 1:
        return delivery(ids[0], bodies[0])
    size = len(bodies[0])
    if set(map(len, bodies)) == {size}:
        return answers(_HEAD.pack(MAGIC, size, _DELIVER_WORD), map(add, ids, bodies))
    heads = map(_HEAD.pack, repeat(MAGIC), map(len, bodies), repeat(_DELIVER_WORD))
    return b"".join(chain.from_iterable(zip(heads, ids, bodies, strict=False)))

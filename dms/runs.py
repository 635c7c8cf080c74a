"""Many like frames at once, at the speed of slices: what the server reads and writes most.

A producer's read is mostly PRODUCE frames of one size, a consumer's an ACK and a CONSUME by turns. Such a run
is cut into its columns by one `struct` (heads, ids, names, bodies); that all heads are alike is a count, and
the answers are one head joined by the ids. So an id stays what it is in a frame: four bytes.

Behind a run there may be anything: who produces and consumes on one connection sends runs of ACKs, PRODUCEs
and CONSUMEs one after the other.

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
    """Whether a run may begin with the frame at `at`: the last of the fewest begins as it does.

    A look at the rest costs as much as applying some frames, so it is for those who ask this first. Who does
    nothing with a run that is there does not look again before `at + RUN_MOST * step`.
    """
    return data.startswith(data[at : at + ID_AT], at + (RUN_LEAST - 1) * step)


def produced(
    data: bytes, at: int, length: int, width: int
) -> tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids, names and bodies of a run of PRODUCEs, all with a payload of `length` bytes.

    A name is what a payload begins with, `width` bytes; nothing is said about it. None for few.
    """
    columns = _cut(data, at, ID_AT, _ID_BYTES, width, length - width)
    if columns is None:
        return None
    heads, ids, names, bodies = columns
    count = _alike(heads)
    return None if count < RUN_LEAST else (ids[:count], names[:count], bodies[:count])


def by_turns(data: bytes, at: int, name: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Ids of ACKs without payload, and of the CONSUME from `name` that stands behind each; None for few."""
    width = len(name)
    columns = _cut(data, at, ID_AT, _ID_BYTES, ID_AT, _ID_BYTES, width)
    if columns is None:
        return None
    acks, ack_ids, wants, want_ids, names = columns
    if wants[0] != CONSUME[width] or names[0] != name:
        return None
    count = min(_alike(acks), _alike(wants), _alike(names))
    return None if count < RUN_LEAST else (ack_ids[:count], want_ids[:count])


def alike(data: bytes, at: int, width: int) -> tuple[bytes, ...] | None:
    """Ids of frames that are the same otherwise, each with a payload of `width` bytes; None for few."""
    columns = _cut(data, at, ID_AT, _ID_BYTES, *([width] if width else []))
    if columns is None:
        return None
    count = min(_alike(columns[0]), _alike(columns[-1])) if width else _alike(columns[0])
    return None if count < RUN_LEAST else columns[1][:count]


def _cut(data: bytes, at: int, *widths: int) -> list[tuple[bytes, ...]] | None:
    """What begins at `at` in columns of these widths, the first of them heads; None for few.

    The rows are `RUN_MOST` at most, and no more than twice as many as go on as the first of them begins.
    """
    step = sum(widths)
    most = min((len(data) - at) // step, RUN_MOST)
    if most < RUN_LEAST:
        return None
    head = data[at : at + ID_AT]
    count = RUN_LEAST
    while count < most and data.startswith(head, at + (count - 1) * step):
        count *= 2
    parts = _columns(min(count, most), *widths).unpack_from(data, at)
    return [parts[number :: len(widths)] for number in range(len(widths))]


def _alike(column: Sequence[bytes]) -> int:
    """How many equal the first, up to one that does not."""
    first = column[0]
    if column.count(first) == len(column):
        return len(column)
    return next(number for number, each in enumerate(column) if each != first)


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
    size = len(bodies[0])
    if set(map(len, bodies)) == {size}:
        return answers(_HEAD.pack(MAGIC, size, _DELIVER_WORD), map(add, ids, bodies))
    heads = map(_HEAD.pack, repeat(MAGIC), map(len, bodies), repeat(_DELIVER_WORD))
    return b"".join(chain.from_iterable(zip(heads, ids, bodies, strict=False)))

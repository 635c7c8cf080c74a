"""Messages whose headers come round again: found in one sweep, with no step for each.

Producers mostly send one size to one queue, or go round a few queues. Where the headers of some messages
repeat, the layout of one round is a `struct` format (header, skip, header, skip, ...); unpacking round after
round and comparing each with the first one tells of a message in some 25 ns what reading its header would
tell in 400. Every message that is taken so has, byte for byte, a header that was checked before.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from struct import Struct
from typing import Generic, TypeVar

import attrs

R = TypeVar("R")

MESSAGES_MAX = 64
"""Of one round: as many are looked at in vain where there is none."""
TRIES_MAX = 4
"""The first header may come several times in a round; so often it is taken for the next one's beginning."""
SWEPT_MESSAGES = 16
"""Short rounds are compared several at a time."""


@attrs.frozen
class Mark(Generic[R]):
    """A message in the input, its header checked: where it begins, where its header ends, where it ends."""

    begins: int
    body: int
    ends: int
    route: R


class Round(Generic[R]):
    """A sequence of headers that comes again, and whom its messages are for.

    `spans`: the route of each message, and where it begins and ends in the round. `size`: bytes of a round.
    """

    __slots__ = ("_headers", "_layout", "_sweep", "_swept_headers", "_times", "messages", "size", "spans")

    def __init__(self, data: bytes, marks: Sequence[Mark[R]]) -> None:
        first = marks[0].begins
        self.size = marks[-1].ends - first
        self.messages = len(marks)
        self.spans = [(mark.route, mark.begins - first, mark.ends - first) for mark in marks]
        self._headers = tuple(data[mark.begins : mark.body] for mark in marks)
        layout = "".join(f"{mark.body - mark.begins}s{mark.ends - mark.body}x" for mark in marks)
        self._layout = Struct(">" + layout)
        self._times = max(SWEPT_MESSAGES // len(marks), 1)
        self._sweep = Struct(">" + layout * self._times)
        self._swept_headers = self._headers * self._times

    def count(self, data: bytes, at: int) -> int:
        """How many whole rounds stand at `at`, one behind the other."""
        left = (len(data) - at) // self.size
        done = self._times * _count(self._sweep, self._swept_headers, data, at, left // self._times)
        if self._times > 1:
            most = min(left - done, self._times)
            done += _count(self._layout, self._headers, data, at + done * self.size, most)
        return done


def find(data: bytes, marks: Iterable[Mark[R]]) -> Round[R] | None:
    """The round that begins with the first of `marks`, messages in a row, and covers most; None if none."""
    seen: list[Mark[R]] = []
    best: Round[R] | None = None
    header = before = b""
    covered = tries = 0
    for mark in islice(marks, MESSAGES_MAX + 1):
        this = data[mark.begins : mark.body]
        if not seen:
            header = this
        elif this == header and (len(seen) == 1 or before != header):
            candidate = Round(data, seen)
            count = candidate.count(data, seen[0].begins)
            if count > 1 and count * candidate.size > covered:
                best, covered = candidate, count * candidate.size
            tries += 1
            if tries == TRIES_MAX or covered + candidate.size > len(data) - seen[0].begins:
                break
        before = this
        seen.append(mark)
    return best


def _count(layout: Struct, headers: tuple[bytes, ...], data: bytes, at: int, most: int) -> int:
    view = memoryview(data)[at : at + most * layout.size]
    for count, found in enumerate(layout.iter_unpack(view)):
        if found != headers:
            return count
    return most

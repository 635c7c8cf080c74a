"""Messages whose headers come round again: found in one sweep, with no step for each.

Producers mostly send one size to one queue, or go round a few queues. Where the headers of some messages
repeat, the layout of one round is a `struct` format (header, skip, header, skip, ...); unpacking round after
round and comparing each with the first one tells of a message in some 25 ns what reading its header would
tell in 400. Every message that is taken so has, byte for byte, a header that was checked before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from struct import Struct
from typing import Generic, TypeVar

import attrs

from kqmsgq.wire import HEADER_BYTES, LENGTH_BYTES, NAME_AT

R = TypeVar("R")
P = TypeVar("P")

MESSAGES_MAX = 64
"""Of one round: as many are looked at in vain where there is none."""
TRIES_MAX = 4
"""The first header may come several times in a round; so often it is taken for the next one's beginning."""
HEADERS_BYTES_MAX = 4096
"""Of one round: what is remembered of peers has a bound."""
SWEPT_MESSAGES = 16
"""Short rounds are compared several at a time."""
STRETCH_MESSAGES = 64
"""Taken one by one before a round is looked for again."""
WORTH_MESSAGES = 8
"""A round that covers fewer is not worth its books."""
ROUNDS_MAX = 64
"""Remembered."""
VAIN_MAX = 8
"""After so many vain searches in a row the next is 2 ** VAIN_MAX stretches away."""


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


class Rounds(Generic[R, P]):
    """The rounds of one stream of messages, remembered by their first header: a read may begin at any of one.

    `marks(data, at)`: the messages from `at` on, their headers checked, while they are whole and well-formed.
    `plan` makes of a round, once, what its user does with it.
    """

    __slots__ = ("_marks", "_plan", "_rounds", "_vain", "_wait")

    def __init__(
        self, marks: Callable[[bytes, int], Iterator[Mark[R]]], plan: Callable[[Round[R]], P]
    ) -> None:
        self._marks = marks
        self._plan = plan
        self._rounds: dict[bytes, tuple[Round[R], P]] = {}
        self._vain = 0  # searches in a row that found none
        self._wait = 0  # calls before the next

    def forget(self) -> None:
        """Routes have changed."""
        self._rounds.clear()
        self._vain = self._wait = 0

    def at(self, data: bytes, at: int) -> tuple[Round[R], P, int] | None:
        """A round that is worth while at `at`, its plan, and how often it is there.

        The more searches were in vain, the rarer they become.
        """
        body = at + data[at + LENGTH_BYTES] + HEADER_BYTES  # of a name below 256; else it finds nothing
        header = data[at:body]
        known = self._rounds.get(header)
        if known is not None:
            found, plan = known
            count = found.count(data, at)
            if count * found.messages >= WORTH_MESSAGES:
                return found, plan, count
            if at and (count + 1) * found.size > len(data) - at:
                return None  # the end of a read is no reason to forget it
            del self._rounds[header]
        if self._wait:
            self._wait -= 1
            return None
        size = body - at + int.from_bytes(data[body - LENGTH_BYTES : body], "big")
        if size * WORTH_MESSAGES > len(data) - at:
            return None
        searched = find(data, self._marks(data, at))
        if searched is not None:
            count = searched.count(data, at)
            if count * searched.messages >= WORTH_MESSAGES:
                self._vain = 0
                if len(self._rounds) >= ROUNDS_MAX:
                    self._rounds.clear()
                plan = self._plan(searched)
                self._rounds[header] = searched, plan
                return searched, plan, count
        self._vain = min(self._vain + 1, VAIN_MAX)
        self._wait = 1 << self._vain
        return None


def find(data: bytes, marks: Iterable[Mark[R]]) -> Round[R] | None:
    """The round that begins with the first of `marks`, messages in a row, and covers most; None if none."""
    seen: list[Mark[R]] = []
    best: Round[R] | None = None
    header = before = b""
    covered = tries = headers_bytes = 0
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
        headers_bytes += len(this)
        if headers_bytes > HEADERS_BYTES_MAX:
            break
        before = this
        seen.append(mark)
    return best


def count_messages(data: bytes, rounds: Rounds[None, None]) -> int:
    """How many messages `data` holds, which is whole messages."""
    count = at = stretch = 0
    while at < len(data):
        if not stretch:
            stretch = STRETCH_MESSAGES
            found = rounds.at(data, at)
            if found is not None:
                count += found[0].messages * found[2]
                at += found[0].size * found[2]
                stretch = 0
                continue
        stretch -= 1
        count += 1
        at = _ends(data, at)[1]
    return count


def rounds_for_counting() -> Rounds[None, None]:
    return Rounds(_marks, lambda _: None)


def _marks(data: bytes, at: int) -> Iterator[Mark[None]]:
    while at < len(data):
        body, ends = _ends(data, at)
        yield Mark(at, body, ends, None)
        at = ends


def _ends(data: bytes, at: int) -> tuple[int, int]:
    """Where header and message end, of a message that is surely whole."""
    body = at + HEADER_BYTES + int.from_bytes(data[at + 1 : at + NAME_AT], "big")
    return body, body + int.from_bytes(data[body - LENGTH_BYTES : body], "big")


def _count(layout: Struct, headers: tuple[bytes, ...], data: bytes, at: int, most: int) -> int:
    view = memoryview(data)[at : at + most * layout.size]
    for count, found in enumerate(layout.iter_unpack(view)):
        if found != headers:
            return count
    return most

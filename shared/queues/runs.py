"""Runs: messages of one queue that stand next to each other and share a head.

A run is what moves through a queue. It comes, waits, is held by a consumer, is acknowledged or returns as one
object, however many messages it has. Only a part of it that goes another way makes it two runs. So a message
that shares its head with its neighbours costs a body in a list.

A message has a *number* for life, counted in order of arrival. Its place in the queue is its number's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, TypeVar

from shared.turns import taken_out

_K = TypeVar("_K")
_FIRST = attrgetter("first")

RUN_MOST = 256
"""A waiting run that has so many messages is not made longer: taking its first one moves all behind that."""


class Run:
    """Messages of one queue with consecutive numbers and one head, in order.

    `head`: what they share beside the bodies; the protocol's own, and opaque here. `first`: the first one's
    number. `tries`: how often each was delivered. The record of the message at a place is in the queue's log
    at `offset` + place * `stride`; offset -1 and stride 0: the place is not known here, or there is no
    record. `expires`: when they are too old, by the protocol's clock.
    """

    __slots__ = ("bodies", "expires", "first", "head", "offset", "stride", "tries")

    def __init__(
        self,
        head: Any,
        bodies: list[bytes],
        first: int,
        tries: int = 0,
        offset: int = -1,
        stride: int = 0,
        expires: float = math.inf,
    ) -> None:
        self.head = head
        self.bodies = bodies
        self.first = first
        self.tries = tries
        self.offset = offset
        self.stride = stride
        self.expires = expires

    def __len__(self) -> int:
        return len(self.bodies)

    def __lt__(self, other: Run) -> bool:
        """In a heap of (number, run), numbers may be equal: what a feed gives back is numbered anew, from the
        row's beginning downward, while consumers hold messages from there."""
        return self.first < other.first

    def __repr__(self) -> str:
        return f"<Run {self.first}..{self.end}, {self.tries} tries>"

    @property
    def end(self) -> int:
        """The number behind the last one's."""
        return self.first + len(self.bodies)

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.bodies))

    def part(self, start: int, stop: int) -> Run:
        """The messages from place `start` to `stop`, as a run of their own; this one stays as it is."""
        return Run(
            self.head,
            self.bodies[start:stop],
            self.first + start,
            self.tries,
            self.offset + start * self.stride,
            self.stride,
            self.expires,
        )

    def singles(self) -> list[Run]:
        """Each message as a run of its own; this one stays as it is."""
        head, tries, stride, expires = self.head, self.tries, self.stride, self.expires
        number, offset = self.first, self.offset
        return [
            Run(head, [body], number + at, tries, offset + at * stride, stride, expires)
            for at, body in enumerate(self.bodies)
        ]

    def without(self, number: int) -> tuple[Run, list[Run]]:
        """The message of this number, which is here, and what stands before and behind it; this one stays."""
        at = number - self.first
        rest = [self.part(0, at), self.part(at + 1, len(self.bodies))]
        return self.part(at, at + 1), [part for part in rest if part.bodies]

    def cut(self, count: int) -> Run:
        """Take the first `count` messages off this run, as a run of their own."""
        bodies, first, offset = self.bodies, self.first, self.offset
        if count == 1:
            taken = [bodies.pop(0)]
        else:
            taken = bodies[:count]
            del bodies[:count]
        self.first = first + count
        self.offset = offset + count * self.stride
        return Run(self.head, taken, first, self.tries, offset, self.stride, self.expires)


class Ready:
    """The messages of a queue that may be delivered: the part of the row in memory, and the requeued ones.

    The *row* has the messages that were never taken. The requeued ones were taken, or have waited for their
    time: mostly they stand in front of the row. All go by their numbers, so each message keeps its place. A
    queue with priorities has one `Ready` for each of them (`shared.queues.priorities`).
    """

    __slots__ = ("count", "loaded", "requeued", "runs")

    in_order = True
    """All go in order of arrival: there are no priorities."""

    def __init__(self) -> None:
        self.count = 0
        """How many messages there are."""
        self.runs: deque[Run] = deque()
        self.loaded = 0
        """How many messages `runs` have."""
        self.requeued: list[tuple[int, Run]] = []
        """A heap of runs by their first numbers."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Run]:
        """The runs, the next one out first."""
        yield from merge([run for _, run in sorted(self.requeued)], self.runs)

    def first(self) -> Run:
        """The run of the next message. Some must be there."""
        return self.requeued[0][1] if self._requeued_first() else self.runs[0]

    def first_number(self) -> int:
        """The smallest number. Some must be there."""
        return self.first().first

    def upcoming(self, most: int) -> list[Run]:
        """About the first of what was requeued, as many runs as that."""
        return [run for _, run in self.requeued[:most]]

    def add(self, run: Run, priority: int = 0) -> None:
        """Put messages behind all others of the row."""
        count = len(run.bodies)
        self.count += count
        self.loaded += count
        join(self.runs, run)

    def add_bodies(self, bodies: Sequence[bytes], first: int) -> None:
        """As `add`, for messages that have neither a head nor a known place, and never expire."""
        # No run is made for what goes on where the last one ends: in memory, for clients that wait for each
        # answer, 3 % of a message's whole way.
        last = self.runs[-1] if self.runs else None
        if (
            last is not None
            and last.head is None
            and last.offset < 0
            and last.first + len(last.bodies) == first
            and len(last.bodies) < RUN_MOST
        ):
            last.bodies += bodies
            self.count += len(bodies)
            self.loaded += len(bodies)
        else:
            self.add(Run(None, [*bodies], first))

    def requeue(self, run: Run, priority: int = 0) -> None:
        """Messages that were taken return to their places."""
        self.count += len(run.bodies)
        heappush(self.requeued, (run.first, run))

    def take(self, most: int) -> Run:
        """Take the next messages, up to `most`, of one run. Some must be there."""
        if not self.requeued:
            return self.take_row(most)
        if self._requeued_first():
            return self.take_requeued(most)
        return self.take_row(min(most, self.requeued[0][0] - self.runs[0].first))

    def _requeued_first(self) -> bool:
        """Whether the next message is one that was requeued."""
        return bool(self.requeued) and (not self.runs or self.requeued[0][0] <= self.runs[0].first)

    def take_requeued(self, most: int) -> Run:
        """Take up to `most` messages that were requeued, of the first run."""
        run = self.requeued[0][1]
        count = len(run.bodies)
        if count <= most:
            heappop(self.requeued)
            self.count -= count
            return run
        self.count -= most
        taken = run.cut(most)
        heapreplace(self.requeued, (run.first, run))
        return taken

    def take_row(self, most: int) -> Run:
        """Take up to `most` messages off the row's front, of the first run. Some must be in memory."""
        run = self.runs[0]
        count = len(run.bodies)
        if count <= most:
            self.runs.popleft()
            self.count -= count
            self.loaded -= count
            return run
        self.count -= most
        self.loaded -= most
        return run.cut(most)

    def find(self, number: int) -> Run | None:
        """The run that has this message; it stays."""
        at = self._place(number)
        if at >= 0:
            return self.runs[at]
        for first, run in self.requeued:
            if first <= number < first + len(run.bodies):
                return run
        return None

    def take_out(self, number: int) -> Run | None:
        """Take a message, wherever it stands. None: it is not here. The row has a gap then."""
        at = self._place(number)
        if at >= 0:
            message, rest = self.runs[at].without(number)
            del self.runs[at]
            for part in reversed(rest):
                self.runs.insert(at, part)
            self.loaded -= 1
        else:
            run = self.find(number)
            if run is None:
                return None
            message, rest = run.without(number)
            self.requeued.remove((run.first, run))
            self.requeued += [(part.first, part) for part in rest]
            heapify(self.requeued)
        self.count -= 1
        return message

    def _place(self, number: int) -> int:
        """Which run of the row has this message; -1: none."""
        at = bisect_right(self.runs, number, key=_FIRST) - 1
        return at if at >= 0 and number < self.runs[at].end else -1

    def clear_requeued(self) -> list[Run]:
        """Take all that were requeued."""
        runs = [run for _, run in self.requeued]
        self.requeued = []
        self.count = self.loaded
        return runs

    def clear(self) -> Iterator[list[Run]]:
        """Nothing is here any more. Returns what was, in no order, taken apart while it is gone through: to
        have very many at once takes long, and to free them."""
        requeued, runs = self.requeued, self.runs
        self.requeued, self.runs = [], deque()
        self.count = self.loaded = 0
        back = ([run for _, run in entries] for entries in taken_out(requeued.pop, requeued))
        return chain(taken_out(runs.popleft, runs), back)


def join(runs: MutableSequence[Run], run: Run) -> None:
    """Put a run behind others. What goes on where the last one ends becomes part of that."""
    count = len(run.bodies)
    if runs:
        last = runs[-1]
        before = len(last.bodies)
        if (
            before < RUN_MOST
            and last.first + before == run.first
            and last.head is run.head
            and last.offset + before * last.stride == run.offset
            and last.expires == run.expires
            and last.tries == run.tries
        ):
            last.bodies += run.bodies
            return
    if count <= RUN_MOST:
        runs.append(run)
    else:
        runs.extend([run.part(at, at + RUN_MOST) for at in range(0, count, RUN_MOST)])


def bodies_bytes(bodies: Iterable[bytes]) -> int:
    return sum(map(len, bodies))


def split_at(runs: Iterable[Run], number: int) -> tuple[list[Run], list[Run]]:
    """The messages below `number`, and the others."""
    below: list[Run] = []
    above: list[Run] = []
    for run in runs:
        place = number - run.first
        if place >= len(run.bodies):
            below.append(run)
        elif place <= 0:
            above.append(run)
        else:
            below.append(run.part(0, place))
            above.append(run.part(place, len(run.bodies)))
    return below, above


def split_after(runs: Iterable[Run], count: int) -> tuple[list[Run], list[Run]]:
    """The first `count` messages, and the others."""
    first: list[Run] = []
    rest: list[Run] = []
    for run in runs:
        fitting = min(len(run.bodies), count)
        count -= fitting
        if fitting:
            first.append(run if fitting == len(run.bodies) else run.part(0, fitting))
        if fitting < len(run.bodies):
            rest.append(run.part(fitting, len(run.bodies)) if fitting else run)
    return first, rest


def split_by(run: Run, keys: Iterable[_K]) -> Iterator[tuple[_K, Run]]:
    """The stretches of messages with one key; `keys`: of each message."""
    start = 0
    for key, group in groupby(keys):
        stop = start + sum(1 for _ in group)
        yield key, run.part(start, stop)
        start = stop


def numbers_of(runs: Sequence[Run]) -> list[int]:
    """All numbers, ascending."""
    if len(runs) == 1:
        return [*runs[0].numbers]
    return sorted([number for run in runs for number in run.numbers])


def to_spans(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """The numbers of runs as the fewest pairs (first, count), ascending."""
    if len(runs) == 1:
        return [(runs[0].first, len(runs[0].bodies))]
    spans: list[tuple[int, int]] = []
    for first, count in sorted([(run.first, len(run.bodies)) for run in runs]):
        if spans and sum(spans[-1]) == first:
            first, count = spans[-1][0], spans.pop()[1] + count
        spans.append((first, count))
    return spans


def first_of(runs: Iterable[Run], most: int) -> Iterator[tuple[Run, int]]:
    """The first `most` messages of runs, by number: each one's run, and its place there."""
    left = most
    for run in sorted(runs, key=lambda run: run.first):
        for place in range(min(len(run.bodies), left)):
            yield run, place
        left -= len(run.bodies)
        if left <= 0:
            return

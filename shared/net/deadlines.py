"""One heap of deadlines for all connections of a driver.

Sessions often renew a deadline and seldom let it pass. So a later deadline than the heap's only changes a
number: the entry moves when it comes up. An earlier one pushes a new entry.
"""

import math
from collections.abc import Generator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from shared.turns import Turn

STALE_MIN = 64  # below this many dead entries the heap is not worth rebuilding


class Timed(Protocol):
    """Something with a deadline. `scheduled`: the time of its entry in the heap; inf: none."""

    deadline: float
    scheduled: float


T = TypeVar("T", bound=Timed)


class Deadlines(Generic[T]):
    """`next`: the time of the earliest entry, or inf; never later than the earliest wanted deadline."""

    __slots__ = ("_heap", "_order", "_stale", "next")

    def __init__(self) -> None:
        self.next = math.inf
        self._heap: list[tuple[float, int, T]] = []
        self._order = count()  # breaks ties, so that items are never compared
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, item: T, deadline: float) -> None:
        """Replace the deadline of `item`; inf removes it."""
        item.deadline = deadline
        if deadline >= item.scheduled:
            return
        if item.scheduled != math.inf:
            self._stale += 1
            self._rebuild_if_stale()
        item.scheduled = deadline
        heappush(self._heap, (deadline, next(self._order), item))
        self.next = self._heap[0][0]

    def forget(self, item: T) -> None:
        """`item` is gone. A dead entry must not keep it alive: short connections have long deadlines."""
        item.deadline = math.inf
        if item.scheduled != math.inf:
            item.scheduled = math.inf
            self._stale += 1
            self._rebuild_if_stale()

    def due(self, now: float) -> Generator[T, None, None]:
        """Yield the items whose deadline has passed; each has no deadline any more when it is yielded.

        Deadlines that the caller sets meanwhile, however early, are for the next call. So is the rest once a
        turn is over. The caller may stop anywhere (and `close` this).
        """
        newest = next(self._order)
        turn = Turn()
        set_meanwhile: list[tuple[float, int, T]] = []
        try:
            while self._heap and self._heap[0][0] <= now:
                entry = heappop(self._heap)
                self.next = self._heap[0][0] if self._heap else math.inf
                time, order, item = entry
                if time != item.scheduled:
                    self._stale -= 1
                    continue
                if order > newest:
                    set_meanwhile.append(entry)
                    continue
                item.scheduled = math.inf
                if item.deadline > now:
                    self.set(item, item.deadline)
                else:
                    item.deadline = math.inf
                    yield item
                    if turn.over_now():
                        break
        finally:
            for entry in set_meanwhile:
                heappush(self._heap, entry)
            self.next = self._heap[0][0] if self._heap else math.inf

    def _rebuild_if_stale(self) -> None:
        if self._stale < STALE_MIN or self._stale * 2 < len(self._heap):
            return
        self._heap = [entry for entry in self._heap if entry[0] == entry[2].scheduled]
        heapify(self._heap)
        self._stale = 0
        self.next = self._heap[0][0] if self._heap else math.inf

"""What waits for its time, item by item: delayed messages, lifetimes, deadlines of deliveries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, KeysView
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

NUMBER_BITS = 63
"""Numbers are below this power of two, and not below 0."""
STALE_MIN = 64
"""So many entries that stand for nothing are not worth a rebuilt heap."""
WAITING_BYTES = 150
"""Memory of a cold message that waits, beside its bytes: 140 by tracemalloc, 220 with a lifetime."""
CLOCK_STEP_MS = 1000
"""The wall clock was set where it has gone so much more, or less, than time has passed."""

_NUMBER = (1 << NUMBER_BITS) - 1
_GONE = -1


class ClockWatch:
    """Tells when the wall clock was set, from when a message waits for a time of it. `ahead_ms`: how much it
    is ahead of the protocol's clock."""

    __slots__ = ("_ahead_ms",)

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def moved_ms(self, ahead_ms: int) -> int:
        """How much later such times come than when this was asked last; 0: the clock was not set."""
        more_ms = self._ahead_ms - ahead_ms
        if abs(more_ms) <= CLOCK_STEP_MS:
            return 0
        self._ahead_ms = ahead_ms
        return more_ms


class Waiting(Generic[T]):
    """Items by number, each with the time at which it is due: a whole number, 0 or more.

    Time and number are one number in the heap. So an item takes about 120 bytes beside itself; with a tuple
    of both it takes 250. What is taken out early, or gets another time, leaves an entry behind, until that is
    due or the heap is rebuilt.
    """

    __slots__ = ("_changed", "_heap", "_items")

    def __init__(self) -> None:
        self._items: dict[int, T] = {}
        self._heap: list[int] = []
        self._changed: dict[int, int] = {}
        """The times of numbers of which the heap has other entries, too."""

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, number: object) -> bool:
        return number in self._items

    def __iter__(self) -> Iterator[tuple[int, int, T]]:
        """Number, time and item of each, in no order; of those that are here when their turn comes, so that
        this may take several turns of the loop."""
        again = set[int]()
        for entry in [*self._heap]:
            number = entry & _NUMBER
            if not self._stands(entry) or number in again:
                continue
            if number in self._changed:
                again.add(number)
            yield number, entry >> NUMBER_BITS, self._items[number]

    def get(self, number: int) -> T | None:
        return self._items.get(number)

    @property
    def numbers(self) -> KeysView[int]:
        """Of all items, in no order: a view."""
        return self._items.keys()

    def replace(self, number: int, item: T) -> None:
        """Have another item at the time of the one of this number, which is here."""
        self._items[number] = item

    @property
    def next(self) -> float:
        """The earliest time; inf: nothing waits."""
        heap = self._heap
        while heap and not self._stands(heap[0]):
            heappop(heap)
        return heap[0] >> NUMBER_BITS if heap else math.inf

    def add(self, number: int, due: int, item: T) -> None:
        """Put in an item, or give the one of this number another time."""
        again = number in self._items or number in self._changed
        if again:
            self._changed[number] = due
        number = int.from_bytes(number.to_bytes(8))  # a sum has room for a carry: 48 bytes, and not 32
        self._items[number] = item
        heappush(self._heap, due << NUMBER_BITS | number)
        if again:
            self._rebuild_if_stale()

    def fill(self, items: Iterable[tuple[int, int, T]]) -> None:
        """Put in very many: number, time and item of each. No number may be here already."""
        for number, due, item in items:
            self._items[number] = item
            self._heap.append(due << NUMBER_BITS | number)
        heapify(self._heap)

    def take(self, number: int) -> T | None:
        """Take out an item before its time. None: it is not here."""
        item = self._items.pop(number, None)
        if item is not None:
            self._changed[number] = _GONE
            self._rebuild_if_stale()
        return item

    def pop(self, now: float) -> tuple[int, T] | None:
        """Take out the item that has been due for longest, with its number. None: none is due."""
        heap = self._heap
        while heap and heap[0] >> NUMBER_BITS <= now:
            entry = heappop(heap)
            if self._stands(entry):
                number = entry & _NUMBER
                if number in self._changed:
                    self._changed[number] = _GONE
                return number, self._items.pop(number)
        return None

    def pop_any(self) -> T:
        """Take out any item, where nothing but that is done with those that are left."""
        if self._heap:
            self._heap.pop()
        return self._items.popitem()[1]

    def clear(self) -> None:
        self._items, self._heap, self._changed = {}, [], {}

    def _stands(self, entry: int) -> bool:
        number, due = entry & _NUMBER, entry >> NUMBER_BITS
        return number in self._items and self._changed.get(number, due) == due

    def _rebuild_if_stale(self) -> None:
        most = 2 * len(self._items) + STALE_MIN
        if len(self._heap) > most or len(self._changed) > most:
            self._heap = list({entry for entry in self._heap if self._stands(entry)})
            heapify(self._heap)
            self._changed = {}

"""Turns of the loop: how long one piece of work may go on before others are served.

A server has one loop. Whoever applies many items in one stretch has a `Turn`. It asks the turn once an item
whether it is over, and leaves the rest for the next turn of the loop. Long work is a generator that yields at
the latest every `ITEMS` items; `LongWork` goes through it in turns. Its first slice runs in the turn of who
adds it, so small work costs one `next`, and needs no second way.

No module of the engines reads a clock. So `CLOCK` stands still, and no turn ends, until a server starts it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import TypeVar

import attrs

ITEMS = 32
"""Items between two looks at the clock. One takes some microseconds, in bad cases a hundred."""
TURN_SECONDS = 2e-3
"""How long one turn may go on. Some of them follow each other until a waiting peer is served."""

_T = TypeVar("_T")


@attrs.define(eq=False)
class TurnClock:
    """`now`: seconds that only rise."""

    now: Callable[[], float] = lambda: 0.0


CLOCK = TurnClock()
"""The process has one. A server sets it to `time.perf_counter`."""


class Turn:
    """A turn that begins now."""

    __slots__ = ("_ends", "_items")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The turn begins anew."""
        self._items = 0
        self._ends = CLOCK.now() + TURN_SECONDS

    def over(self, items: int = 1) -> bool:
        """Whether the turn is over, now that so many more items are done. It looks at the clock at times."""
        self._items += items
        if self._items < ITEMS:
            return False
        self._items = 0
        return CLOCK.now() >= self._ends

    def over_now(self) -> bool:
        """Whether the turn is over, by a look at the clock: after items that take long, or many of them."""
        return CLOCK.now() >= self._ends


def batched(items: Iterable[_T]) -> Iterator[list[_T]]:
    """The items, in lists of at most `ITEMS`; each list is made when it is asked for."""
    left = iter(items)
    while batch := list(islice(left, ITEMS)):
        yield batch


def taken_out(take: Callable[[], _T], left: Sized) -> Iterator[list[_T]]:
    """The items that `take` takes out of `left`, in lists of at most `ITEMS`, until nothing is left there."""
    while left:
        yield [take() for _ in range(min(len(left), ITEMS))]


@attrs.define(eq=False)
class LongWork:
    """Pieces of long work, done one after the other, in turns.

    `later` is called with this where work is left: it sees to `expire` in the next turn. `Timers` can do
    that, to which `deadline` and `scheduled` belong then.
    """

    _later: Callable[[LongWork], None]
    _on_crash: Callable[[Exception], None]
    deadline: float = math.inf
    scheduled: float = math.inf
    _left: deque[Iterator[None]] = attrs.Factory(deque)

    @property
    def busy(self) -> bool:
        """Whether work is left."""
        return bool(self._left)

    def add(self, steps: Iterator[None]) -> None:
        """Add work that yields at the latest every `ITEMS` items. It begins now, unless other work is before
        it."""
        self._left.append(steps)
        if len(self._left) == 1:
            self._take_turn()

    def expire(self, now: float) -> None:
        """Go on: the next turn has come."""
        self._take_turn()

    def _take_turn(self) -> None:
        left = self._left
        turn = Turn()
        while left:
            try:
                next(left[0])
            except StopIteration:
                left.popleft()
            except Exception as error:
                left.popleft()
                self._on_crash(error)
            if left and turn.over_now():
                self._later(self)
                return

"""Long work in slices: the rest of a deletion, or of a connection's end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import attrs

if TYPE_CHECKING:
    from shared.queues.timers import Timers

STEPS_PER_TURN = 4
"""Steps of one turn: a few milliseconds."""

_T = TypeVar("_T")


def batched(items: Iterable[_T], most: int) -> Iterator[list[_T]]:
    """The items, at most so many at a time; each slice is taken when it is asked for."""
    left = iter(items)
    while some := list(islice(left, most)):
        yield some


def taken_out(take: Callable[[], _T], left: Sized, most: int) -> Iterator[list[_T]]:
    """What `take` takes out of `left`, at most so many at a time, until nothing is left there."""
    while left:
        yield [take() for _ in range(min(len(left), most))]


@attrs.define(eq=False)
class SlicedWork:
    """Runs pieces of long work one after the other, in slices. `scheduled` belongs to `Timers`."""

    _timers: Timers
    _on_crash: Callable[[Exception], None]
    deadline: float = math.inf
    scheduled: float = math.inf
    _left: deque[Iterator[None]] = attrs.Factory(deque)
    _when_idle: list[Callable[[], None]] = attrs.Factory(list)

    @property
    def busy(self) -> bool:
        """Whether work is left."""
        return bool(self._left)

    def add(self, steps: Iterator[None]) -> None:
        """Add work whose `steps` take half a millisecond each. It starts now, unless other work is before
        it."""
        self._left.append(steps)
        if len(self._left) == 1:
            self._take_turn()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when no work is left."""
        self._when_idle.append(callback)

    def expire(self, now: float) -> None:
        """Called by `Timers`: do the next slice."""
        self._take_turn()

    def _take_turn(self) -> None:
        left = self._left
        steps = 0
        while left and steps < STEPS_PER_TURN:
            try:
                next(left[0])
            except StopIteration:
                left.popleft()
            except Exception as error:
                left.popleft()
                self._on_crash(error)
            steps += 1
        if left:
            self._timers.set(self, self._timers.now())
            return
        waiting, self._when_idle = self._when_idle, []
        for callback in waiting:
            callback()

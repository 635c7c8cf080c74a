"""Long work in slices: what a deletion, or the end of a connection, leaves to do."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from shared.queues.timers import Timers

STEPS_PER_TURN = 4
"""A few milliseconds."""


@attrs.define(eq=False)
class SlicedWork:
    """Does long work in slices, one piece after the other. `deadline` and `heaped` are the timers'."""

    _timers: Timers
    _on_crash: Callable[[Exception], None]
    deadline: float = math.inf
    heaped: float = math.inf
    _left: deque[Iterator[None]] = attrs.Factory(deque)
    _when_idle: list[Callable[[], None]] = attrs.Factory(list)

    @property
    def busy(self) -> bool:
        """Whether something is not done yet."""
        return bool(self._left)

    def add(self, steps: Iterator[None]) -> None:
        """Each of `steps` takes half a millisecond. The first turn is now, unless others are before it."""
        self._left.append(steps)
        if len(self._left) == 1:
            self._take_turn()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call it once, when nothing is left to do."""
        self._when_idle.append(callback)

    def expire(self, now: float) -> None:
        """The timers': it is our turn again."""
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

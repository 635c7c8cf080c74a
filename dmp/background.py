"""Long work in slices: what a deletion, or the end of a connection, leaves to do."""

import math
from collections import deque
from collections.abc import Callable, Iterator

from shared.queues.timers import Timers

STEPS_PER_TURN = 4
"""A few milliseconds."""


class Background:
    """One after the other, as they were added. `deadline` and `heaped` are the timers', for the next turn."""

    __slots__ = ("_crashed", "_left", "_timers", "_when_idle", "deadline", "heaped")

    def __init__(self, timers: Timers, crashed: Callable[[Exception], None]) -> None:
        self.deadline = self.heaped = math.inf
        self._timers = timers
        self._crashed = crashed
        self._left: deque[Iterator[None]] = deque()
        self._when_idle: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Something is not done yet."""
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
                self._crashed(error)
            steps += 1
        if left:
            self._timers.set(self, self._timers.now())
            return
        waiting, self._when_idle = self._when_idle, []
        for callback in waiting:
            callback()

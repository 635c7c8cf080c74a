"""Deadlines of what has no connection: messages that expire, queues that nobody uses.

A deadline is a number of the broker's own clock, which need not count the loop's seconds.
"""

import math
from collections.abc import Callable
from typing import Protocol

import trio

from shared.net.deadlines import Deadlines

TURN_SECONDS = 2e-3
"""Expired items are handled for so long before other tasks of the loop run."""


class Expiring(Protocol):
    """What has a deadline here; `deadline` and `heaped` are inf to begin with and belong to the timers."""

    deadline: float
    heaped: float

    def expire(self, now: float) -> None:
        """The deadline has passed; none is set any more."""


class Timers:
    """All deadlines of one broker.

    `now`: its clock. `on_crash` gets what an item raises: a bug of one must not keep the others from their
    time. `loop_time`: when a deadline has come, by the loop's clock; the broker's is the same unless said.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_crash: Callable[[Exception], None],
        loop_time: Callable[[float], float] = lambda deadline: deadline,
    ) -> None:
        self.now = now
        self._on_crash = on_crash
        self._loop_time = loop_time
        self._deadlines: Deadlines[Expiring] = Deadlines()
        self._sleep = trio.CancelScope()
        self._wakes = math.inf  # when `_sleep` ends, by the broker's clock

    @property
    def next(self) -> float:
        """The earliest deadline, or inf."""
        return self._deadlines.next

    def set(self, item: Expiring, deadline: float) -> None:
        """Replace the deadline of `item`; inf takes it away."""
        self._deadlines.set(item, deadline)
        if self._deadlines.next < self._wakes:
            self._wake_in_time()

    def forget(self, item: Expiring) -> None:
        """Drop the deadline of an item that is gone."""
        self._deadlines.forget(item)

    def run_due(self) -> None:
        """Expire what is due. Where that takes long, the rest follows in the next turn of the loop."""
        now = self.now()
        for item in self._deadlines.due(now, TURN_SECONDS):
            try:
                item.expire(now)
            except Exception as error:
                self._on_crash(error)

    async def run(self, after: Callable[[], None]) -> None:
        """Expire what is due, until cancelled; `after` is called each time."""
        while True:
            self._wake_in_time()
            with self._sleep:
                await trio.sleep_forever()
            self._sleep = trio.CancelScope()
            self._wakes = math.inf
            self.run_due()
            after()

    def _wake_in_time(self) -> None:
        self._wakes = self._deadlines.next
        self._sleep.deadline = self._loop_time(self._wakes)

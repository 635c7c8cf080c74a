"""Deadlines of things without a connection: messages that expire, queues that nobody uses.

A deadline is a time of the broker's own clock, whose unit need not be the loop's seconds.
"""

import math
from collections.abc import Callable
from typing import Protocol

import trio

from shared.net.deadlines import Deadlines, Timed


class Expiring(Timed, Protocol):
    """Something with a deadline. `deadline` and `scheduled` start as inf and belong to `Timers`."""

    def expire(self, now: float) -> None:
        """Called when the deadline has passed; no deadline is set now."""


class Timers:
    """All deadlines of one broker.

    `now`: its clock. `on_crash` gets the exception of an item, so that a bug in one does not delay the
    others. `loop_time` converts a deadline to the loop's clock, where the two clocks differ. `second`: how
    much a second is by the broker's.
    """

    def __init__(
        self,
        now: Callable[[], float],
        on_crash: Callable[[Exception], None],
        loop_time: Callable[[float], float] = lambda deadline: deadline,
        second: float = 1,
    ) -> None:
        self.now = now
        self.second = second
        self._on_crash = on_crash
        self._loop_time = loop_time
        self._deadlines: Deadlines[Expiring] = Deadlines()
        self._sleep = trio.CancelScope()
        self._wakes = math.inf  # the time at which `_sleep` ends, by the broker's clock

    @property
    def next(self) -> float:
        """The earliest deadline, or inf."""
        return self._deadlines.next

    def set(self, item: Expiring, deadline: float) -> None:
        """Replace the deadline of `item`; inf removes it."""
        self._deadlines.set(item, deadline)
        if self._deadlines.next < self._wakes:
            self._wake_in_time()

    def set_now(self, item: Expiring) -> None:
        """Have `item` expire in the next turn."""
        self.set(item, self.now())

    def forget(self, item: Expiring) -> None:
        """Drop the deadline of a deleted item."""
        self._deadlines.forget(item)

    def run_due(self) -> None:
        """Expire the items that are due. If that takes long, the rest follows in the next turn of the
        loop."""
        now = self.now()
        for item in self._deadlines.due(now):
            try:
                item.expire(now)
            except Exception as error:
                self._on_crash(error)

    async def run(self, after: Callable[[], None]) -> None:
        """Expire items when they are due, until cancelled; `after` is called each time."""
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

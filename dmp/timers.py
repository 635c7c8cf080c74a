"""Deadlines of what has no connection: messages that expire, queues that nobody uses."""

import math
from collections.abc import Callable
from typing import Protocol

import trio

from shared.net.deadlines import Deadlines

TURN_SECONDS = 2e-3


class Expiring(Protocol):
    """What has a deadline here; `deadline` and `heaped` are inf to begin with and belong to the timers."""

    deadline: float
    heaped: float

    def expire(self, now: float) -> None:
        """The deadline has passed; none is set any more."""


class Timers:
    """One for all. `now` is trio's clock in a server, the test's own elsewhere.

    `crashed` gets what an item raises, which must not keep the others from their time.
    """

    def __init__(self, now: Callable[[], float], crashed: Callable[[Exception], None]) -> None:
        self.now = now
        self._crashed = crashed
        self._deadlines: Deadlines[Expiring] = Deadlines()
        self._sleep = trio.CancelScope()

    @property
    def next(self) -> float:
        return self._deadlines.next

    def set(self, item: Expiring, deadline: float) -> None:
        """Replace the deadline of `item`; inf takes it away."""
        self._deadlines.set(item, deadline)
        if self._deadlines.next < self._sleep.deadline:
            self._sleep.deadline = self._deadlines.next

    def forget(self, item: Expiring) -> None:
        self._deadlines.forget(item)

    def run_due(self) -> None:
        """Some, where those whose time has come are many: the rest follow in the next turn."""
        now = self.now()
        for item in self._deadlines.due(now, TURN_SECONDS):
            try:
                item.expire(now)
            except Exception as error:
                self._crashed(error)

    async def run(self, after: Callable[[], None]) -> None:
        """Until cancelled; `after` is called when something has expired."""
        while True:
            with trio.CancelScope(deadline=self._deadlines.next) as self._sleep:
                await trio.sleep_forever()
            self.run_due()
            self._sleep = trio.CancelScope(deadline=math.inf)
            after()

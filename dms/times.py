"""The broker's age, and one heap of what is due in any queue.

Times that outlive a restart are *ages*: milliseconds that this broker has served in all its runs. While it is
not running nothing ages, so a restart neither kills nor wakes a message early; and no wall clock that jumps
can either.
"""

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from shared.net.deadlines import Deadlines

if TYPE_CHECKING:
    from dms.queue import Queue

TURN_SECONDS = 2e-3


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Times:
    """`clock`: monotonic seconds. `unix_ms`: read once, so that times in records never go back in a run."""

    def __init__(
        self, clock: Callable[[], float] = trio.current_time, unix_ms: Callable[[], int] = _unix_ms
    ) -> None:
        self._time = clock
        self._started = clock()
        self._unix_ms = unix_ms()
        self._age_ms = 0
        self._deadlines: Deadlines[Queue] = Deadlines()
        self._timer = trio.CancelScope()

    def now_ms(self) -> int:
        return self._age_ms + int((self._time() - self._started) * 1000)

    def unix_ms(self) -> int:
        return self._unix_ms + int((self._time() - self._started) * 1000)

    def stamp(self) -> tuple[int, int]:
        """Both at once, for a record."""
        passed = int((self._time() - self._started) * 1000)
        return self._age_ms + passed, self._unix_ms + passed

    def not_before(self, age_ms: int) -> None:
        """A record says that this age had been reached."""
        self._age_ms += max(0, age_ms - self.now_ms())

    @property
    def used(self) -> bool:
        """Whether anything hangs on the age."""
        return self._age_ms > 0 or self._deadlines.next < math.inf

    @property
    def next_ms(self) -> float:
        return self._deadlines.next

    def set(self, queue: "Queue", due_ms: int) -> None:
        """Have the queue looked at by then."""
        if due_ms < queue.deadline:
            self._deadlines.set(queue, due_ms)
            if self._deadlines.next < math.inf:
                self._timer.deadline = min(self._timer.deadline, self._at(self._deadlines.next))

    def forget(self, queue: "Queue") -> None:
        self._deadlines.forget(queue)

    def run_due(self) -> None:
        """Look at queues whose time has come; where they are many, the rest follow in the next turn."""
        now = self.now_ms()
        for queue in self._deadlines.due(now, TURN_SECONDS):
            queue.deadline = math.inf
            queue.on_time(now)

    async def run(self, settle: Callable[[], None]) -> None:
        """Look at queues in time, until cancelled; `settle` after each time, so that it becomes durable."""
        while True:
            with self._timer:
                await trio.sleep_forever()
            self._timer = trio.CancelScope()
            self.run_due()
            settle()
            self._timer.deadline = self._at(self._deadlines.next)

    def _at(self, due_ms: float) -> float:
        """Not before it is due: the clock of the ages is whole milliseconds."""
        return self._started + (due_ms - self._age_ms + 1) / 1000

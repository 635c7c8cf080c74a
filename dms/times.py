"""The engine's age, and the timers of all its queues.

Times that outlive a restart are *ages*: milliseconds that this engine has run, in all its runs together.
Nothing ages while it does not run. So neither a restart nor a jump of the wall clock expires or delivers a
message early.
"""

import math
import time
from collections.abc import Callable

import structlog
import trio

from shared.queues.timers import Expiring, Timers

logger = structlog.stdlib.get_logger("brokers.dms")


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Times:
    """`clock`: monotonic seconds. `unix_ms`: read once, so that record times never go back in a run."""

    def __init__(
        self, clock: Callable[[], float] = trio.current_time, unix_ms: Callable[[], int] = _unix_ms
    ) -> None:
        self._time = clock
        self._started = clock()
        self._unix_ms = unix_ms()
        self.wall_ms = unix_ms
        """The wall clock as it is now, which may jump."""
        self._age_ms = 0
        self.timers = Timers(self.now_ms, _report_crash, self._loop_time, second=1000)

    @property
    def seconds(self) -> Callable[[], float]:
        """The clock: monotonic seconds."""
        return self._time

    def now_ms(self) -> int:
        return self._age_ms + int((self._time() - self._started) * 1000)

    def unix_ms(self) -> int:
        return self._unix_ms + int((self._time() - self._started) * 1000)

    def unix_ms_of(self, age_ms: int) -> int:
        """The Unix time at an age of this run."""
        return age_ms - self._age_ms + self._unix_ms

    def stamp(self) -> tuple[int, int]:
        """Age and Unix time, for a record."""
        passed = int((self._time() - self._started) * 1000)
        return self._age_ms + passed, self._unix_ms + passed

    def not_before(self, age_ms: int) -> None:
        """A record shows that this age had been reached."""
        self._age_ms += max(0, age_ms - self.now_ms())

    @property
    def used(self) -> bool:
        """Whether any deadline depends on the age."""
        return self._age_ms > 0 or self.timers.next < math.inf

    def wake_by(self, item: Expiring, due_ms: int) -> None:
        """Have `item` expire at `due_ms`, or earlier if that is set already."""
        if due_ms < item.deadline:
            self.timers.set(item, due_ms)

    def _loop_time(self, due_ms: float) -> float:
        """Never before it is due: ages are whole milliseconds."""
        return self._started + (due_ms - self._age_ms + 1) / 1000


def _report_crash(error: Exception) -> None:
    logger.error(
        "a queue's timer crashed: its delays and lifetimes stand still until its next message; report this",
        exc_info=error,
    )

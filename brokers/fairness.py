"""How long the loop serves one task without a pause: nobody else is served meanwhile.

trio calls `LoopWatch` before and after each step of a task. That costs half a microsecond a step, and a step
of the drivers serves for some hundred microseconds.
"""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import trio

from shared.metrics import Sample

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

LONG_SECONDS = 0.02
"""No stretch should be longer, whatever a client does."""
TOLD_SECONDS = 0.1
"""Longer ones are logged: a client notices them."""


class Task(Protocol):
    """What we want to know of trio's."""

    @property
    def name(self) -> str: ...


class LoopWatch(trio.abc.Instrument):
    """`longest_seconds`, and which task that was; how many were long."""

    def __init__(self, log: "BoundLogger", clock: Callable[[], float] = perf_counter) -> None:
        self._log = log
        self._clock = clock
        self._began = clock()
        self._serving = False
        self.longest_seconds = 0.0
        self.longest_task = ""
        self.long_count = 0

    def before_task_step(self, task: Task) -> None:
        self._began = self._clock()

    def after_task_step(self, task: Task) -> None:
        seconds = self._clock() - self._began
        if not self._serving:
            return
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_task = seconds, task.name
        if seconds > LONG_SECONDS:
            self.long_count += 1
            if seconds > TOLD_SECONDS:
                self._log.warning(
                    "one task held the loop, and everybody else waited: "
                    "where this repeats, look at what the clients of that protocol do",
                    task=task.name,
                    milliseconds=round(seconds * 1000),
                )

    def begin(self) -> None:
        """Watch from now on, anew: starting is one long stretch, and nobody is served by then."""
        self._serving, self._began = True, self._clock()
        self.longest_seconds, self.longest_task, self.long_count = 0.0, "", 0

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "loop_stretch_seconds_max",
            self.longest_seconds,
            "The longest time that one task held the loop, since the start.",
            "gauge",
            (("task", self.longest_task),),
        )
        yield Sample(
            "loop_stretches_long_total", self.long_count, f"Stretches of over {LONG_SECONDS * 1000:g} ms."
        )

"""Measures how long the loop is held without a pause, and where. Nobody is served meanwhile.

A task that wakes every 25 ms sees how late it is. A thread that finds it late looks where the loop stands
just then. That costs 0.2 % of a processor under any load. A look at each step of the loop, as in `make
trial-fairness`, would be exact, and cost 10 % of a message that comes alone.
"""

import sys
import threading
from collections.abc import Iterator
from time import perf_counter, thread_time
from types import FrameType
from typing import TYPE_CHECKING

import trio

from shared.metrics import Sample

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

BEAT_SECONDS = 0.025
LONG_SECONDS = 0.02
"""No client should hold the loop longer."""
TOLD_SECONDS = 0.1
"""Longer ones are logged: a client notices them."""
_NOT_OURS = sys.stdlib_module_names | {"trio", "outcome"}


class LoopWatch:
    """`longest_seconds`, `longest_at`: how late the loop was at most, and where. `long_count`: how often."""

    def __init__(self, log: "BoundLogger") -> None:
        self._log = log
        self._due = sys.float_info.max  # when the loop's next beat is due
        self._at = ""  # where the thread saw the loop stand while that was late
        self.longest_seconds = 0.0
        self.longest_at = ""
        self.long_count = 0

    async def run(self) -> None:
        """Until cancelled."""
        over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(over, threading.get_ident()), name="loop watch", daemon=True
        )
        watcher.start()
        try:
            while True:
                self._due = perf_counter() + BEAT_SECONDS
                began = thread_time()
                await trio.sleep(BEAT_SECONDS)
                late = perf_counter() - self._due
                at, self._at = self._at, ""
                if late > LONG_SECONDS:
                    self._was_late(late, thread_time() - began, at)
        finally:
            over.set()

    def samples(self) -> Iterator[Sample]:
        yield Sample(
            "loop_stretch_seconds_max",
            self.longest_seconds,
            "The longest time that the loop was held since the start, and where it stood.",
            "gauge",
            (("at", self.longest_at),),
        )
        yield Sample(
            "loop_stretches_long_total",
            self.long_count,
            f"Times that it was over {LONG_SECONDS * 1000:g} ms.",
        )

    def _was_late(self, seconds: float, worked: float, at: str) -> None:
        """`worked`: seconds of processor that the loop's thread had since the beat before."""
        self.long_count += 1
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_at = seconds, at
        if seconds > TOLD_SECONDS:
            self._log.warning(
                "the loop was held, and every client waited: if it repeats, look at that protocol's clients"
                if worked > TOLD_SECONDS
                else "the loop did not run, and every client waited: the machine or its disk is busy",
                milliseconds=round(seconds * 1000),
                worked=round(worked * 1000),
                at=at,
            )

    def _watch(self, over: threading.Event, loop: int) -> None:
        """In the thread."""
        while not over.wait(BEAT_SECONDS):
            if not self._at and perf_counter() - self._due > LONG_SECONDS:
                self._at = _place(sys._current_frames().get(loop))


def _place(frame: FrameType | None) -> str:
    """`dms.engine:Engine.give_back`: the innermost call of our own packages."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in _NOT_OURS:
            return f"{module}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""

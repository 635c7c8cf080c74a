"""Measures how long the loop is held without a pause, and where. Nobody is served meanwhile.

A task that wakes every 25 ms sees how late it is: of a stretch it misses as much at most. A thread that finds
the loop late looks where it stands just then. Both cost 0.2 % of a processor. To time each pass of the loop
would cost 10 % of a message that comes alone.
"""

import math
import sys
import threading
from collections.abc import Collection, Iterator
from time import perf_counter, sleep, thread_time
from types import FrameType
from typing import TYPE_CHECKING

import attrs
import trio

from shared.metrics import Sample

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

BEAT_SECONDS = 0.025
LONG_SECONDS = 0.05
"""No client should hold the loop longer."""
TOLD_SECONDS = 0.1
"""Longer ones are logged: a client notices them."""
TELL_SECONDS = 60.0
"""Between two lines of a kind: a machine that is too small is late several times a second."""
_OUTERMOST = "brokers.host.serving"
"""Where the loop's call stands: no place in our code."""


@attrs.define
class Stretches:
    """Stretches of one kind that no line of the log has told yet, and the longest of them."""

    event: str = ""
    count: int = 0
    seconds: float = 0.0
    worked: float = 0.0
    at: str = ""
    tell_at: float = -math.inf

    def add(self, seconds: float, worked: float, at: str) -> None:
        self.count += 1
        if seconds > self.seconds:
            self.seconds, self.worked, self.at = seconds, worked, at

    def tell(self, log: "BoundLogger", now: float) -> None:
        place = {"at": self.at} if self.at else {}
        log.warning(
            self.event,
            count=self.count,
            longest_milliseconds=round(self.seconds * 1000),
            worked_milliseconds=round(self.worked * 1000),
            **place,
        )
        self.count, self.seconds, self.tell_at = 0, 0.0, now + TELL_SECONDS


class LoopWatch:
    """`longest_seconds`, `longest_at`: how late the loop was at most, and where. `long_count`: how often.

    `packages`: the protocols' packages. The innermost call of one of these is where the loop stood. `lately`:
    the stretches since somebody has looked, who replaces it.
    """

    def __init__(self, log: "BoundLogger", packages: Collection[str] = ()) -> None:
        self._log = log
        self._packages = frozenset(packages)
        self._held = Stretches(
            "the loop was held for over 100 ms, and every client waited: if it repeats, look at the clients "
            "of the protocol that `at` names"
        )
        self._late = Stretches(
            "the loop did not run for over 100 ms, and every client waited: the machine or its disk is busy; "
            "give the server a processor and a disk that others do not use up"
        )
        self._tell_at = math.inf  # when the next of these is to be told
        self._due = math.inf  # when the loop should be back here
        self._worked = 0.0  # seconds of processor that its thread had had when that was set
        self._at = ""  # where the thread saw the loop stand while that was late
        self._over = False
        self.lately = Stretches()
        self.longest_seconds = 0.0
        self.longest_at = ""
        self.long_count = 0

    async def run(self) -> None:
        """Watch the loop, until cancelled."""
        args = (threading.get_ident(),)
        threading.Thread(target=self._watch, args=args, name="loop watch", daemon=True).start()
        try:
            while True:
                self._worked = thread_time()
                self._due = perf_counter() + BEAT_SECONDS
                await trio.sleep(BEAT_SECONDS)
                self._look()
        finally:
            self._over = True

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

    def _look(self) -> None:
        """The loop runs this task again: count how late it is."""
        late = perf_counter() - self._due
        at, self._at = self._at, ""
        if late > LONG_SECONDS:
            self.was_late(late, thread_time() - self._worked, at)
        if self._due > self._tell_at:
            self.tell(perf_counter())

    def was_late(self, seconds: float, worked: float, at: str) -> None:
        """`worked`: seconds of processor that the loop's thread had meanwhile."""
        self.long_count += 1
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_at = seconds, at
        if seconds > TOLD_SECONDS:
            stretches = self._held if worked > TOLD_SECONDS else self._late
            stretches.add(seconds, worked, at)
            self.lately.add(seconds, worked, at)
            self._tell_at = min(self._tell_at, stretches.tell_at)

    def tell(self, now: float) -> None:
        """Log what is to be told by now, on the clock of `perf_counter`."""
        self._tell_at = math.inf
        for stretches in (self._held, self._late):
            if stretches.count and now > stretches.tell_at:
                stretches.tell(self._log, now)
            elif stretches.count:
                self._tell_at = min(self._tell_at, stretches.tell_at)

    def _watch(self, loop: int) -> None:
        """In the thread."""
        while not self._over:
            sleep(BEAT_SECONDS)
            if not self._at and perf_counter() - self._due > LONG_SECONDS:
                self._at = place_in(sys._current_frames().get(loop), self._packages)


def place_in(frame: FrameType | None, packages: Collection[str]) -> str:
    """`dms.engine:Engine.give_back`: the innermost call of these packages; "" if it is the loop's own."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == _OUTERMOST:
            return ""
        if module.partition(".")[0] in packages:
            return f"{module}:{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""

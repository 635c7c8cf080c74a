"""Schedules in the simulation: each of their times comes once, and of those that were missed the last.

The model knows the wall clock of each life in *stretches*: from a start, or from where the clock was set, to
the next of these. A time may come that lies in a stretch, or is the last before one. It must come where it
lies well within a stretch, or is the last of those that passed while no server ran. In the order of messages
times go back only where the clock was set back.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import attrs

from tests.support.promises import BrokenPromiseError
from tests.trials.sim.world import World

CLOCK = "clock"
"""The queue."""
PERIODS_MS = {b"every": 40, b"cron": 60_000}
"""By the body of a schedule's messages: its times are the multiples of this."""
OPTIONS: Mapping[str, Any] = {
    "depth": 100_000,
    "schedule": [{"every": "40ms", "body": "every"}, {"cron": "* * * * *", "body": "cron"}],
}
_BACK_MS = {b"every": 1000, b"cron": 3 * 3_600_000}
"""Where the clock is set back by more, times come again (QUEUES.md says so of crond)."""
LOOK_MS = 20
"""The server looks at the wall clock so often (`served.py` makes it so)."""
LATE_MS = 3 * LOOK_MS
"""What is due comes within it, and a clock that was set is noticed."""


@attrs.define
class Stretch:
    """`serving`: from then on times must come; inf: the server does not serve yet. `epochs`: by body, how
    often the clock was set back before so far that times come again."""

    first: int
    epochs: Mapping[bytes, int]
    serving: float = math.inf
    last: float = math.inf
    safe: float = -math.inf
    """What came by then is on the disk."""


class SchedulesModel:
    """What all clients know of the queue `CLOCK`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stretches: list[Stretch] = []
        self._made_ms = 0
        self._made_at: int | None = None
        """In which stretch the queue was made, and when; None: that it is there is not known."""
        self._times: dict[int, tuple[bytes, int]] = {}
        """By sequence: the body, and the time."""
        self._came: set[tuple[bytes, int]] = set()
        self.records_checked = 0

    # -- what the wall clock does

    def begins(self) -> None:
        """A server is started."""
        before = self._stretches[-1] if self._stretches else None
        self._begin(self._world.wall_ms(), before)

    def set(self, before_ms: int, after_ms: int) -> None:
        """The clock is set while a server runs."""
        self._close(before_ms, LATE_MS)
        self._begin(after_ms, self._stretches[-1])
        self._stretches[-1].serving = after_ms + LATE_MS

    def serves(self) -> None:
        self._stretches[-1].serving = self._world.wall_ms() + LATE_MS

    def ends(self, late_ms: float) -> None:
        """The server is gone; what was due so long before is on the disk."""
        self._close(self._world.wall_ms(), LATE_MS + late_ms)

    def made(self) -> None:
        """The queue is there."""
        if self._made_at is None:
            self._made_at, self._made_ms = len(self._stretches) - 1, self._world.wall_ms()

    def _begin(self, first: int, before: Stretch | None) -> None:
        back = max((each.last for each in self._stretches), default=first) - first
        epochs = before.epochs if before is not None else dict.fromkeys(PERIODS_MS, 0)
        self._stretches.append(
            Stretch(first, {body: epoch + (back > _BACK_MS[body]) for body, epoch in epochs.items()})
        )

    def _close(self, last: int, late_ms: float) -> None:
        self._stretches[-1].last, self._stretches[-1].safe = last, last - late_ms

    # -- what comes

    def delivered(self, body: bytes, about: Mapping[str, Any]) -> None:
        self.records_checked += 1
        seq, time = about["seq"], about["headers"]["scheduled"]
        if body not in PERIODS_MS or time % PERIODS_MS[body]:
            raise BrokenPromiseError(f"{body!r} comes for {time}, which is no time of a schedule")
        if seq in self._times:
            if self._times[seq] != (body, time):
                raise BrokenPromiseError(f"message {seq} was {self._times[seq]}, and is {body!r} for {time}")
            return
        self._times[seq] = body, time
        self._came.add((body, time))
        if not any(self._may_come(stretch, body, time) for stretch in self._stretches):
            raise BrokenPromiseError(
                f"{body!r} comes for {time}, which had not come, or was missed with others"
            )
        times = [time for _, (of, time) in sorted(self._times.items()) if of == body]
        back = sum(after <= before for before, after in pairwise(times))
        if back > self._stretches[-1].epochs[body]:
            raise BrokenPromiseError(f"{body!r} comes for {time} again, or behind a later time")

    def _may_come(self, stretch: Stretch, body: bytes, time: int) -> bool:
        last = min(stretch.last, self._world.wall_ms()) if stretch is self._stretches[-1] else stretch.last
        return stretch.first < time + PERIODS_MS[body] and time <= last

    def missing(self) -> Iterator[str]:
        """What should have come by now, behind a start, when all that is there was looked at."""
        if self._made_at is None:
            return
        *before, now = self._stretches
        for body, period in PERIODS_MS.items():
            for stretch in before[self._made_at :]:
                if stretch.serving < stretch.safe:
                    first, last = math.ceil(stretch.serving / period), int(stretch.safe / period)
                    for time in range(first * period, last * period + 1, period):
                        # The loop may be in a sync of its own meanwhile: then the next one comes alone.
                        if self._came.isdisjoint({(body, time), (body, time + period)}):
                            yield f"{body!r} has not come for {time}"
            missed = now.first // period * period
            certain = missed > self._made_ms and all(each.last <= now.first for each in before)
            if certain and not any(of == body and time >= missed for of, time in self._came):
                yield f"{body!r} has not come for {missed}, the last that was missed"

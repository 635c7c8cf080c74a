"""When consumers must have acknowledged what they were given (`x-consumer-timeout`), or else their channel
closes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from shared.queues.due_times import DueTimes

if TYPE_CHECKING:
    from shared.queues.timers import Timers

GRAINS = 20
"""Deliveries of nearly the same time share a deadline, which is late by at most this part of the time."""


@attrs.define(eq=False)
class ConsumerTimeouts:
    """Those of one channel. It asks for the lowest tag that somebody holds, if there is one, and tells when
    the milliseconds that somebody was given are over."""

    _timers: Timers
    _first_held: Callable[[object], int | None]
    _late: Callable[[int], None]
    deadline: float = math.inf
    scheduled: float = math.inf
    _times: dict[object, tuple[int, DueTimes]] = attrs.Factory(dict)

    def delivered(self, holder: object, timeout_ms: int, before: int) -> None:
        """Somebody holds messages with tags below that, given now."""
        found = self._times.get(holder)
        if found is None:
            found = self._times[holder] = timeout_ms, DueTimes()
        grain = timeout_ms // GRAINS
        found[1].add(self._now_ms() + timeout_ms, before, grain)
        self._arm()

    def has_time(self, holder: object) -> bool:
        """Whether somebody holds what is to be acknowledged in time."""
        return holder in self._times and self._first_held(holder) is not None

    def begin_anew(self, holder: object) -> None:
        """Have all the time again for what somebody holds, who has a time."""
        timeout_ms, times = self._times[holder]
        before = times[-1][1]
        times.clear()
        times.add(self._now_ms() + timeout_ms, before)
        self._arm()

    def end(self) -> None:
        """The channel ends."""
        self._times.clear()
        self._timers.forget(self)

    def expire(self, now: float) -> None:
        """The timers': some time is over."""
        now_ms = self._now_ms()
        for holder, (timeout_ms, times) in [*self._times.items()]:
            while times and times[0][0] <= now_ms:
                before = times.popleft()[1]
                held = self._first_held(holder)
                if held is not None and held < before:
                    self._late(timeout_ms)
                    return
            if not times:
                del self._times[holder]
        self._arm()

    def _now_ms(self) -> int:
        return int(self._timers.now() * 1000)

    def _arm(self) -> None:
        due_ms = min([times[0][0] for _, times in self._times.values() if times], default=math.inf)
        deadline = due_ms / 1000 + 0.001 if due_ms < math.inf else math.inf  # ages are rounded down
        if deadline != self.deadline:
            self._timers.set(self, deadline)

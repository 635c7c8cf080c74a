"""How fast messages come to every queue and topic and leave it, and how long the oldest is there.

Nothing is counted on a message's way. Queues number what comes to them, and those numbers are read once a
second, in turns; less often above 5,000 queues. What came between two readings is dated by the second one. A
queue's marks are thinned as they grow old, so an age is right to a reading, or to an eighth of itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import thread_time
from typing import Any

import attrs
import structlog
import trio

from shared.objects import Objects

BEAT_SECONDS = 1.0
SHARE_MAX = 100
"""A reading is followed by so many times its own time: it takes a hundredth of a processor at most."""
IDLE_SHARE_MAX = 400
"""The same where nothing was new: with 50,000 idle queues every 20 seconds, 0.25 % of a processor."""
WINDOW_SECONDS = 5.0
"""A rate is that of one to two of these."""
LOOKED_AT_ONCE = 500
"""Objects that are read before others have their turn: half a millisecond."""
MARKS_LEAST = 8
GRAIN = 16
"""Of two marks that are this part of their age apart one is enough: a month of readings leaves some 200."""

Everything = Callable[[], Sequence[tuple[str, Objects]]]


@attrs.define(eq=False)
class _Flow:
    """What was read of one object. `older`, `newer`: what had come and left by the ends of two windows.

    `marks`: by when so much had come, the oldest first.
    """

    came: int
    older: tuple[int, int]
    newer: tuple[int, int]
    marks: list[tuple[float, int]]
    room: int = 0
    """So many marks may be there before they are thinned."""

    def mark(self, now: float, came: int, left: int) -> None:
        """Note how many messages have come by now, and how many have left."""
        self.came = came
        self.marks.append((now, came))
        if len(self.marks) > self.room:
            kept: list[tuple[float, int]] = []
            for at, count in self.marks:
                if count > left and (not kept or at - kept[-1][0] >= (now - at) / GRAIN):
                    kept.append((at, count))
            self.marks = kept or self.marks[-1:]
            self.room = 2 * len(self.marks) + MARKS_LEAST


class Flows:
    """Reads everything that has a flow; `run` does so until cancelled."""

    def __init__(
        self,
        everything: Everything,
        log: structlog.stdlib.BoundLogger,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._everything = everything
        self._log = log
        self._failed: set[tuple[str, str]] = set()
        self._clock = clock
        self._flows: dict[Any, _Flow] = {}
        self._older_at: float | None = None
        self._newer_at: float | None = None

    async def run(self) -> None:
        """Read once a second; less often where there is very much."""
        while True:
            spent, news = await self.read()
            await trio.sleep(max(BEAT_SECONDS, spent * (SHARE_MAX if news else IDLE_SHARE_MAX)))

    async def read(self) -> tuple[float, bool]:
        """Read all, in turns; the processor's seconds that this took, and whether anything was new."""
        now = self._clock()
        ends = self._newer_at is None or now - self._newer_at >= WINDOW_SECONDS
        found: dict[Any, _Flow] = {}
        spent, news = 0.0, False
        for protocol, objects in self._everything():
            totals = objects.totals
            if totals is None or (protocol, objects.kind.name) in self._failed:
                continue
            try:
                items = objects.items()
                for at in range(0, len(items), LOOKED_AT_ONCE):
                    began = thread_time()
                    news |= self._read_some(items[at : at + LOOKED_AT_ONCE], totals, found, now, ends)
                    spent += thread_time() - began
                    await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
            except Exception as error:
                self._failed.add((protocol, objects.kind.name))
                self._log.error(
                    "a protocol cannot count what passes: its lists have no rates, all else goes on; report "
                    "this bug",
                    protocol=protocol,
                    list=objects.kind.name,
                    exc_info=error,
                )
        self._flows = found
        if ends:
            self._older_at, self._newer_at = self._newer_at, now
        return spent, news

    def with_rates(self, objects: Objects) -> Objects:
        """The same, whose rows have `in_rate` and `out_rate`, and `oldest_seconds` where they have none."""
        if objects.totals is None:
            return objects
        totals, row = objects.totals, objects.row
        since = self._newer_at if self._older_at is None else self._older_at

        def rate(found: Any, *, leaving: bool) -> float | None:
            flow = self._flows.get(found)
            if flow is None or since is None:
                return None
            came, left, _ = totals(found)
            passed = (left if leaving else came) - flow.older[leaving]
            if passed <= 0:
                return 0.0
            seconds = self._clock() - since
            return round(passed / seconds, 3) if seconds > 0 else None

        def oldest(found: Any) -> float | None:
            if own is not None and (known := own(found)) is not None:
                return float(known)
            number = totals(found)[2]
            if number is None:
                return None
            flow = self._flows.get(found)
            return 0.0 if flow is None else _age(flow, number, self._clock())

        own = objects.values.get("oldest_seconds")
        values: Mapping[str, Callable[[Any], float | None]] = {
            "in_rate": partial(rate, leaving=False),
            "out_rate": partial(rate, leaving=True),
            "oldest_seconds": oldest,
        }

        def fuller(found: Any) -> Mapping[str, Any] | None:
            plain = row(found)
            return (
                None if plain is None else {**plain, **{name: read(found) for name, read in values.items()}}
            )

        return attrs.evolve(objects, row=fuller, values={**objects.values, **values})

    def _read_some(
        self,
        items: Sequence[Any],
        totals: Callable[[Any], tuple[int, int, int | None]],
        found: dict[Any, _Flow],
        now: float,
        ends: bool,
    ) -> bool:
        """Whether anything was new."""
        flows, first, news = self._flows, self._newer_at is None, False
        for each in items:
            came, left, _ = totals(each)
            flow = flows.get(each)
            if flow is None:
                news = True
                both = came, left
                # What is there when the server starts came before: nobody knows when.
                flow = _Flow(came, both, both, [(-math.inf if first else now, came)])
            else:
                if came != flow.came:
                    news = True
                    flow.mark(now, came, left)
                if ends:
                    flow.older = flow.newer
                    if (came, left) != flow.newer:
                        news = True
                        flow.newer = came, left
            found[each] = flow
        return news


def _age(flow: _Flow, oldest: int, now: float) -> float | None:
    """How long the message with this number, counted as what came is, has been there."""
    for at, came in flow.marks:
        if came > oldest:
            return round(now - at, 3) if at > -math.inf else None
    return 0.0  # it came after the last reading

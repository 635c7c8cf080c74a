"""The rates in and out of every queue and topic, and the ages of its oldest message and its oldest delivery.

The path of a message counts nothing. Queues number their messages, and `Flows` reads those numbers once a
second, in slices; less often above 5,000 queues. A message that came between two readings gets the time of
the second. Readings are thinned as they age, so an age is exact to one reading or to an eighth of itself.
Deliveries are numbered, too, and read by who holds them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import thread_time
from typing import Any

import attrs
import structlog
import trio

from shared.objects import Objects, ObjectsByProtocol
from shared.task_turns import TaskTurn
from shared.turns import batched

BEAT_SECONDS = 1.0
SHARE_MAX = 100
"""The pause after a reading, in multiples of the reading's CPU time: at most 1 % of one processor."""
WINDOW_SECONDS = 5.0
"""A rate is measured over one to two windows."""
READINGS_LEAST = 8
GRAIN = 16
"""Readings closer together than 1/16 of their age are thinned: a month of readings leaves some 200."""


@attrs.define(eq=False)
class _Flow:
    """The readings of one object. `older`, `newer`: its counts of messages in and out at the ends of two
    windows.

    `readings`: (time, number of messages in by then), the oldest first.
    """

    messages_in: int
    older: tuple[int, int]
    newer: tuple[int, int]
    readings: list[tuple[float, int]]
    room: int = 0
    """Readings are thinned when there are more than this."""

    def add_reading(self, now: float, messages_in: int, messages_out: int) -> None:
        """Note how many messages have come in by now, and how many have left."""
        self.messages_in = messages_in
        self.readings.append((now, messages_in))
        if len(self.readings) > self.room:
            kept: list[tuple[float, int]] = []
            for at, count in self.readings:
                if count > messages_out and (not kept or at - kept[-1][0] >= (now - at) / GRAIN):
                    kept.append((at, count))
            self.readings = kept or self.readings[-1:]
            self.room = 2 * len(self.readings) + READINGS_LEAST


@attrs.define(eq=False)
class Flows:
    """The rates of all queues and topics; `run` reads them until cancelled."""

    _everything: Callable[[], ObjectsByProtocol]
    _log: structlog.stdlib.BoundLogger
    _clock: Callable[[], float] = trio.current_time
    _failed: set[tuple[str, str]] = attrs.field(factory=set, init=False)
    _flows: dict[Any, _Flow] = attrs.field(factory=dict, init=False)
    _held: dict[Any, _Flow] = attrs.field(factory=dict, init=False)
    """The readings of each holder's deliveries."""
    _held_since: dict[Any, float] = attrs.field(factory=dict, init=False)
    """By queue and by consumer, when the oldest delivery was made that is held."""
    _older_at: float | None = attrs.field(default=None, init=False)
    _newer_at: float | None = attrs.field(default=None, init=False)

    async def run(self) -> None:
        """Read once a second; less often with very many objects."""
        while True:
            spent = await self.read()
            await trio.sleep(max(BEAT_SECONDS, SHARE_MAX * spent))

    async def read(self) -> float:
        """Read all objects, in turns with other tasks. Returns the CPU seconds it took."""
        now = self._clock()
        ends = self._newer_at is None or now - self._newer_at >= WINDOW_SECONDS
        flows: dict[Any, _Flow] = {}
        held: dict[Any, _Flow] = {}
        since: dict[Any, float] = {}
        spent = 0.0
        turn = TaskTurn()
        for protocol, objects in self._everything():
            totals = objects.totals
            if totals is None or (protocol, objects.kind.name) in self._failed:
                continue
            try:
                for batch in batched(objects.items()):
                    began = thread_time()
                    self._read_some(batch, totals, flows, now, ends)
                    spent += thread_time() - began
                    if turn.over(len(batch)):
                        await turn.others()
                began = thread_time()
                for holder, given, oldest in objects.holders() if objects.holders is not None else ():
                    held[holder] = self._read_held(holder, given, oldest, since, now)
                    if turn.over_now():
                        spent += thread_time() - began
                        await turn.others()
                        began = thread_time()
                spent += thread_time() - began
            except Exception as error:
                self._failed.add((protocol, objects.kind.name))
                self._log.error(
                    "the counts of a protocol could not be read: its lists have no rates, all else works; "
                    "report this bug",
                    protocol=protocol,
                    list=objects.kind.name,
                    exc_info=error,
                )
        self._flows, self._held, self._held_since = flows, held, since
        if ends:
            self._older_at, self._newer_at = self._newer_at, now
        return spent

    def with_rates(self, objects: Objects) -> Objects:
        """The objects with rows that have `in_rate`, `out_rate` and `held_seconds` too, and `oldest_seconds`
        where they lack it."""
        if objects.totals is None:
            return objects
        totals, row = objects.totals, objects.row
        since = self._newer_at if self._older_at is None else self._older_at

        def rate(found: Any, *, leaving: bool) -> float | None:
            flow = self._flows.get(found)
            if flow is None or since is None:
                return None
            messages_in, messages_out, _ = totals(found)
            passed = (messages_out if leaving else messages_in) - flow.older[leaving]
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

        count_held = objects.values.get("held")

        def held(found: Any) -> float | None:
            at = self._held_since.get(found)
            if at is None or count_held is None or not count_held(found):
                return None
            return round(self._clock() - at, 3)

        own = objects.values.get("oldest_seconds")
        values: Mapping[str, Callable[[Any], float | None]] = {
            "in_rate": partial(rate, leaving=False),
            "out_rate": partial(rate, leaving=True),
            "oldest_seconds": oldest,
            "held_seconds": held,
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
    ) -> None:
        flows, first = self._flows, self._newer_at is None
        for each in items:
            messages_in, messages_out, _ = totals(each)
            flow = flows.get(each)
            if flow is None:
                both = messages_in, messages_out
                # Messages that are there at the start came earlier, at an unknown time.
                flow = _Flow(messages_in, both, both, [(-math.inf if first else now, messages_in)])
            else:
                if messages_in != flow.messages_in:
                    flow.add_reading(now, messages_in, messages_out)
                if ends:
                    flow.older, flow.newer = flow.newer, (messages_in, messages_out)
            found[each] = flow

    def _read_held(
        self, holder: Any, given: int, oldest: Mapping[Any, int], since: dict[Any, float], now: float
    ) -> _Flow:
        flow = self._held.get(holder)
        if flow is None:
            flow = _Flow(given, (0, 0), (0, 0), [(now, given)])
        elif given != flow.messages_in:
            flow.add_reading(now, given, min(oldest.values(), default=given))
        for owner, number in oldest.items():
            since[owner] = min(since.get(owner, now), now - (_age(flow, number, now) or 0.0))
        return flow


def _age(flow: _Flow, oldest: int, now: float) -> float | None:
    """Seconds since the message with this number, as counted by the queue, came in."""
    for at, messages_in in flow.readings:
        if messages_in > oldest:
            return round(now - at, 3) if at > -math.inf else None
    return 0.0  # the message came after the last reading

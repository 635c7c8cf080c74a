"""What needs a person: one list, for the page, the API, `brokers status` and the metrics.

`brokers.admin.troubles` has the kinds of trouble, an entry each. `Attention` reads the server and the lists
of objects every two seconds, in turns with other tasks; less often with very many objects. A trouble is in
the list once it has been found for 10 s, by all readings of that time. So nothing is shown that heals by
itself within 10 s.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from time import thread_time
from typing import Any

import attrs
import structlog
import trio

from brokers.admin.troubles import (
    KINDS,
    TROUBLES,
    Advice,
    ObjectReading,
    ObjectTrouble,
    ServerReading,
    ServerTrouble,
    Tally,
    Trends,
)
from brokers.settings.sections import AttentionSettings
from shared.metrics import Sample
from shared.objects import ATTENTION, Objects, ObjectsByProtocol, key_of, time_text
from shared.task_turns import TaskTurn
from shared.turns import batched

HOLD_SECONDS = 10.0
BEAT_SECONDS = 2.0
SHARE_MAX, BEAT_SECONDS_MAX = 200, 60.0
"""The pause after a reading, in multiples of the reading's CPU time: at most 0.5 % of one processor. And the
longest pause."""
ROWS_MAX = 1000
"""Troubles of one kind that are followed; further ones are in no list and no count."""
FEW = 5
"""Troubles of one kind in the short list."""

Row = Mapping[str, Any]


@attrs.define(eq=False)
class Attention:
    """The list; `run` keeps it current until cancelled.

    `everything`: all objects. `server`: reads the server itself. `wall`, `clock`: seconds, of 1970 and of the
    loop.
    """

    _everything: Callable[[], ObjectsByProtocol]
    _server: Callable[[], ServerReading]
    _log: structlog.stdlib.BoundLogger
    settings: AttentionSettings
    _wall: Callable[[], float]
    _clock: Callable[[], float] = trio.current_time
    rows: Sequence[Row] = attrs.field(default=(), init=False)
    """The most severe first."""
    few: Mapping[str, Any] = attrs.field(factory=lambda: {"count": 0, "items": []}, init=False)
    """A few rows of each kind (`items`), and how many there are in all (`count`)."""
    _since: dict[tuple[str, str], tuple[float, float]] = attrs.field(factory=dict, init=False)
    """By kind and object since when a trouble has been found, by both clocks."""
    _trends: Trends = attrs.field(factory=Trends, init=False)
    _tally: Tally = attrs.field(factory=Tally, init=False)
    _failed: set[str] = attrs.field(factory=set, init=False)

    async def run(self) -> None:
        while True:
            spent = await self.read()
            await trio.sleep(min(max(BEAT_SECONDS, SHARE_MAX * spent), BEAT_SECONDS_MAX))

    async def read(self) -> float:
        """Read everything, in turns with other tasks. Returns the CPU seconds it took."""
        now = self._clock()
        found = _Found(self._since, now, self._wall())
        began = thread_time()
        self._tally.begin(now)
        self._trends.begin()
        server = self._server()
        for trouble in TROUBLES:
            if isinstance(trouble, ServerTrouble):
                self._read_server(trouble, server, found)
        spent = thread_time() - began
        for protocol, objects in self._everything():
            over = [
                each for each in TROUBLES if isinstance(each, ObjectTrouble) and each.over is objects.kind
            ]
            if over:
                reading = ObjectReading(protocol, objects, self.settings, self._trends, now)
                spent += await self._read_objects(over, reading, found)
        self._since = found.since
        self.rows = _by_severity(chain(*found.rows.values()))
        few = _by_severity(row for rows in found.rows.values() for row in _by_severity(rows)[:FEW])
        self.few = {"count": len(self.rows), "items": few}
        return spent

    @property
    def objects(self) -> Objects:
        return Objects(
            ATTENTION,
            lambda: self.rows,
            lambda row: key_of(row["kind"], row["object"]),
            lambda parts: next((row for row in self.rows if (row["kind"], row["object"]) == (*parts,)), None),
            lambda row: row,
            values={column.name: itemgetter(column.name) for column in ATTENTION.columns},
        )

    def samples(self) -> Iterator[Sample]:
        counts = Counter(row["kind"] for row in self.rows)
        for kind in KINDS:
            text = "How many things need a person: `brokers status` names them."
            yield Sample("attention", counts[kind], text, "gauge", (("kind", kind),))

    def _read_server(self, trouble: ServerTrouble, server: ServerReading, found: "_Found") -> None:
        if trouble.name in self._failed:
            return
        try:
            for advice in trouble.find(server, self._tally):
                if found.lasts(trouble.name, advice.of):
                    found.add(trouble.name, advice.of, trouble.link, advice)
        except Exception as error:
            self._report(trouble.name, error)

    async def _read_objects(
        self, over: Sequence[ObjectTrouble], reading: ObjectReading, found: "_Found"
    ) -> float:
        """Look for some kinds of trouble in all objects of a list. Returns the CPU seconds it took."""
        where = f"{reading.protocol}/{reading.objects.kind.name}"
        spent = 0.0
        turn = TaskTurn()
        try:
            for batch in batched(() if where in self._failed else reading.objects.items()):
                began = thread_time()
                for reading.item in batch:
                    for trouble in over:
                        if not trouble.when(reading) or not found.lasts(trouble.name, reading.name):
                            continue
                        if trouble.unless is None or not await trouble.unless(reading):
                            found.add(trouble.name, reading.name, reading.link, trouble.say(reading))
                spent += thread_time() - began
                if turn.over(len(batch)):
                    await turn.others()
        except Exception as error:
            self._report(where, error)
        return spent

    def _report(self, where: str, error: Exception) -> None:
        self._failed.add(where)
        self._log.error(
            "it could not be found out what there needs a person: that is in no list, all else works; report "
            "this bug",
            of=where,
            exc_info=error,
        )


def _by_severity(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=itemgetter("severity"))


@attrs.define(eq=False)
class _Found:
    """What one reading finds. `before`: the troubles of the reading before it, and since when they last."""

    before: Mapping[tuple[str, str], tuple[float, float]]
    now: float
    wall: float
    since: dict[tuple[str, str], tuple[float, float]] = attrs.Factory(dict)
    rows: dict[str, list[Row]] = attrs.field(init=False)
    _count: Counter[str] = attrs.Factory(Counter)

    @rows.default
    def _no_rows(self) -> dict[str, list[Row]]:
        return {kind: [] for kind in KINDS}

    def lasts(self, kind: str, name: str) -> bool:
        """Note a trouble. Returns whether it has lasted for `HOLD_SECONDS`."""
        self._count[kind] += 1
        if self._count[kind] > ROWS_MAX:
            return False
        since = self.since[kind, name] = self.before.get((kind, name), (self.now, self.wall))
        return self.now - since[0] >= HOLD_SECONDS

    def add(self, kind: str, name: str, link: str, advice: Advice) -> None:
        since = time_text(self.since[kind, name][1] * 1000)
        self.rows[kind].append(
            {
                "kind": kind,
                "object": name,
                "severity": advice.severity,
                "since": since,
                "means": advice.means,
                "advice": advice.advice,
                "link": link,
            }
        )

"""Charts of single objects over 15 minutes, 3 hours and a day, in memory and in a file.

The charted columns of all objects are read every five seconds, in turns; less often where that would take
more than 0.5 % of a processor. A reading is a *step* of the first level; the means of a minute are one of the
second, and those of eight minutes one of the third. A step has the objects that did something, `OBJECTS_MAX`
at most, by a digest of their names: the others did nothing, or too little.

The file has all steps, one behind the other, and is replaced in a thread once a minute. A step has its own
CRC: damage costs it and those behind it. Nothing waits for the disk: what a crash loses is that minute.
"""

import math
import struct
import time
import zlib
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import nlargest
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

from brokers.admin.listing import reader
from shared.actions import HISTORY, SPANS
from shared.local_path import read_file, replace_file
from shared.objects import ObjectKind, Objects, ObjectsByProtocol, a_text, time_text
from shared.storage.threads import Threads
from shared.task_turns import TaskTurn

NAME = "charts"
STEPS = 180
"""Steps of each level."""
LEVELS: Mapping[str, float] = dict(zip(SPANS, (5.0, 60.0, 480.0), strict=True))
"""By its span, the seconds of a step."""
OBJECTS_MAX = 500
"""Objects of a step: 5 MiB for all levels."""
LINES_MAX = 3
"""Charts of an object."""
SHARE_MAX = 200
"""The pause after a reading, in multiples of its CPU time."""
WRITE_SECONDS = 60.0
MAGIC = b"BROKERS CHARTS 2"
_HEAD = struct.Struct("<IIHBB")
"""The CRC of what follows it, Unix seconds, objects, whether all that did something are there, the level."""
KEY_BYTES, VALUE_BYTES = 8, 4

Values = Sequence[float]
"""One for each chart of an object; NaN: unknown."""


@attrs.frozen
class ChartStep:
    """What objects did until `at`, Unix seconds. `whole`: those that are not there did nothing."""

    at: int
    keys: "array[int]"
    values: "array[float]"
    whole: bool

    @classmethod
    def of(cls, at: float, values: Mapping[int, Values]) -> "ChartStep":
        picked = sorted(nlargest(OBJECTS_MAX, values, key=lambda key: max(values[key])))
        lines = (each for key in picked for each in (*values[key], *(0.0,) * LINES_MAX)[:LINES_MAX])
        return cls(int(at), array("Q", picked), array("f", lines), len(values) <= OBJECTS_MAX)

    def find(self, key: int, count: int) -> Sequence[float | None]:
        """The values of one object."""
        place = bisect_left(self.keys, key)
        if place == len(self.keys) or self.keys[place] != key:
            return [0.0 if self.whole else None] * count
        found = self.values[place * LINES_MAX : place * LINES_MAX + count]
        return [None if math.isnan(value) else value for value in found]

    def pack(self, level: int) -> bytes:
        rest = _HEAD.pack(0, self.at, len(self.keys), self.whole, level)[4:] + self.keys.tobytes()
        rest += self.values.tobytes()
        return zlib.crc32(rest).to_bytes(4, "little") + rest

    @classmethod
    def unpack_all(cls, data: bytes) -> Iterator[tuple[int, "ChartStep"]]:
        """Yield levels and steps, up to the first one that is damaged."""
        place = 0
        while place + _HEAD.size <= len(data):
            crc, at, count, whole, level = _HEAD.unpack_from(data, place)
            keys_at = place + _HEAD.size
            values_at = keys_at + count * KEY_BYTES
            end = values_at + count * LINES_MAX * VALUE_BYTES
            if zlib.crc32(data[place + 4 : end]) != crc:
                return
            keys, values = array("Q", data[keys_at:values_at]), array("f", data[values_at:end])
            yield level, cls(at, keys, values, bool(whole))
            place = end


@attrs.define(eq=False)
class ChartLevel:
    """The steps of one span, of `seconds` each, and what has come of the next one."""

    seconds: float
    steps: deque[ChartStep] = attrs.field(factory=lambda: deque(maxlen=STEPS))
    _sums: dict[int, list[float]] = attrs.field(factory=dict)
    _count: int = 0
    _began: float = 0.0

    def gather(self, at: float, values: Mapping[int, Values], seconds: float) -> Mapping[int, Values] | None:
        """Add a step of the level below, of so many seconds. Returns the means, once they are a step."""
        if not self._count:
            self._began = at - seconds
        self._count += 1
        for key, lines in values.items():
            sums = self._sums.setdefault(key, [0.0] * len(lines))
            for line, value in enumerate(lines):
                sums[line] += value
        if at - self._began < self.seconds - 1:
            return None
        means = {key: [each / self._count for each in sums] for key, sums in self._sums.items()}
        self._sums, self._count = {}, 0
        return means


class Charts:
    """The charts of all objects. `run` reads them, until cancelled."""

    def __init__(
        self,
        everything: Callable[[], ObjectsByProtocol],
        path: Path,
        log: structlog.stdlib.BoundLogger,
        wall: Callable[[], float] = time.time,
        in_thread: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        self._everything = everything
        self._path = path
        self._log = log
        self._wall = wall
        self._in_thread = in_thread or Threads()
        self._totals: dict[int, tuple[float, Values]] = {}
        """Of columns that grow: when they were read last, and what they were."""
        self._told = False
        self.levels = {span: ChartLevel(seconds) for span, seconds in LEVELS.items()}

    async def run(self) -> None:
        """Read the file, then the objects."""
        await self.load()
        written = trio.current_time()
        try:
            while True:
                spent = await self.read()
                if trio.current_time() - written >= WRITE_SECONDS:
                    written = trio.current_time()
                    await self._in_thread(self._write, self._steps())
                await trio.sleep(max(LEVELS["15m"], SHARE_MAX * spent))
        finally:
            self._write(self._steps())

    async def load(self) -> None:
        """Take over what the file has, but what is older than its span, or of a clock that was ahead."""
        data, now = await self._in_thread(self._read_file), self._wall()
        levels = dict(enumerate(self.levels.values()))
        for number, step in ChartStep.unpack_all(data.removeprefix(MAGIC) if data.startswith(MAGIC) else b""):
            level = levels.get(number)
            if level is not None and now - STEPS * level.seconds <= step.at <= now:
                level.steps.append(step)

    async def read(self) -> float:
        """Read all objects once, in turns. Returns the CPU seconds it took."""
        began, now = time.thread_time(), trio.current_time()
        spent = 0.0
        values: dict[int, Values] = {}
        totals: dict[int, tuple[float, Values]] = {}
        turn = TaskTurn()
        for protocol, objects in self._everything():
            if not objects.kind.charts:
                continue
            for found in objects.items():
                key = _key(objects.kind, protocol, objects.name(found))
                lines = self._lines(protocol, objects, found, key, now, totals)
                if any(lines):
                    values[key] = lines
                if turn.over():
                    spent += time.thread_time() - began
                    await turn.others()
                    began = time.thread_time()
        self._totals = totals
        self._add(self._wall(), values)
        return spent + time.thread_time() - began

    def _lines(
        self,
        protocol: str,
        objects: Objects,
        found: Any,
        key: int,
        now: float,
        totals: dict[int, tuple[float, Values]],
    ) -> Values:
        charts = objects.kind.charts
        plain = {chart.column: objects.values.get(chart.column) for chart in charts}
        if any(read is None for read in plain.values()):
            row = objects.row(found) or {}
            read = [row.get(chart.column) for chart in charts]
        else:
            read = [reader(protocol, objects, chart.column)(found) for chart in charts]
        lines = [math.nan if value is None else float(value) for value in read]
        if any(chart.grows for chart in charts):
            totals[key] = now, lines
            at, before = self._totals.get(key, (now, lines))
            lines = [
                max(value - old, 0.0) / max(now - at, 1.0) if chart.grows else value
                for chart, value, old in zip(charts, lines, before, strict=True)
            ]
        return lines

    def _add(self, at: float, values: Mapping[int, Values]) -> None:
        """A reading; and what is a step of the levels above now."""
        means: Mapping[int, Values] = values
        below: ChartLevel | None = None
        for level in self.levels.values():
            if below is not None:
                gathered = level.gather(at, means, below.seconds)
                if gathered is None:
                    return
                means = gathered
            level.steps.append(ChartStep.of(at, means))
            below = level

    # -- what is asked for

    def with_history(self, protocol: str, objects: Objects) -> Objects:
        """The objects with the action that shows their charts."""
        if not objects.kind.charts:
            return objects

        async def history(found: Any, arguments: Mapping[str, Any], _: bool) -> Mapping[str, Any]:
            span, after = a_text(arguments, "span", SPANS[0]), a_text(arguments, "after", "")
            key = _key(objects.kind, protocol, objects.name(found))
            return self.history(objects.kind, key, span, after)

        return attrs.evolve(objects, actions=(*objects.actions, HISTORY.done_by(history)))

    def history(self, kind: ObjectKind, key: int, span: str, after: str = "") -> Mapping[str, Any]:
        """`lines` by column at `times`, the latest last; null where they are not known."""
        level, charts = self.levels[span], kind.charts
        times: list[str] = []
        lines: dict[str, dict[str, list[float | None]]] = {chart.column: {"": []} for chart in charts}
        for at, step in _even(level, self._wall()):
            text = time_text(at * 1000)
            if text <= after:
                continue
            times.append(text)
            found = [None] * len(charts) if step is None else step.find(key, len(charts))
            for chart, value in zip(charts, found, strict=True):
                lines[chart.column][""].append(None if value is None else round(value, 3))
        return {"seconds": level.seconds, "times": times, "lines": lines}

    # -- the file

    def _read_file(self) -> bytes:
        try:
            return read_file(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._tell(error)
        return b""

    def _steps(self) -> Sequence[Sequence[ChartStep]]:
        return [tuple(level.steps) for level in self.levels.values()]

    def _write(self, levels: Sequence[Sequence[ChartStep]]) -> None:
        packed = [step.pack(number) for number, steps in enumerate(levels) for step in steps]
        try:
            replace_file(self._path, b"".join((MAGIC, *packed)), 0o600)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            self._log.warning(
                "charts cannot be kept on disk: a restart begins them anew; look at the disk",
                path=str(self._path),
                reason=error.strerror,
            )


def _key(kind: ObjectKind, protocol: str, name: str) -> int:
    whole = f"{kind.name}/{protocol}/{name}".encode()
    return int.from_bytes(blake2b(whole, digest_size=KEY_BYTES).digest(), "little")


def _even(level: ChartLevel, now: float) -> Iterator[tuple[float, ChartStep | None]]:
    """The steps of a level's span, with None for each that is missing between two."""
    oldest = now - STEPS * level.seconds
    before: float | None = None
    for step in [each for each in level.steps if each.at >= oldest]:
        while before is not None and step.at - before > 2.5 * level.seconds:
            before += level.seconds
            yield before, None
        before = step.at
        yield before, step

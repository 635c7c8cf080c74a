"""Recent rates, from counters that are read every five seconds.

All readings of the last minute are kept, and a few series for a quarter of an hour.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import trio

from shared.metrics import Sample
from shared.objects import time_text

BEAT_SECONDS = 5.0
BEATS = 13
"""Readings of a minute, plus the one before it."""
HISTORY_BEATS = 180
"""A quarter of an hour. A beat has some 40 numbers: half a megabyte in all."""

Totals = Mapping[tuple[str, str], float]
"""(protocol or "" for the process, series) to value, summed over labels."""

FLOWS: Mapping[str, Sequence[str]] = {
    "messages_in": ("messages_produced", "messages_published"),
    "messages_out": ("messages_delivered", "messages_got"),
    "bytes_in": ("net_bytes_in",),
    "bytes_out": ("net_bytes_out",),
    "syncs": ("store_journal_syncs",),
    "processor": ("processor_seconds",),
}
"""Lines of the history, all rates: the counters that each adds up, as the process or a protocol names it. A
protocol has no line that it cannot count: LogMQ sends bytes of a log, and no messages."""
LINE_OF = {name: line for line, names in FLOWS.items() for name in names}


@attrs.frozen
class Beat:
    """`values`: by line of the history, then by protocol (of the process: "")."""

    time_ms: int
    values: Mapping[str, Mapping[str, float]]


class Rates:
    """Totals and recent rates of all counters. `run` reads them."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples
        self._readings: deque[tuple[float, Totals]] = deque(maxlen=BEATS)
        self._beats: deque[Beat] = deque(maxlen=HISTORY_BEATS)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            samples = list(self._samples())
            now, totals = trio.current_time(), _totals(samples)
            if self._readings:
                before, earlier = self._readings[-1]
                self._beats.append(_beat(samples, totals, earlier, now - before))
            self._readings.append((now, totals))
            await trio.sleep(BEAT_SECONDS)

    def overview(self) -> Mapping[str, Any]:
        """`totals`; `rates` a second over `seconds`, by protocol and series, but for those of 0; `flows`, the
        same by line of the history and protocol."""
        now, totals = trio.current_time(), _totals(self._samples())
        since, before = self._readings[0] if self._readings else (now, totals)
        seconds = now - since
        rates: dict[str, dict[str, float]] = {}
        shown: dict[str, dict[str, float]] = {}
        grown = _grown(totals, before)
        for (protocol, name), value in totals.items():
            shown.setdefault(protocol, {})[name] = value
            if seconds > 0 and grown[protocol, name]:
                rates.setdefault(protocol, {})[name] = round(grown[protocol, name] / seconds, 3)
        flows = _lines(grown, seconds)
        return {"seconds": round(seconds, 3), "rates": rates, "flows": flows, "totals": shown}

    def history(self, after: str = "") -> Mapping[str, Any]:
        """The lines at `times` later than `after`: rates a second; connections and memory as they were."""
        beats = [(text, beat) for beat in self._beats if (text := time_text(beat.time_ms)) > after]
        lines: dict[str, dict[str, list[float | None]]] = {}
        for number, (_, beat) in enumerate(beats):
            for line, values in beat.values.items():
                for protocol, value in values.items():
                    points = lines.setdefault(line, {}).setdefault(protocol, [None] * len(beats))
                    points[number] = value
        return {"seconds": BEAT_SECONDS, "times": [text for text, _ in beats], "lines": lines}


def _beat(samples: Sequence[Sample], totals: Totals, before: Totals, seconds: float) -> Beat:
    values = _lines(_grown(totals, before), seconds)
    for each in samples:
        if each.name == "connections":
            values.setdefault("connections", {})[dict(each.labels)["protocol"]] = each.value
        elif each.name == "budget_bytes" and each.labels == (("account", "process"),):
            values["memory"] = {"": each.value}
    return Beat(time.time_ns() // 1_000_000, values)


def _grown(totals: Totals, before: Totals) -> Totals:
    # A counter restarts at 0 with its protocol.
    return {key: max(value - before.get(key, 0), 0) for key, value in totals.items()}


def _lines(grown: Totals, seconds: float) -> dict[str, dict[str, float]]:
    """What counters have grown by in so many seconds, as rates, by line and protocol."""
    rates: dict[str, dict[str, float]] = {}
    for (protocol, name), value in grown.items():
        line, owner = LINE_OF.get(name), protocol
        if line is None:
            owner, _, own = name.partition("_")
            line = LINE_OF.get(own)
        if line is not None:
            of = rates.setdefault(line, {})
            of[owner] = round(of.get(owner, 0) + value / max(seconds, 0.001), 3)
    return rates


def _totals(samples: Iterable[Sample]) -> Totals:
    totals: dict[tuple[str, str], float] = {("", "processor_seconds"): time.process_time()}
    for sample in samples:
        if sample.kind == "counter":
            name = sample.name.removesuffix("_total")
            key = dict(sample.labels).get("protocol", ""), name
            totals[key] = totals.get(key, 0) + sample.value
    return totals

"""What was done in the last minute: counters, read every five seconds."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from shared.metrics import Sample

BEAT_SECONDS = 5.0
BEATS = 13
"""A minute, and the reading before it."""

Totals = Mapping[tuple[str, str], float]
"""By protocol (of the process: "") and series, all its labels together."""


class Rates:
    """Totals of all counters, and how fast each grew of late. `run` keeps them."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples
        self._readings: deque[tuple[float, Totals]] = deque(maxlen=BEATS)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            self._readings.append((trio.current_time(), self._read()))
            await trio.sleep(BEAT_SECONDS)

    def overview(self) -> Mapping[str, Any]:
        """`totals`, and `rates` a second over `seconds`, by protocol and series; rates of 0 are left out."""
        now, totals = trio.current_time(), self._read()
        since, before = self._readings[0] if self._readings else (now, totals)
        seconds = now - since
        rates: dict[str, dict[str, float]] = {}
        shown: dict[str, dict[str, float]] = {}
        for (protocol, name), value in totals.items():
            shown.setdefault(protocol, {})[name] = value
            grown = value - before.get((protocol, name), 0)
            if seconds > 0 and grown > 0:  # it starts again at 0 where a protocol does
                rates.setdefault(protocol, {})[name] = round(grown / seconds, 3)
        return {"seconds": round(seconds, 3), "rates": rates, "totals": shown}

    def _read(self) -> Totals:
        totals: dict[tuple[str, str], float] = {}
        for sample in self._samples():
            if sample.kind == "counter":
                name = sample.name.removesuffix("_total")
                key = dict(sample.labels).get("protocol", ""), name
                totals[key] = totals.get(key, 0) + sample.value
        return totals

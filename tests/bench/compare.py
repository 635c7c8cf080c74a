"""`make bench-compare BASE=<commit>`: the servers of two environments under the same load.

Shown is what changed beyond noise. At each point both servers run, and rounds are taken in turns, so each
round is a pair. A figure's change is the mean logarithm of the pairs' ratios. Its noise is three standard
errors of that mean; a round's deviation is that of this point, or the middle one of all points where that
is larger: few rounds may agree by chance. A change counts when it is larger than its noise and every pair has
the same sign.
"""

import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokers.bench.adapter import Adapter, Point
from brokers.bench.load import Measured
from tests.bench.peers import brokers_server
from tests.bench.sweep import options, rounds_at, swept_adapters

Row = Mapping[str, Any]
FIGURES = ("rate", "median_us", "p99_us", "cpu_us")
BASE = "base"
ERRORS = 3.0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options(__doc__, (100, 4096), 5)
    parser.add_argument(
        "python", nargs="?", default=sys.executable, help="the other environment's; else ours"
    )
    parser.add_argument("--all", action="store_true", help="show what did not change, too")
    asked = parser.parse_args(arguments)
    for adapter in swept_adapters(asked.protocols):
        base = brokers_server(adapter.protocol, adapter.environ, str(Path(asked.python).absolute()))
        measured = []
        for point in adapter.points(asked.sizes, asked.names, asked.clients, asked.window):
            peers = {BASE: (base, adapter.load)}
            taken = rounds_at(adapter, peers, point, asked.seconds, asked.rounds, asked.data_dir)
            measured.append((point, list(zip(taken[BASE], taken[adapter.protocol], strict=True))))
        for row in changes(adapter, measured):
            if asked.all or row["beyond_noise"] or row["size"] is None:
                print(json.dumps(row), flush=True)


Pairs = Sequence[tuple[Measured | None, Measured | None]]
"""Each round: of the base, and ours."""


def changes(adapter: Adapter, measured: Sequence[tuple[Point, Pairs]]) -> Iterator[Row]:
    """The changes of each figure: at every point, then all together."""
    for figure in FIGURES:
        known: list[tuple[Point, list[tuple[float, float]]]] = []
        for point, rounds in measured:
            both = [(getattr(base, figure, None), getattr(ours, figure, None)) for base, ours in rounds]
            if whole := [(base, ours) for base, ours in both if base and ours]:
                known.append((point, whole))
        logs = [[math.log(ours / base) for base, ours in pairs] for _, pairs in known]
        spreads = [statistics.stdev(each) for each in logs if len(each) > 1]
        usual = statistics.median(spreads) if spreads else math.inf
        for (point, pairs), each in zip(known, logs, strict=True):
            base, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
            mean, noise = judged(each, usual)
            place = (point.size, point.names, point.clients)
            agree = min(each) > 0 or max(each) < 0
            yield _change(adapter, place, figure, (base, ours), mean, noise, agree)
        if logs:
            # Each point is one measurement: what differs between them is noise of the whole.
            mean, noise = judged([statistics.fmean(each) for each in logs], usual / math.sqrt(len(logs[0])))
            yield _change(adapter, (None,) * 3, figure, (None, None), mean, noise, True)


def judged(logs: Sequence[float], usual: float) -> tuple[float, float]:
    """The mean, and three standard errors of it. `usual`: the deviation to suppose at least."""
    own = statistics.stdev(logs) if len(logs) > 1 else 0.0
    return statistics.fmean(logs), ERRORS * max(own, usual) / math.sqrt(len(logs))


def _change(
    adapter: Adapter,
    place: tuple[int | None, int | None, int | None],
    figure: str,
    middle: tuple[float | None, float | None],
    mean: float,
    noise: float,
    agree: bool,
) -> Row:
    """A figure at a point: the middle rounds of both, how much larger ours is, and the noise of that. Size,
    names and clients are empty for all points of a mode together."""
    base, ours = (None if value is None else round(value, 2) for value in middle)
    percent, about = 100 * math.expm1(mean), 100 * math.expm1(min(noise, 10.0))
    return {
        "protocol": adapter.protocol,
        "mode": adapter.mode,
        **dict(zip(("size", "names", "clients"), place, strict=True)),
        "figure": figure,
        "base": base,
        "ours": ours,
        "change_percent": round(percent, 1),
        "noise_percent": round(about, 1),
        "beyond_noise": agree and abs(mean) > noise,
    }


if __name__ == "__main__":
    main()

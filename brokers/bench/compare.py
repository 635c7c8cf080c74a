"""`brokers bench compare`: the servers of two environments under the same load, and what is beyond noise.

At each point both servers run, and rounds are taken in turns, so each round is a pair. A figure's change is
the mean logarithm of the pairs' ratios. Its noise is three standard errors of that mean; a round's deviation
is that of this point, or the middle one of all points where that is larger: few rounds may agree by chance. A
change counts when it is larger than its noise and every pair has the same sign.
"""

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import attrs
from cyclopts import Parameter

from brokers.bench.all import ADAPTERS, PROTOCOLS, Protocol
from brokers.bench.load import Measured, Row
from brokers.bench.options import SEVERAL, DataDir, Rounds, Seconds, some
from brokers.bench.servers import brokers_server
from brokers.bench.sweep import Clients, Names, Point, Sizes, Sweep, Swept, rounds_at
from shared.cli.options import Json, a_path, flag
from shared.cli.progress import progress

FIGURES = ("rate", "median_us", "p99_us", "cpu_us")
BASE = "base"
ERRORS = 3.0


def bench(
    python: Annotated[
        Path,
        Parameter(
            help="The other environment's; else ours with itself.", converter=a_path, show_default=False
        ),
    ] = Path(sys.executable),
    /,
    *,
    protocols: Annotated[tuple[Protocol, ...], SEVERAL, Parameter(help="Which to compare.")] = PROTOCOLS,
    sizes: Sizes = (100, 4096),
    names: Names = (1, 100),
    clients: Clients = (1, 64),
    window: Annotated[int, some("Messages of each client on their way.")] = 64,
    all_figures: Annotated[bool, flag("Show what did not change, too.", "--all")] = False,
    seconds: Seconds = 0.5,
    rounds: Rounds = 5,
    data_dir: DataDir = None,
    json: Json = False,
) -> list[Row]:
    """Compare this environment's servers with another's.

    Both get the same load in turns. Shows what changed beyond the noise of the rounds,
    and all points of a mode together. `make bench-compare BASE=<commit>` makes the other.
    """
    sweep = Sweep(sizes=sizes, names=names, clients=clients)
    chosen = [adapter for protocol in protocols for adapter in ADAPTERS[protocol]]
    points = [(adapter, point) for adapter in chosen for point in adapter.points(sweep, window)]
    found: dict[str, list[tuple[Point, Pairs]]] = {}
    by_mode = {f"{adapter.protocol} {adapter.mode}": adapter for adapter in chosen}

    with progress("measuring", total=len(points)) as update:
        for done, (adapter, point) in enumerate(points, 1):
            base = brokers_server(adapter.protocol, adapter.environ, str(python.absolute()))
            both = attrs.evolve(adapter, peers={BASE: (base, adapter.load)}, floor=None)
            taken = rounds_at(both, point, seconds, rounds, data_dir)
            pairs = list(zip(taken[BASE], taken[adapter.protocol], strict=True))
            found.setdefault(f"{adapter.protocol} {adapter.mode}", []).append((point, pairs))
            update(done)
    rows = [row for mode, measured in found.items() for row in changes(by_mode[mode], measured)]
    return [row for row in rows if all_figures or row["beyond_noise"] or row["size"] is None]


Pairs = Sequence[tuple[Measured | None, Measured | None]]
"""Each round: of the base, and ours."""


def changes(adapter: Swept, measured: Sequence[tuple[Point, Pairs]]) -> Iterator[Row]:
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
    adapter: Swept,
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

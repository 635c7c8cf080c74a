"""`python -m tests.bench.sweep`: our servers beside their peers and a server without a broker.

At each point the server and its peers are started anew, and loaded in turns, round after round; the middle
round counts. A round's clock starts when every name has been written once, to every server alike, and after a
short warm-up. Each row is printed when it is measured, so an interrupted sweep loses nothing.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from brokers.bench.adapter import Adapter, Point
from brokers.bench.cli import Protocol, adapters_of, middle, row_of
from brokers.bench.load import Address, Measured
from brokers.errors import Failure
from tests.bench.bare import FLOORS
from tests.bench.metering import metered
from tests.bench.peers import PEERS, Peer, brokers_server

Row = Mapping[str, Any]
Way = Callable[[Point, float], Measured]
"""A round of so many seconds at a point, of a server that runs."""
FLOOR = "floor"
T = TypeVar("T")


def swept_adapters(protocols: Iterable[Protocol]) -> list[Adapter]:
    """The modes of protocols that have peers."""
    return [
        adapter
        for protocol in protocols
        for mode, adapter in adapters_of(protocol).items()
        if (protocol, mode) in PEERS
    ]


def taken_in_turns(rounds: int, ways: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Every way once a round, so that a noisy machine is noisy to all."""
    taken: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(way())
    return taken


@contextmanager
def started(
    adapter: Adapter, peers: Mapping[str, Peer], data_dir: Path | None = None
) -> Iterator[dict[str, Way]]:
    """Start our server and those peers that are installed, each in a folder of its own."""
    ours: Peer = (brokers_server(adapter.protocol, adapter.environ), adapter.load)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        ways: dict[str, Way] = {}
        own: Address = ("", 0)
        for name, (start, load) in {adapter.protocol: ours, **peers}.items():
            home = folder / name.replace(" ", "-")
            home.mkdir()
            address = stack.enter_context(start(home, own))
            if address is None:
                continue
            own = address if not ways else own
            data = home / "data" if (home / "data").exists() else None  # one of ours
            ways[name] = partial(metered, load, address, data)
        yield ways


def rounds_at(
    adapter: Adapter,
    peers: Mapping[str, Peer],
    point: Point,
    seconds: float,
    rounds: int,
    data_dir: Path | None = None,
) -> dict[str, list[Measured | None]]:
    """The rounds of each server, ours first; None is a round that failed, and standard error says why."""

    def attempt(name: str, way: Way) -> Measured | None:
        try:
            return way(point, seconds)
        except (Failure, OSError) as error:
            print(f"a round of {name} failed and does not count: {error}", file=sys.stderr)
            return None

    with started(adapter, peers, data_dir) as ways:
        return taken_in_turns(rounds, {name: partial(attempt, name, way) for name, way in ways.items()})


def beside_peers(
    adapter: Adapter, point: Point, taken: Mapping[str, Sequence[Measured | None]]
) -> Iterator[Row]:
    """A row for each peer, of the middle rounds.

    `ratio`, `median_ratio`, `p99_ratio`: ours over the peer's, so of the last two less is better.
    `floor_ratio`: our rate over that of a server without a broker, which does the same reads, syncs and
    sends. None: a server did not manage this point, or no peer is installed.
    """
    best = {name: _middle(rounds) for name, rounds in taken.items()}
    ours, floor = best.pop(adapter.protocol), best.pop(FLOOR, None)
    for name, theirs in best.items() or [("-", None)]:
        yield {
            **row_of(adapter, point, ours or Measured(0.0, 0.0, 0.0)),
            "cpu_us": None if ours is None or ours.cpu_us is None else round(ours.cpu_us, 2),
            "baseline": name,
            "ratio": _ratio(ours, theirs, "rate"),
            "median_ratio": _ratio(ours, theirs, "median_us"),
            "p99_ratio": _ratio(ours, theirs, "p99_us"),
            "floor_ratio": _ratio(ours, floor, "rate"),
        }


def _middle(rounds: Iterable[Measured | None]) -> Measured | None:
    known = [measured for measured in rounds if measured is not None]
    return middle(known) if known else None


def _ratio(ours: Measured | None, theirs: Measured | None, figure: str) -> float | None:
    if ours is None or theirs is None:
        return None
    above: Any = getattr(ours, figure)
    below: Any = getattr(theirs, figure)
    return float(f"{above / below:.3g}") if below else None


def options(description: str | None, sizes: Sequence[int], rounds: int) -> argparse.ArgumentParser:
    """The options that sweeps have in common."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol))
    parser.add_argument("--sizes", nargs="+", type=int, default=sizes)
    parser.add_argument("--names", nargs="+", type=int, default=(1, 100))
    parser.add_argument("--clients", nargs="+", type=int, default=(1, 64))
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--data-dir", type=Path, help="a folder on the disk that is meant")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    asked = options(__doc__, (100, 4096), 3).parse_args(arguments)
    for adapter in swept_adapters(asked.protocols):
        key = adapter.protocol, adapter.mode
        peers = {**PEERS[key], FLOOR: FLOORS[key]}
        for point in adapter.points(asked.sizes, asked.names, asked.clients, asked.window):
            taken = rounds_at(adapter, peers, point, asked.seconds, asked.rounds, asked.data_dir)
            for row in beside_peers(adapter, point, taken):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

"""`brokers bench <protocol> --sweep`: every size with every number of names and of clients, beside the peers.

At each point the server and its peers are started anew, and loaded in turns, round after round; the middle
round counts. A round's clock starts when every name has been written once, to every server alike, and after a
short warm-up. A sweep takes no longer than points times servers times rounds, each of `--seconds` and a
moment to begin. With `--json` each row is shown when it is measured, so an interrupted sweep loses nothing.

Clients share names evenly. Where messages are handed on, there are as many consumers as clients, and each
producer has names of its own. One name is one producer to all consumers. With as many names as clients each
producer has one consumer.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from brokers.bench.load import (
    Address,
    FanOut,
    Measured,
    Row,
    Talk,
    fan_out,
    in_turns,
    middle,
    run,
    taken_in_turns,
)
from brokers.bench.options import SEVERAL, each
from brokers.bench.processes import processor_seconds, server_process
from brokers.bench.servers import Start, brokers_server
from brokers.errors import ExitCode, Failure
from brokers.render import Following
from shared.cli.options import a_path, flag

UNDER_WAY_BYTES = 4 << 20
"""Bytes under way of all clients together, whatever the window: below any server's limit for one slow
consumer."""


def _counts(_: type, numbers: Sequence[int] | None) -> None:
    if numbers is not None and min(numbers) < 1:
        raise ValueError("1 at least")


_COUNTS = Parameter.combine(SEVERAL, Parameter(validator=_counts, group="Sweep"))
Sizes = Annotated[tuple[int, ...], _COUNTS, Parameter(help="Of messages, in bytes.")]
Names = Annotated[tuple[int, ...], _COUNTS, Parameter(help="Topics, queues or keys.")]
Clients = Annotated[tuple[int, ...], _COUNTS, Parameter(help="Connections, or consumers.")]


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class Sweep:
    """The options of a sweep."""

    sweep: Annotated[
        bool,
        flag(
            "All of these sizes, names and clients instead; a round's clock starts when each name was written"
            " once."
        ),
        Parameter(group="Sweep"),
    ] = False
    sizes: Sizes = (16, 256, 4096, 65536)
    names: Names = (1, 30, 1000)
    clients: Clients = (1, 30, 1000)
    picture: Annotated[
        Path | None, Parameter(help="A PNG of the ratios.", converter=a_path, group="Sweep")
    ] = None


NO_SWEEP = Sweep()


@attrs.frozen
class Point:
    """`window`: messages of each client (of each producer, where there are consumers) on their way."""

    size: int
    names: int
    clients: int
    window: int

    @property
    def producers(self) -> int:
        return min(self.names, self.clients)

    @property
    def names_each(self) -> int:
        """What one client writes to, at most, where there are no consumers."""
        return -(-self.names // self.clients)

    def name_list(self) -> list[bytes]:
        """Names of one length. Every producer has as many; those that are over are left out."""
        return [b"bench-%03d" % number for number in range(self.names // self.producers * self.producers)]

    def names_of(self, client: int) -> list[bytes]:
        """The names that one client writes to, where there are no consumers."""
        return [b"bench-%03d" % number for number in range(client % self.names, self.names, self.clients)]


Load = Callable[[Address, Point, float], Measured]
"""A round of so many seconds at a point."""
Peer = tuple[Start, Load]
Way = Callable[[Point, float], Measured]
"""A round of so many seconds at a point, of a server that runs."""
FLOOR = "floor"


def fan_out_load(fan: Callable[[Point], FanOut], bystanders: int = 0) -> Load:
    """Messages are handed on."""
    return lambda address, point, seconds: fan_out(
        address,
        fan(point),
        producers=point.producers,
        consumers=point.clients,
        window=point.window,
        seconds=seconds,
        bystanders=bystanders,
    )


def request_load(talk: Callable[[Point, int], Talk]) -> Load:
    """Requests are answered; `talk` is that of the client with a number."""
    return lambda address, point, seconds: run(
        address, [talk(point, client) for client in range(point.clients)], seconds, point.names_each
    )


@attrs.frozen
class Swept:
    """How a protocol is swept: its own load, and its peers, how each is started and its load.
    `floor`: a server without a broker (`bare.py`)."""

    protocol: str
    mode: str
    load: Load
    peers: Mapping[str, Peer]
    floor: Peer | None = None
    size_max: int = 1 << 20
    environ: Mapping[str, str] = {}
    under_way_bytes: int = UNDER_WAY_BYTES
    one_name_each: bool = False
    """A client uses one name, so there are no points with more names than clients."""

    @property
    def servers(self) -> dict[str, Peer]:
        """Our own first, then its peers."""
        return {self.protocol: (brokers_server(self.protocol, self.environ), self.load), **self.peers}

    def points(self, sweep: Sweep, window: int) -> list[Point]:
        """The points of a sweep that the protocol can have."""
        return [
            Point(size, names, clients, max(min(window, self.under_way_bytes // (size * clients)), 1))
            for size in sweep.sizes
            if size <= self.size_max
            for names in sweep.names
            for clients in sweep.clients
            if names <= clients or not self.one_name_each
        ]


def swept(
    adapters: Sequence[Swept],
    sweep: Sweep,
    window: int,
    seconds: float,
    rounds: int,
    data_dir: Path | None = None,
    *,
    json: bool,
) -> Iterable[Row]:
    """A row for each point and peer, then the picture; for JSON each row as soon as it is measured. Raises
    Failure."""
    if sweep.picture is not None and importlib.util.find_spec("matplotlib") is None:
        raise Failure("--picture needs matplotlib, which pip install 'brokers[spark]' brings", ExitCode.USAGE)
    if sweep.picture is not None and not sweep.picture.parent.is_dir():
        raise Failure(f"--picture: there is no folder {sweep.picture.parent}", ExitCode.USAGE)
    points = [(adapter, point) for adapter in adapters for point in adapter.points(sweep, window)]
    if not points:
        raise Failure("--sweep: no point of these sizes, names and clients can be measured", ExitCode.USAGE)
    rows = _rows(points, seconds, rounds, data_dir, sweep.picture)
    return Following(rows) if json else list(rows)


def _rows(
    points: Sequence[tuple[Swept, Point]],
    seconds: float,
    rounds: int,
    data_dir: Path | None,
    picture: Path | None,
) -> Iterator[Row]:
    def measure(case: tuple[Swept, Point]) -> Iterator[Row]:
        return beside_peers(*case, rounds_at(*case, seconds, rounds, data_dir))

    rows: list[Row] = []
    for row in each(points, measure):
        rows.append(row)
        yield row
    if picture is not None:
        from brokers.bench.picture import draw

        picture.write_bytes(draw(rows))


@contextmanager
def started(servers: Mapping[str, Peer], data_dir: Path | None = None) -> Iterator[dict[str, Way]]:
    """Start those servers that are installed, each in a folder of its own; the first is the one that is
    measured. Each way also says what the server and the load took of the processors."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        ways: dict[str, Way] = {}
        own: Address = ("", 0)
        for name, (start, load) in servers.items():
            home = folder / name.replace(" ", "-")
            home.mkdir()
            address = stack.enter_context(start(home, own))
            if address is not None:
                own = address if not ways else own
                ways[name] = partial(_metered, load, address, home / "data")
        yield ways


def _metered(load: Load, address: Address, data: Path, point: Point, seconds: float) -> Measured:
    server = server_process(data) if data.exists() else None  # one of ours
    before = None if server is None else processor_seconds(server)
    begun, busy = perf_counter(), process_time()
    measured = load(address, point, seconds)
    busy = 100 * (process_time() - busy) / (perf_counter() - begun)
    after = None if server is None else processor_seconds(server)
    cpu = None if before is None or after is None else (after - before) * 1e6 / max(measured.total, 1)
    return attrs.evolve(measured, cpu_us=cpu, load_percent=busy)


def measured_at(ways: Mapping[str, Way], point: Point, seconds: float, rounds: int) -> dict[str, Measured]:
    """The middle round of each server, taken in turns."""
    return in_turns(rounds, {name: partial(way, point, seconds) for name, way in ways.items()})


def rounds_at(
    adapter: Swept, point: Point, seconds: float, rounds: int, data_dir: Path | None
) -> dict[str, list[Measured | None]]:
    """The rounds of each server, ours first; None is a round that failed, and standard error says why."""

    def attempt(name: str, way: Way) -> Measured | None:
        try:
            return way(point, seconds)
        except (Failure, OSError) as error:
            print(f"brokers: a round of {name} failed and does not count: {error}", file=sys.stderr)
            return None

    floor = {} if adapter.floor is None else {FLOOR: adapter.floor}
    with started({**adapter.servers, **floor}, data_dir) as ways:
        return taken_in_turns(rounds, {name: partial(attempt, name, way) for name, way in ways.items()})


def beside_peers(
    adapter: Swept, point: Point, found: Mapping[str, Sequence[Measured | None]]
) -> Iterator[Row]:
    """A row for each peer, of the middle rounds.

    `ratio`, `median_ratio`, `p99_ratio`: ours over the peer's, so of the last two less is better.
    `floor_ratio`: our rate over that of a server without a broker, which does the same reads, syncs and
    sends. Empty: a server did not manage this point, or no peer is installed.
    """
    best = {name: _middle(rounds) for name, rounds in found.items()}
    ours, floor = best.pop(adapter.protocol), best.pop(FLOOR, None)
    for name, theirs in best.items() or [("-", None)]:
        yield {
            "protocol": adapter.protocol,
            "mode": adapter.mode,
            **attrs.asdict(point),
            "messages_per_second": None if ours is None else round(ours.rate),
            "median_us": None if ours is None else round(ours.median_us, 1),
            "p99_us": None if ours is None else round(ours.p99_us, 1),
            "cpu_us": None if ours is None or ours.cpu_us is None else round(ours.cpu_us, 2),
            "load_percent": None if ours is None else round(ours.load_percent),
            "baseline": name,
            "ratio": _ratio(ours, theirs, "rate"),
            "median_ratio": _ratio(ours, theirs, "median_us"),
            "p99_ratio": _ratio(ours, theirs, "p99_us"),
            "floor_ratio": _ratio(ours, floor, "rate"),
        }


def _middle(rounds: Iterable[Measured | None]) -> Measured | None:
    known = [each for each in rounds if each is not None]
    return middle(known) if known else None


def _ratio(ours: Measured | None, theirs: Measured | None, figure: str) -> float | None:
    if ours is None or theirs is None:
        return None
    above: Any = getattr(ours, figure)
    below: Any = getattr(theirs, figure)
    return float(f"{above / below:.3g}") if below else None

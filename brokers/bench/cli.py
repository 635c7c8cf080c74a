"""`brokers bench PROTOCOL`: load on a server, at each size, number of names and of clients."""

import importlib
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from brokers.bench import load
from brokers.bench.adapter import Adapter, Load, Point
from brokers.bench.load import Address, Measured
from brokers.bench.servers import serving
from brokers.commands.flags import host_command
from brokers.commands.render import Following
from brokers.errors import ExitCode, Failure
from shared.cli.options import Json, Port, at_least_one
from shared.cli.progress import progress
from shared.client.login import login_of

Protocol = Literal["logmq", "dms", "kqmsgq", "pubsub", "dmp"]


def _above_nothing(_: type, number: float | None) -> None:
    if number is not None and not 0 < number < math.inf:
        raise ValueError("above 0")


SEVERAL = Parameter(
    negative="", consume_multiple=True, show_default=lambda values: " ".join(map(str, values))
)
"""The parameter of an option that takes several values."""
Count = Annotated[int, Parameter(validator=at_least_one)]
Sizes = Annotated[tuple[Count, ...], SEVERAL, Parameter(help="Of messages, in bytes.")]
Names = Annotated[tuple[Count, ...], SEVERAL, Parameter(help="Topics, queues or keys.")]
Clients = Annotated[tuple[Count, ...], SEVERAL, Parameter(help="Connections, or consumers.")]
Window = Annotated[int, Parameter(help="Messages of each client on their way.", validator=at_least_one)]
Seconds = Annotated[float, Parameter(help="Length of a round.", validator=_above_nothing)]
Rounds = Annotated[int, Parameter(help="Rounds of each case; the median counts.", validator=at_least_one)]
DataDir = Annotated[Path | None, Parameter(help="A folder for its data: the disk that is meant.")]


def adapters_of(protocol: Protocol) -> Mapping[str, Adapter]:
    """A protocol's adapters by mode."""
    adapters: Mapping[str, Adapter] = importlib.import_module(f"brokers.bench.{protocol}").ADAPTERS
    return adapters


def measure(
    protocol: Protocol,
    /,
    *,
    modes: Annotated[
        tuple[str, ...], SEVERAL, Parameter(help="What to load; else all.", show_default=False)
    ] = (),
    sizes: Sizes = (100,),
    names: Names = (1,),
    clients: Clients = (1, 64),
    window: Window = 64,
    rate: Annotated[
        float | None,
        Parameter(help="Messages a second, due by the clock; else as many as fit.", validator=_above_nothing),
    ] = None,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    host: Annotated[str, Parameter(help="Address of a server that runs already.")] = "127.0.0.1",
    port: Annotated[Port, Parameter(help="Its port; without one a server is started.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> Iterable[Any]:
    """Load a server, and show what it does.

    Without --port a server is started for each mode, on a new data folder. Modes:

    logmq: produce, tail

    dms: synced (durable), memory

    kqmsgq, pubsub: fan-out

    dmp: direct (sinks and feeds), basic (AMQP)

    With --rate messages are due by the clock, and a latency begins when its message is due.

    load_percent is how busy the load's own process is: near 100 it is the load that is measured.
    """
    # A running server keeps messages as its settings say, so modes that differ in settings alone are one.
    known = adapters_of(protocol)
    if unknown := [mode for mode in modes if mode not in known]:
        text = f"--modes: {protocol} has no mode {unknown[0]!r}; there is {', '.join(known)}"
        raise Failure(text, ExitCode.USAGE)
    chosen = modes or ([*known][:1] if protocol == "dms" and port is not None else known)
    adapters = [known[mode] for mode in chosen]
    for adapter in adapters:
        if port is not None and adapter.environ.get("BROKERS_DMS_PERSIST"):
            raise Failure(
                f"--modes {adapter.mode}: a running server keeps messages as it is set", ExitCode.USAGE
            )
        if not adapter.points(sizes, names, clients, window):
            where = f"sizes are {adapter.size_min} to {adapter.size_max} bytes"
            more = ", and a client uses one name" if adapter.one_name_each else ""
            raise Failure(f"{protocol} {adapter.mode}: {where}{more}", ExitCode.USAGE)
    points = [
        (adapter, point)
        for adapter in adapters
        for point in adapter.points(sizes, names, clients, window, rate)
    ]
    if port is not None:
        _log_in(adapters[0], (host, port))
    rows = _rows(points, (host, port) if port is not None else None, seconds, rounds, data_dir)
    return Following(rows) if json else list(rows)


def _log_in(adapter: Adapter, address: Address) -> None:
    try:
        who = login_of()
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    load.who = who
    if who and adapter.say_first is not None:
        load.SAID_FIRST[address] = adapter.say_first(who)


def _rows(
    points: Sequence[tuple[Adapter, Point]],
    running: Address | None,
    seconds: float,
    rounds: int,
    data_dir: Path | None,
) -> Iterator[Mapping[str, Any]]:
    with progress("measuring", total=len(points)) as update:
        for done, (adapter, point) in enumerate(points, 1):
            with ExitStack() as stack:
                address = running
                if address is None:
                    if data_dir is not None:
                        data_dir.mkdir(parents=True, exist_ok=True)
                    folder = tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)
                    home = Path(stack.enter_context(folder))
                    environ = {**adapter.environ, "BROKERS_ADMIN_ENABLED": "false"}
                    address = stack.enter_context(serving(home, adapter.protocol, environ))[adapter.protocol]
                taken = [loaded(adapter.load, address, point, seconds) for _ in range(rounds)]
            yield row_of(adapter, point, middle(taken))
            update(done)


def loaded(load: Load, address: Address, point: Point, seconds: float) -> Measured:
    """A round, and how busy this process was."""
    begun, busy = perf_counter(), process_time()
    measured = load(address, point, seconds)
    return attrs.evolve(measured, load_percent=100 * (process_time() - busy) / (perf_counter() - begun))


def middle(rounds: Sequence[Measured]) -> Measured:
    """The round of the median rate."""
    rate = statistics.median_high(measured.rate for measured in rounds)
    return next(measured for measured in rounds if measured.rate == rate)


def row_of(adapter: Adapter, point: Point, measured: Measured) -> dict[str, Any]:
    """A point and its figures, as every table here has them."""
    return {
        "protocol": adapter.protocol,
        "mode": adapter.mode,
        **{name: value for name, value in attrs.asdict(point).items() if name != "rate" or value},
        "messages_per_second": round(measured.rate),
        "megabytes_per_second": round(measured.rate * point.size / 1e6, 1),
        "median_us": round(measured.median_us, 1),
        "p99_us": round(measured.p99_us, 1),
        "load_percent": round(measured.load_percent),
    }


bench = host_command(
    "bench",
    "brokers bench logmq --sizes 100 4096 --clients 1 64 --json",
    "brokers bench dms --modes synced --window 1 --data-dir /srv/brokers",
    "brokers bench pubsub --rate 20000 --port 7070",
)(measure)

"""`brokers bench all`: the sweeps of every protocol one after the other, in one table and one picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from brokers.bench import dmp, dms, kqmsgq, logmq, pubsub
from brokers.bench.load import Row
from brokers.bench.options import SEVERAL, DataDir, Rounds, Seconds, some
from brokers.bench.sweep import Clients, Names, Sizes, Sweep, Swept, swept
from shared.cli.options import Json, a_path

Protocol = Literal["logmq", "dms", "kqmsgq", "pubsub", "dmp"]
ADAPTERS: Mapping[Protocol, Sequence[Swept]] = {
    "logmq": [logmq.SWEPT],
    "dms": tuple(dms.SWEPT.values()),
    "kqmsgq": [kqmsgq.SWEPT],
    "pubsub": [pubsub.SWEPT],
    "dmp": [dmp.SWEPT],
}
PROTOCOLS: tuple[Protocol, ...] = tuple(ADAPTERS)


def bench(
    *,
    protocols: Annotated[tuple[Protocol, ...], SEVERAL, Parameter(help="Which to measure.")] = PROTOCOLS,
    sizes: Sizes = (100, 1000, 65536),
    names: Names = (1, 1000),
    clients: Clients = (1, 30, 1000),
    window: Annotated[int, some("Messages of each client on their way.")] = 64,
    seconds: Seconds = 0.5,
    rounds: Rounds = 1,
    picture: Annotated[Path | None, Parameter(help="A PNG of the ratios.", converter=a_path)] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> Iterable[Row]:
    """Measure every protocol at every size, beside its peers and a server without a broker.

    The same as the sweeps of the protocols, together. The clock of a round starts when
    each name was written once. `make bench-picture` draws the README's.
    """
    sweep = Sweep(sizes=sizes, names=names, clients=clients, picture=picture)
    chosen = [adapter for protocol in protocols for adapter in ADAPTERS[protocol]]
    return swept(chosen, sweep, window, seconds, rounds, data_dir, json=json)

"""What a protocol's benchmark is made of: points, and a load for each of its modes."""

from collections.abc import Callable, Mapping, Sequence

import attrs

from brokers.bench.load import Address, FanOut, Measured, Talk, fan_out, run
from shared.client.login import Login

UNDER_WAY_BYTES = 4 << 20
"""Bytes under way of all clients together, whatever the window: below any server's limit for one slow
consumer."""


@attrs.frozen
class Point:
    """`window`: messages of each client (of each producer, where there are consumers) on their way.
    `rate`: messages a second of all clients together, in an open loop; None is a closed loop."""

    size: int
    names: int
    clients: int
    window: int
    rate: float | None = None

    @property
    def producers(self) -> int:
        return min(self.names, self.clients)

    def name_list(self) -> list[bytes]:
        """Names of one length. Every producer has as many; those that are over are left out."""
        return [b"bench-%03d" % number for number in range(self.names // self.producers * self.producers)]

    def names_of(self, client: int) -> list[bytes]:
        """The names that one client writes to, where there are no consumers."""
        return [b"bench-%03d" % number for number in range(client % self.names, self.names, self.clients)]


Load = Callable[[Address, Point, float], Measured]
"""A round of so many seconds at a point."""


def fan_out_load(fan: Callable[[Point], FanOut]) -> Load:
    """Messages are handed on. There are as many consumers as clients, and each producer has names of its own:
    one name is one producer to all consumers."""
    return lambda address, point, seconds: fan_out(
        address,
        fan(point),
        producers=point.producers,
        consumers=point.clients,
        window=point.window,
        seconds=seconds,
        rate=point.rate,
    )


def request_load(talk: Callable[[Point, int], Talk]) -> Load:
    """Requests are answered; `talk` is that of the client with a number. Clients share names evenly."""
    return lambda address, point, seconds: run(
        address,
        [talk(point, client) for client in range(point.clients)],
        seconds,
        -(-point.names // point.clients),  # what one client writes to, at most
        point.rate,
    )


@attrs.frozen
class Adapter:
    """One mode of a protocol. `environ`: settings of a server that is started for it. `one_name_each`: a
    client uses one name, so no point has more names than clients. `say_first`: what a connection
    says to log in, and the answer, where its greeting is no login."""

    protocol: str
    mode: str
    load: Load
    size_min: int = 1
    size_max: int = 1 << 20
    environ: Mapping[str, str] = {}
    under_way_bytes: int = UNDER_WAY_BYTES
    one_name_each: bool = False
    say_first: Callable[[Login], tuple[bytes, bytes]] | None = None

    def points(
        self,
        sizes: Sequence[int],
        names: Sequence[int],
        clients: Sequence[int],
        window: int,
        rate: float | None = None,
    ) -> list[Point]:
        """The points that the mode can have, of all these together."""
        return [
            Point(size, count, number, max(min(window, self.under_way_bytes // (size * number)), 1), rate)
            for size in sizes
            if self.size_min <= size <= self.size_max
            for count in names
            for number in clients
            if count <= number or not self.one_name_each
        ]

"""The floor of a sweep's point: a server without a broker, under the same load.

The server is `bare_server.py`, which does what no broker can leave out. A broker that gathers more into one
system call can be faster: this is a measure, not a bound.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from brokers.bench.adapter import Load, Point, fan_out_load, request_load
from brokers.bench.load import Address, FanOut, Talk, lines, repeated, stamped_body
from tests.bench.bare_server import CONSUMER, GROUP_BYTES, PRODUCER, Kind
from tests.bench.helper import helper
from tests.bench.peers import Peer


def answers(*, synced: bool) -> Peer:
    """Each message is answered by one byte."""

    def talk(point: Point, client: int) -> Talk:
        return Talk(repeated([b"x" * (point.size - 1) + b"\n"]), lines(), point.window)

    return partial(_started, "answer", synced), request_load(talk)


def echoes(*, synced: bool) -> Peer:
    """Each message comes back to who sent it."""

    def talk(point: Point, client: int) -> Talk:
        over = 0

        def count(data: bytes) -> int:
            nonlocal over
            whole, over = divmod(over + len(data), point.size)
            return whole

        return Talk(lambda wanted: b"x" * (point.size * wanted), count, point.window)

    return partial(_started, "echo", synced), request_load(talk)


def relays(*, datagrams: bool = False) -> Peer:
    """Each message of a producer goes to the consumers of its group."""
    return partial(_started, "relay", False), _relayed(datagrams)


def _relayed(datagrams: bool) -> Load:
    def fan(point: Point) -> FanOut:
        body = stamped_body(point.size)
        groups = point.producers
        return FanOut(
            hello_producer=lambda number: b"" if datagrams else PRODUCER + _group(number % groups),
            hello_consumer=lambda number: CONSUMER + _group(number % groups),
            message=lambda queue, stamp: _group(queue % groups) + body(stamp),
            delivered_bytes=GROUP_BYTES + point.size,
            stamp_at=point.size,
            groups=groups,
            datagrams=datagrams,
        )

    return fan_out_load(fan)


def _group(number: int) -> bytes:
    return number.to_bytes(GROUP_BYTES, "big")


@contextmanager
def _started(kind: Kind, synced: bool, folder: Path, own: Address) -> Iterator[Address]:
    with helper("bare_server", kind, *[str(folder / "written")] * synced) as process:
        yield "127.0.0.1", process.number()


FLOORS: Mapping[tuple[str, str], Peer] = {
    ("logmq", "produce"): answers(synced=True),
    ("dms", "memory"): echoes(synced=False),
    ("dms", "synced"): echoes(synced=True),
    ("kqmsgq", "fan-out"): relays(),
    ("pubsub", "fan-out"): relays(datagrams=True),
    ("dmp", "direct"): relays(),
}
"""By protocol and mode."""

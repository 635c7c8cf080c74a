"""How LogMQ is loaded: PRODUCE, CONSUME message by message, FETCH of what is in the page cache, and TAIL."""

from itertools import count as numbers
from time import perf_counter_ns

import attrs

from brokers.bench.adapter import Adapter, Load, Point, fan_out_load, request_load
from brokers.bench.load import (
    STAMPED_BYTES_MIN,
    Address,
    FanOut,
    Measured,
    Talk,
    connect,
    fill,
    lines,
    run,
    stamped_body,
)
from brokers.errors import Failure
from logmq.connector import auth
from shared.client.login import Login

PRELOADED_BYTES = 32 * 1024 * 1024
"""What readers read, all topics together: it stays in the page cache."""
FETCH_BYTES = 4 * 1024 * 1024


def _produce(point: Point, client: int) -> Talk:
    body = b"x" * point.size
    requests = [b"PRODUCE %b %b\n" % (topic, body) for topic in point.names_of(client)]
    return Talk.repeating(requests, 1, point.window)


def _read_topic(address: Address, point: Point, number: int) -> tuple[bytes, int]:
    """A topic to read, filled where it is not yet: its name, and how many messages it has."""
    topic = b"bench-read-%d-%d" % (point.size, number)
    total = max(PRELOADED_BYTES // (point.size + 4) // point.names, 1)
    total += -total % max(FETCH_BYTES // (point.size + 4), 1)  # so every FETCH is a full one
    with connect(address) as sock:
        sock.sendall(b"OFFSETS %b\n" % topic)
        said = sock.recv(256)
        kept = int(said.split()[2]) if said.startswith(b"OFFSETS") else 0
        missing = total - kept // (point.size + 4)
        fill(sock, lines(), b"PRODUCE %b %b\n" % (topic, b"x" * point.size), missing)
    return topic, total


def _consume(address: Address, point: Point, seconds: float) -> Measured:
    """Each connection reads on from a place of its own."""
    topics = [_read_topic(address, point, number) for number in range(min(point.names, point.clients))]
    step = point.size + 4

    def talk(client: int) -> Talk:
        topic, total = topics[client % len(topics)]
        place = numbers(total * client // point.clients)

        def requests(count: int) -> bytes:
            return b"".join(b"CONSUME %b %d\n" % (topic, next(place) % total * step) for _ in range(count))

        return Talk(requests, lines(), point.window)

    return run(address, [talk(client) for client in range(point.clients)], seconds, rate=point.rate)


def _fetch(address: Address, point: Point, seconds: float) -> Measured:
    """The rate is that of messages; a latency is that of a FETCH, which has many."""
    topics = [_read_topic(address, point, number) for number in range(min(point.names, point.clients))]
    each = max(FETCH_BYTES // (point.size + 4), 1)
    chunk_bytes = each * (point.size + 4)

    def talk(client: int) -> Talk:
        topic, total = topics[client % len(topics)]
        place = numbers()

        def requests(count: int) -> bytes:
            offsets = [next(place) % (total // each) * chunk_bytes for _ in range(count)]
            return b"".join(b"FETCH %b %d %d\n" % (topic, offset, chunk_bytes) for offset in offsets)

        return Talk(requests, _chunks(), 1)

    rate = None if point.rate is None else point.rate / each
    measured = run(address, [talk(client) for client in range(point.clients)], seconds, rate=rate)
    return attrs.evolve(measured, rate=measured.rate * each, total=measured.total * each)


class _chunks:  # noqa: N801 - called as the functions that count answers are
    """Counts answers of FETCH as they end, without a look at their bytes."""

    def __init__(self) -> None:
        self._left = 0
        self._head = b""

    def __call__(self, data: bytes) -> int:
        count = 0
        while data:
            if self._left:
                passed = min(self._left, len(data))
                self._left -= passed
                data = data[passed:]
                count += not self._left
                continue
            head, end, data = (self._head + data).partition(b"\n")
            self._head = b"" if end else head
            if end:
                word, _, length, _ = head.split(b" ", 3)
                if word != b"CHUNK":
                    raise Failure(f"the server that is measured: {head.decode(errors='replace')}")
                self._left = int(length)
        return count


def _tail() -> Load:
    def fan(point: Point) -> FanOut:
        prefix, groups = perf_counter_ns(), point.producers  # each round has topics of its own
        body = stamped_body(point.size)
        topics = [b"bench-%d-%03d" % (prefix, number) for number in range(groups)]
        return FanOut(
            hello_consumer=lambda consumer: b"TAIL %b 0\n" % topics[consumer % groups],
            message=lambda queue, stamp: b"PRODUCE %b %b\n" % (topics[queue], body(stamp)),
            delivered_bytes=0,
            stamp_at=point.size + 1,
            groups=groups,
        )

    return fan_out_load(fan)


def _say_first(who: Login) -> tuple[bytes, bytes]:
    return auth(who), b"OK\n"


ADAPTERS = {
    "produce": Adapter("logmq", "produce", request_load(_produce), say_first=_say_first),
    "consume": Adapter("logmq", "consume", _consume, say_first=_say_first),
    "fetch": Adapter("logmq", "fetch", _fetch, say_first=_say_first),
    "tail": Adapter("logmq", "tail", _tail(), STAMPED_BYTES_MIN, one_name_each=True, say_first=_say_first),
}

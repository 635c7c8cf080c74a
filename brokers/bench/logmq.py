"""`brokers bench logmq`: what this machine's disk, kernel and processors let LogMQ do, beside baselines.

The server is a process of its own on a new data folder, or one that runs already (`--port`). `--data-dir` is
on the disk that is meant. The load comes from this process, so on two processors each has one. The baselines
are measured in the same run, in turns with the rounds they are compared with:

- `fdatasync`: a loop that writes one message into a preallocated file and syncs it, alone on the same disk;
- `floor`: that and a bare round trip over loopback, which no durable closed loop can beat (`floor.py`);
- `redis`: redis-server with `--appendonly yes --appendfsync always`, where it is installed: XADD under the
  same connections and windows;
- `one`: the same case with one connection, one reader or one topic;
- `quiet`: the same with no checkpoint in all that time, from a second server. The ratio is that of the p99.
"""

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import count as numbers
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from brokers.bench import bare, options
from brokers.bench.floor import closed_loop, sync_loop
from brokers.bench.load import (
    STAMP_BYTES,
    Address,
    FanOut,
    Measured,
    Row,
    Talk,
    connect,
    fan_out,
    fill,
    histogram,
    in_turns,
    lines,
    middle,
    row_of,
    rows_beside,
    run,
)
from brokers.bench.login import SAY_FIRST
from brokers.bench.options import DataDir, Rounds, Seconds, Size, each, some
from brokers.bench.servers import brokers_server, redis_command, redis_server, same_server, serving
from brokers.bench.sweep import (
    NO_SWEEP,
    Load,
    Peer,
    Point,
    Sweep,
    Swept,
    measured_at,
    request_load,
    started,
    swept,
)
from brokers.errors import ExitCode, Failure
from logmq.connector import auth
from shared.cli.options import Json, Port

Mode = Literal["produce", "topics", "checkpoint", "consume", "fetch", "tail"]
MODES: tuple[Mode, ...] = ("produce", "topics", "checkpoint", "consume", "fetch", "tail")
SIZE_MAX = 1 << 20
"""The server's own limit unless it is set: a larger message is refused, and refusals are fast."""
PRELOADED_BYTES = 128 * 1024 * 1024
FETCH_BYTES = 4 * 1024 * 1024
CHECKPOINTED = {"BROKERS_STORAGE_SEGMENT_BYTES": "256KiB"}
"""One checkpoint after the other: each begins where a segment of the journal is full."""
SAY_FIRST["logmq"] = lambda who: (auth(who), b"OK\n")


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], options.MODES] = MODES,
    connections: Annotated[int, some("Many connections; one alone is measured too.")] = 64,
    window: Annotated[int, some("Requests that each keeps open; one alone is measured too.")] = 64,
    size: Size = 100,
    topics: Annotated[int, some("Topics written at once, each by a connection.")] = 1000,
    readers: Annotated[int, some("TAIL readers.")] = 100,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    host: Annotated[str, Parameter(help="Address of a server that runs already.")] = "127.0.0.1",
    port: Annotated[Port, Parameter(help="Its port; without one a server is started.")] = None,
    data_dir: DataDir = None,
    sweep: Sweep = NO_SWEEP,
    json: Json = False,
) -> Iterable[Any]:
    """Measure LogMQ on this machine.

    Durable produce (one client in a closed loop, then many with windows; to one topic
    and to many, and amid checkpoints of many), CONSUME message by message, FETCH from the
    page cache, TAIL to many readers.
    """
    if sweep.sweep:
        return swept([SWEPT], sweep, window, seconds, rounds, data_dir, json=json)
    if not 24 <= size <= SIZE_MAX:
        text = f"--size: 24 bytes at least, for a message's time, and {SIZE_MAX} at most"
        raise Failure(text, ExitCode.USAGE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        address: Address = (
            (host, port) if port is not None else stack.enter_context(serving(folder, "logmq"))["logmq"]
        )
        measured = _Modes(address, folder, size, connections, window, topics, readers, seconds, rounds)
        return list(each(modes, lambda mode: getattr(measured, mode)()))


@attrs.frozen
class _Modes:
    """The measurements of one server, a method for each mode."""

    _address: Address
    _folder: Path
    _size: int
    _connections: int
    _window: int
    _topics: int
    _readers: int
    _seconds: float
    _rounds: int

    def produce(self) -> Iterator[Row]:
        """One durable client, then many."""
        folder, size = self._folder, self._size
        alone: dict[str, Peer] = {
            "fdatasync": (same_server, lambda _, point, seconds: sync_loop(folder, size, seconds / 2)),
            "floor": (same_server, lambda _, point, seconds: closed_loop(folder, size, seconds)),
        }
        own: Peer = (lambda *_: nullcontext(self._address), SWEPT.load)
        with started({"logmq": own, **alone, **SWEPT.peers}, folder) as ways:
            for count, window in ((1, 1), (self._connections, self._window)):
                chosen = {name: way for name, way in ways.items() if count == 1 or name not in alone}
                found = measured_at(chosen, Point(size, 1, count, window), self._seconds, self._rounds)
                yield from rows_beside("produce", count, window, size, found, *alone)

    def topics(self) -> Iterator[Row]:
        """As many connections as topics: all on one topic, then each on its own."""
        size, topics, window = self._size, self._topics, self._window
        points = {"one": Point(size, 1, topics, window), "each": Point(size, topics, topics, window)}
        ways = {
            name: partial(SWEPT.load, self._address, point, self._seconds) for name, point in points.items()
        }
        found = in_turns(self._rounds, ways)
        for measured in found.values():
            ratio = measured.rate / found["one"].rate
            yield row_of("topics", topics, window, size, measured, "one", ratio)

    def checkpoint(self) -> Iterator[Row]:
        """Closed loops over all topics, amid checkpoints of these and without any."""
        size, topics = self._size, self._topics
        requests = [b"PRODUCE bench-%d %b\n" % (number, b"x" * size) for number in range(topics)]
        count = min(16, topics)
        starts = [number * topics // count for number in range(count)]

        def load(address: Address, point: Point, seconds: float) -> Measured:
            talks = [Talk.repeating(requests[start:] + requests[:start], 1, 1) for start in starts]
            return run(address, talks, seconds)

        both: dict[str, Peer] = {
            "checkpoint": (brokers_server("logmq", CHECKPOINTED), load),
            "quiet": (brokers_server("logmq"), load),
        }
        with started(both, self._folder) as ways:
            point = Point(size, topics, count, 1)
            for way in ways.values():
                way(point, self._seconds)  # makes the topics
            found = measured_at(ways, point, self._seconds, self._rounds)
        amid, quiet = found["checkpoint"], found["quiet"]
        yield row_of("checkpoint", count, 1, size, amid, "quiet", quiet.p99_us / amid.p99_us)

    def consume(self) -> Iterator[Row]:
        """CONSUME, one request a message, each connection at a place of its own."""
        topic, total = _preload(self._address, self._size)
        step = self._size + 4

        def talk(window: int) -> Talk:
            place = numbers(perf_counter_ns() % (total // 2))

            def requests(count: int) -> bytes:
                return b"".join(
                    b"CONSUME %b %d\n" % (topic, next(place) % total * step) for _ in range(count)
                )

            return Talk(requests, lines(), window)

        def measured(count: int, window: int) -> Measured:
            return run(self._address, [talk(window) for _ in range(count)], self._seconds)

        cases = ((1, 1), (1, self._window), (self._connections, self._window))
        return self._beside_the_first("consume", cases, measured)

    def fetch(self) -> Iterator[Row]:
        """FETCH of what is in the page cache, to one reader, then to four."""
        topic, total = _preload(self._address, self._size)

        def measured(count: int, window: int) -> Measured:
            return _fetch_round(self._address, topic, total, self._size, count, self._seconds)

        return self._beside_the_first("fetch", ((1, 1), (4, 1)), measured)

    def tail(self) -> Iterator[Row]:
        """One writer with a window; every reader gets every message. The rate is that of deliveries."""
        filler = b"x" * (self._size - STAMP_BYTES)

        def measured(count: int, window: int) -> Measured:
            topic = b"bench-%d" % perf_counter_ns()
            fan = FanOut(
                hello_consumer=lambda consumer: b"TAIL %b 0\n" % topic,
                message=lambda queue, stamp: b"PRODUCE %b %b%b\n" % (topic, stamp, filler),
                delivered_bytes=0,
                stamp_at=self._size + 1,
            )
            return fan_out(
                self._address, fan, producers=1, consumers=count, window=window, seconds=self._seconds
            )

        return self._beside_the_first("tail", ((1, self._window), (self._readers, self._window)), measured)

    def _beside_the_first(
        self, mode: str, cases: Iterable[tuple[int, int]], measure: Callable[[int, int], Measured]
    ) -> Iterator[Row]:
        """Each case, of so many connections with a window, beside the first of them."""
        one: Measured | None = None
        for count, window in cases:
            measured = middle([measure(count, window) for _ in range(self._rounds)])
            one = one or measured
            yield row_of(mode, count, window, self._size, measured, "one", measured.rate / one.rate)


def _at(request: Callable[[bytes, bytes], bytes], lines_each: int) -> Load:
    return request_load(
        lambda point, client: Talk.repeating(
            [request(name, b"x" * point.size) for name in point.names_of(client)], lines_each, point.window
        )
    )


SWEPT = Swept(
    "logmq",
    "produce",
    _at(lambda topic, body: b"PRODUCE %b %b\n" % (topic, body), 1),
    {"redis": (redis_server, _at(lambda stream, body: redis_command(b"XADD", stream, b"*", b"m", body), 2))},
    bare.answers(synced=True),
)


def _preload(address: Address, size: int) -> tuple[bytes, int]:
    """A topic to read: its name, and how many messages it has."""
    topic, total = f"bench-{perf_counter_ns()}", max(PRELOADED_BYTES // (size + 4) // 1000, 1) * 1000
    fill_topic(address, topic, size, total)
    return topic.encode(), total


def _fetch_round(
    address: Address, topic: bytes, total: int, size: int, connections: int, seconds: float
) -> Measured:
    """Readers in threads: what they do is system calls, which the interpreter lock does not hold up."""
    trips = histogram()
    taken = [0] * connections
    begun = perf_counter_ns()
    ends = begun + int(seconds * 1e9)

    def read(number: int) -> None:
        buffer = bytearray(1 << 20)
        at = 0
        with connect(address) as sock:
            while perf_counter_ns() < ends or not taken[number]:  # a thread may begin late
                asked = perf_counter_ns()
                sock.sendall(b"FETCH %b %d %d\n" % (topic, at, FETCH_BYTES))
                head = bytearray()
                while b"\n" not in head:
                    head += sock.recv(4096)
                line, _, rest = bytes(head).partition(b"\n")
                word, _, length, following = line.split(b" ")
                assert word == b"CHUNK", line
                left = int(length) - len(rest)
                while left:
                    left -= sock.recv_into(buffer, min(left, len(buffer)))
                trips.record_value((perf_counter_ns() - asked) // 1000 or 1)
                taken[number] += int(length)
                at = int(following) % (total * (size + 4))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Measured.of(sum(taken) // (size + 4), perf_counter_ns() - begun, trips)


def fill_topic(address: Address, topic: str, size: int, count: int) -> None:
    """Write so many thousands of messages."""
    with connect(address) as sock:
        fill(sock, lines(), b"PRODUCE %b %b\n" % (topic.encode(), b"x" * size), count)

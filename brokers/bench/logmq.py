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
from brokers.errors import ExitCode, Refusal
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
        raise Refusal(text, ExitCode.USAGE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        address: Address = (
            (host, port) if port is not None else stack.enter_context(serving(folder, "logmq"))["logmq"]
        )
        cases = {
            "produce": lambda: _produce(address, folder, size, connections, window, seconds, rounds),
            "topics": lambda: _topics(address, size, topics, window, seconds, rounds),
            "checkpoint": lambda: _checkpoint(folder, size, topics, seconds, rounds),
            "consume": lambda: _consume(address, size, connections, window, seconds, rounds),
            "fetch": lambda: _fetch(address, size, seconds, rounds),
            "tail": lambda: _tail(address, size, readers, window, seconds, rounds),
        }
        return list(each(modes, lambda mode: cases[mode]()))


def _produce(
    address: Address, folder: Path, size: int, connections: int, window: int, seconds: float, rounds: int
) -> Iterator[Row]:
    """One durable client, then many."""
    alone: dict[str, Peer] = {
        "fdatasync": (same_server, lambda _, point, seconds: sync_loop(folder, point.size, seconds / 2)),
        "floor": (same_server, lambda _, point, seconds: closed_loop(folder, point.size, seconds)),
    }
    own: Peer = (lambda *_: nullcontext(address), SWEPT.load)
    with started({"logmq": own, **alone, **SWEPT.peers}, folder) as ways:
        for count, under_way in ((1, 1), (connections, window)):
            chosen = {name: way for name, way in ways.items() if count == 1 or name not in alone}
            found = measured_at(chosen, Point(size, 1, count, under_way), seconds, rounds)
            yield from rows_beside("produce", count, under_way, size, found, *alone)


def _topics(
    address: Address, size: int, topics: int, window: int, seconds: float, rounds: int
) -> Iterator[Row]:
    """As many connections as topics: all on one topic, then each on its own."""
    points = {"one": Point(size, 1, topics, window), "each": Point(size, topics, topics, window)}
    ways = {name: partial(SWEPT.load, address, point, seconds) for name, point in points.items()}
    found = in_turns(rounds, ways)
    for measured in found.values():
        yield row_of("topics", topics, window, size, measured, "one", measured.rate / found["one"].rate)


def _checkpoint(folder: Path, size: int, topics: int, seconds: float, rounds: int) -> Iterator[Row]:
    """Closed loops over all topics, amid checkpoints of these and without any."""
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
    with started(both, folder) as ways:
        point = Point(size, topics, count, 1)
        for way in ways.values():
            way(point, seconds)  # makes the topics
        found = measured_at(ways, point, seconds, rounds)
    amid, quiet = found["checkpoint"], found["quiet"]
    yield row_of("checkpoint", count, 1, size, amid, "quiet", quiet.p99_us / amid.p99_us)


def _consume(
    address: Address, size: int, connections: int, window: int, seconds: float, rounds: int
) -> Iterator[Row]:
    """CONSUME, one request a message, each connection at a place of its own."""
    topic, total = _preload(address, size)

    def talk(under_way: int) -> Talk:
        place = numbers(perf_counter_ns() % (total // 2))

        def requests(count: int) -> bytes:
            return b"".join(
                b"CONSUME %b %d\n" % (topic, next(place) % total * (size + 4)) for _ in range(count)
            )

        return Talk(requests, lines(), under_way)

    def measured(count: int, under_way: int) -> Measured:
        return run(address, [talk(under_way) for _ in range(count)], seconds)

    cases = ((1, 1), (1, window), (connections, window))
    yield from _beside_the_first("consume", cases, size, rounds, measured)


def _fetch(address: Address, size: int, seconds: float, rounds: int) -> Iterator[Row]:
    """FETCH of what is in the page cache, to one reader, then to four."""
    topic, total = _preload(address, size)

    def measured(count: int, window: int) -> Measured:
        return _fetch_round(address, topic, total * (size + 4), size, count, seconds)

    yield from _beside_the_first("fetch", ((1, 1), (4, 1)), size, rounds, measured)


def _tail(
    address: Address, size: int, readers: int, window: int, seconds: float, rounds: int
) -> Iterator[Row]:
    """One writer with a window; every reader gets every message. The rate is that of deliveries."""
    filler = b"x" * (size - STAMP_BYTES)

    def measured(count: int, under_way: int) -> Measured:
        topic = b"bench-%d" % perf_counter_ns()
        fan = FanOut(
            hello_consumer=lambda consumer: b"TAIL %b 0\n" % topic,
            message=lambda queue, stamp: b"PRODUCE %b %b%b\n" % (topic, stamp, filler),
            delivered_bytes=0,
            stamp_at=size + 1,
        )
        return fan_out(address, fan, producers=1, consumers=count, window=under_way, seconds=seconds)

    yield from _beside_the_first("tail", ((1, window), (readers, window)), size, rounds, measured)


def _beside_the_first(
    mode: str,
    cases: Iterable[tuple[int, int]],
    size: int,
    rounds: int,
    measure: Callable[[int, int], Measured],
) -> Iterator[Row]:
    """Each case, of so many connections with a window, beside the first of them."""
    one: Measured | None = None
    for count, window in cases:
        measured = middle([measure(count, window) for _ in range(rounds)])
        one = one or measured
        yield row_of(mode, count, window, size, measured, "one", measured.rate / one.rate)


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
    address: Address, topic: bytes, end: int, size: int, connections: int, seconds: float
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
                at = int(following) % end

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

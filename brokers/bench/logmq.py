"""`brokers bench logmq`: what this machine's disk, kernel and processors let LogMQ do, beside baselines.

The server is a process of its own on a new data folder (`--data-dir`: on the disk that is meant), or one that
runs already (`--port`). The load comes from this process, so on two processors each has one. The baselines
are measured in the same run, in turns with the rounds they are compared with:

- `fdatasync`: a loop that writes one message into a preallocated file and syncs it, alone on the same disk:
  the floor under one client's durable round trip;
- `redis`: redis-server with `--appendonly yes --appendfsync always`, where it is installed: XADD under the
  same connections and windows;
- `one`: the same case with one connection, one reader or one topic.
"""

import mmap
import os
import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count as numbers
from pathlib import Path
from time import monotonic, perf_counter, perf_counter_ns
from typing import Annotated, Literal

import attrs
from cyclopts import Parameter

from brokers.bench import options
from brokers.bench.load import Address, Measured, Row, Talk, histogram, lines, middle, run
from brokers.bench.options import DataDir, Rounds, Seconds, Size, each, some
from brokers.bench.servers import redis_server, serving
from brokers.errors import ExitCode, Refusal
from shared.cli.options import Json, Port

Mode = Literal["produce", "topics", "consume", "fetch", "tail"]
MODES: tuple[Mode, ...] = ("produce", "topics", "consume", "fetch", "tail")
PRELOADED_BYTES = 128 * 1024 * 1024
FETCH_BYTES = 4 * 1024 * 1024


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
    json: Json = False,
) -> list[Row]:
    """Measure LogMQ on this machine.

    Durable produce (one client in a closed loop, then many with windows; to one topic
    and to many), CONSUME message by message, FETCH from the page cache, TAIL to many readers.
    """
    if size < 24:
        raise Refusal("--size: a message of this bench has 24 bytes at least, for its time", ExitCode.USAGE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        address: Address = (
            (host, port) if port is not None else stack.enter_context(serving(folder, "logmq"))["logmq"]
        )
        case = _Case(
            address=address,
            folder=folder,
            connections=connections,
            window=window,
            size=size,
            topics=topics,
            readers=readers,
            seconds=seconds,
            rounds=rounds,
        )
        cases = {
            "produce": case.produce,
            "topics": case.many_topics,
            "consume": case.consume,
            "fetch": case.fetch,
            "tail": case.tail,
        }
        return each(modes, lambda mode: cases[mode]())


@attrs.frozen
class _Case:
    address: Address
    folder: Path
    connections: int
    window: int
    size: int
    topics: int
    readers: int
    seconds: float
    rounds: int

    def produce(self) -> Iterator[Row]:
        """One durable client, then many."""
        with redis_server(self.folder) as redis:
            for connections, window in ((1, 1), (self.connections, self.window)):
                line = b"PRODUCE bench-%d %b\n" % (perf_counter_ns(), b"x" * self.size)
                ours = [_repeating(line, 1, window) for _ in range(connections)]
                measured, theirs, synced = [], [], []
                for _ in range(self.rounds):
                    measured.append(run(self.address, ours, self.seconds))
                    if redis is not None:
                        talks = [self._xadd(window) for _ in range(connections)]
                        theirs.append(run(redis, talks, self.seconds))
                    if connections == 1:
                        synced.append(_sync_loop(self.folder, self.size, self.seconds / 2))
                best = middle(measured)
                if synced:
                    floor = sorted(synced)[len(synced) // 2]
                    yield self._row("produce", connections, window, best, "fdatasync", floor / best.median_us)
                if theirs:
                    yield self._row(
                        "produce", connections, window, best, "redis", best.rate / middle(theirs).rate
                    )
                elif not synced:
                    yield self._row("produce", connections, window, best, "-", None)

    def many_topics(self) -> Iterator[Row]:
        """As many connections as topics: all on one topic, then each on its own."""
        stamp = perf_counter_ns()
        cases: dict[int, list[Measured]] = {1: [], self.topics: []}
        for _ in range(self.rounds):
            for topics, measured in cases.items():
                lines_ = [
                    b"PRODUCE bench-%d-%d-%d %b\n" % (stamp, topics, number % topics, b"x" * self.size)
                    for number in range(self.topics)
                ]
                talks = [_repeating(line, 1, self.window) for line in lines_]
                measured.append(run(self.address, talks, self.seconds))
        one = middle(cases[1])
        for measured in cases.values():
            best = middle(measured)
            yield self._row("topics", self.topics, self.window, best, "one", best.rate / one.rate)

    def consume(self) -> Iterator[Row]:
        """CONSUME, one request a message, each connection at a place of its own."""
        topic, total = self._preload()
        one = None
        for connections, window in ((1, 1), (1, self.window), (self.connections, self.window)):
            rounds = []
            for _ in range(self.rounds):
                talks = [self._consumer(topic, total, window) for _ in range(connections)]
                rounds.append(run(self.address, talks, self.seconds))
            measured = middle(rounds)
            one = one or measured
            yield self._row("consume", connections, window, measured, "one", measured.rate / one.rate)

    def fetch(self) -> Iterator[Row]:
        """FETCH of what is in the page cache, to one reader, then to four."""
        topic, total = self._preload()
        one: Measured | None = None
        for connections in (1, 4):
            rounds = [self._fetch_round(topic, total, connections) for _ in range(self.rounds)]
            measured = middle(rounds)
            one = one or measured
            yield self._row("fetch", connections, 1, measured, "one", measured.rate / one.rate)

    def tail(self) -> Iterator[Row]:
        """One writer with a window; every reader gets every message. The rate is that of deliveries."""
        one: Measured | None = None
        for readers in (1, self.readers):
            measured = middle([self._tail_round(readers) for _ in range(self.rounds)])
            one = one or measured
            yield self._row("tail", readers, self.window, measured, "one", measured.rate / one.rate)

    def _row(
        self,
        mode: str,
        connections: int,
        window: int,
        measured: Measured,
        baseline: str,
        ratio: float | None,
    ) -> Row:
        return Row.of(mode, connections, window, self.size, measured, baseline, ratio)

    def _xadd(self, window: int) -> Talk:
        message = b"x" * self.size
        request = b"*5\r\n$4\r\nXADD\r\n$5\r\nbench\r\n$1\r\n*\r\n$1\r\nm\r\n$%d\r\n%b\r\n" % (
            self.size,
            message,
        )
        return _repeating(request, 2, window)

    def _consumer(self, topic: bytes, total: int, window: int) -> Talk:
        length = self.size + 4
        place = numbers(perf_counter_ns() % (total // 2))

        def requests(count: int) -> bytes:
            return b"".join(b"CONSUME %b %d\n" % (topic, next(place) % total * length) for _ in range(count))

        return Talk(requests, lines(), window)

    def _preload(self) -> tuple[bytes, int]:
        """A topic to read: its name, and how many messages it has."""
        topic = b"bench-%d" % perf_counter_ns()
        total = max(PRELOADED_BYTES // (self.size + 4), 1000)
        line = b"PRODUCE %b %b\n" % (topic, b"x" * self.size)
        with _connect(self.address) as sock:
            answered = sent = 0
            answers = lines()
            while answered < total:
                count = min(2000, total - sent)
                if count and sent - answered < 20_000:
                    sock.sendall(line * count)
                    sent += count
                else:
                    answered += answers(sock.recv(1 << 18))
        return topic, total

    def _fetch_round(self, topic: bytes, total: int, connections: int) -> Measured:
        """Readers in threads: what they do is system calls, which the interpreter lock does not hold up."""
        trips = histogram()
        taken = [0] * connections
        ends = monotonic() + self.seconds
        threads = [
            threading.Thread(target=self._fetch_until, args=(topic, total, ends, trips, taken, number))
            for number in range(connections)
        ]
        begun = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = perf_counter() - begun
        return Measured(
            sum(taken) / (self.size + 4) / wall,
            sum(taken) / wall,
            trips.get_value_at_percentile(50),
            trips.get_value_at_percentile(99),
        )

    def _fetch_until(
        self, topic: bytes, total: int, ends: float, trips: object, taken: list[int], number: int
    ) -> None:
        buffer = bytearray(1 << 20)
        at, end = 0, total * (self.size + 4)
        with _connect(self.address) as sock:
            while monotonic() < ends or not taken[number]:  # a thread may begin late
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
                trips.record_value((perf_counter_ns() - asked) // 1000 or 1)  # type: ignore[attr-defined]
                taken[number] += int(length)
                at = int(following) % end

    def _tail_round(self, readers: int) -> Measured:
        topic = b"bench-%d" % perf_counter_ns()
        trips = histogram()
        filler = b"x" * (self.size - 20)
        with ExitStack() as stack:
            writer = stack.enter_context(_connect(self.address))
            poll = select.epoll()
            tails: dict[int, tuple[socket.socket, bytearray]] = {}
            for _ in range(readers):
                sock = stack.enter_context(_connect(self.address))
                sock.sendall(b"TAIL %b 0\n" % topic)
                poll.register(sock, select.EPOLLIN)
                tails[sock.fileno()] = (sock, bytearray())
            poll.register(writer, select.EPOLLIN)
            sent = delivered = received = 0
            answers, due = lines(), self.window
            begun = now = perf_counter_ns()
            ends = begun + int(self.seconds * 1e9)
            while now < ends or delivered < sent * readers:
                if due and now < ends:
                    writer.sendall(b"PRODUCE %b %020d%b\n" % (topic, now, filler) * due)
                    sent += due
                    due = 0
                for fd, _ in poll.poll(1.0):
                    if fd == writer.fileno():
                        due += answers(writer.recv(1 << 16))
                        continue
                    sock, rest = tails[fd]
                    data = sock.recv(1 << 18)
                    now = perf_counter_ns()
                    received += len(data)
                    delivered += data.count(b"\n")
                    rest += data
                    end = rest.rfind(b"\n")
                    if end >= 0:
                        stamp = rest[end - self.size : end - self.size + 20]
                        trips.record_value(max((now - int(stamp)) // 1000, 1))
                        del rest[: end + 1]
                now = perf_counter_ns()
            wall = (now - begun) / 1e9
            poll.close()
        return Measured(
            delivered / wall,
            received / wall,
            trips.get_value_at_percentile(50),
            trips.get_value_at_percentile(99),
        )


def _repeating(request: bytes, lines_each: int, window: int) -> Talk:
    return Talk(lambda count: request * count, lines(lines_each), window)


def _sync_loop(folder: Path, size: int, seconds: float) -> float:
    """Median microseconds of one write and its fdatasync, in a preallocated file."""
    trips = histogram()
    page = mmap.mmap(-1, 4096)
    page.write(b"x" * min(size, 4096))
    fd = os.open(folder / "fdatasync", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        blocks = 4096
        os.pwrite(fd, bytes(4096 * blocks), 0)
        os.fsync(fd)
        ends = monotonic() + seconds
        at = 0
        while not at or monotonic() < ends:
            begun = perf_counter_ns()
            os.pwrite(fd, memoryview(page)[:size], at % blocks * 4096)
            os.fdatasync(fd)
            trips.record_value(max((perf_counter_ns() - begun) // 1000, 1))
            at += 1
    finally:
        os.close(fd)
    return float(trips.get_value_at_percentile(50))


@contextmanager
def _connect(address: Address) -> Iterator[socket.socket]:
    assert isinstance(address, tuple)
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock

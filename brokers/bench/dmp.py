"""`brokers bench dmp`: one writer, and readers that each get everything, beside others in the same run.

A writer sends messages that are all alike, in pieces, and keeps so many on their way to the slowest reader;
every reader's bytes are counted, and since all messages have one size, so are its messages. The rate is
that of deliveries, all readers together; the latency runs from a piece's send to the arrival of its last byte
at the last reader, so with a window above one it includes the wait behind others.

The servers are processes of their own, the load comes from this one, which is one thread: where it is the
limit, it is so for all of them. Measured in turns:

- `direct`: a sink and feeds, over leases;
- `basic`: basic.publish and basic.consume without acknowledgements, on the same server;
- redis and nats, PUBLISH and SUBSCRIBE, where they are installed.
"""

import select
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated

import attrs
import trio
from pamqp import commands

from brokers.bench.load import WARM_UP_SECONDS, Address, Measured, Span, histogram, middle
from brokers.bench.options import Rounds, Seconds, Size, some
from brokers.bench.pouring import Case, poured
from brokers.bench.servers import nats_server, redis_server, serving
from brokers.errors import ExitCode, Refusal
from brokers.render import progress
from dmp import wire
from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, HEADER, encode
from dmp.data_types import short
from dmp.principal import Principal
from dmp.properties import NO_PROPERTIES
from dmp.wire import DMP_HEADER
from shared.cli.options import Json

RECEIVE_BYTES = 256 * 1024
EXCHANGE = KEY = "bench"
TAG = "t"


@attrs.frozen
class Row:
    """One case beside one baseline. `ratio`: its rate over the baseline's."""

    mode: str
    readers: int
    window: int
    deliveries_per_second: int
    megabytes_per_second: float
    median_us: float
    p99_us: float
    baseline: str
    ratio: float | None


@attrs.define(eq=False)
class Way:
    """A writer and its readers, subscribed. `sent`, `got`: one message's bytes at either end."""

    writer: socket.socket
    readers: Sequence[socket.socket]
    sent: bytes
    got: int
    hold: Sequence[socket.socket] = ()
    """What must stay open meanwhile."""

    def close(self) -> None:
        for sock in (self.writer, *self.readers, *self.hold):
            sock.close()


def bench(
    *,
    readers: Annotated[int, some("Readers of everything; one alone is measured too.")] = 10,
    window: Annotated[int, some("Messages on their way; one alone is measured too.")] = 16384,
    size: Size = 100,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    json: Json = False,
) -> list[Row]:
    """Measure DMP on this machine.

    A sink and feeds, one and many, beside basic.publish on the same server, and beside
    redis and nats where they are installed.
    """
    if not 1 <= size <= 100_000:
        raise Refusal("--size: 1 to 100000 bytes", ExitCode.USAGE)
    body = b"x" * size
    rows: list[Row] = []
    with ExitStack() as stack, progress("measuring", total=3) as update:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        ours = stack.enter_context(serving(folder, "dmp"))["dmp"]
        peers: dict[str, Callable[[int], Way]] = {
            "direct": lambda count: direct(ours, body, count),
            "basic": lambda count: basic(ours, body, count),
        }
        if (redis := stack.enter_context(redis_server(folder))) is not None:
            peers["redis"] = lambda count: redis_way(redis, body, count)
        if (nats := stack.enter_context(nats_server())) is not None:
            peers["nats"] = lambda count: nats_way(nats, body, count)
        for done, (count, under_way) in enumerate(((1, 1), (1, window), (readers, window)), 1):
            rows += _beside(peers, count, under_way, size, seconds, rounds)
            update(done)
    return rows


def _beside(
    peers: dict[str, Callable[[int], Way]], readers: int, window: int, size: int, seconds: float, rounds: int
) -> Iterator[Row]:
    """Direct beside each of the others."""
    measured: dict[str, list[Measured]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, open_ in peers.items():
            way = open_(readers)
            try:
                measured[name].append(run(way, window, seconds))
            finally:
                way.close()
    best = {name: middle(each) for name, each in measured.items()}
    ours = best.pop("direct")
    for name, theirs in best.items():
        yield Row(
            mode="direct",
            readers=readers,
            window=window,
            deliveries_per_second=round(ours.rate),
            megabytes_per_second=round(ours.rate * size / 1e6, 1),
            median_us=ours.median_us,
            p99_us=ours.p99_us,
            baseline=name,
            ratio=round(ours.rate / theirs.rate, 2),
        )


def run(way: Way, window: int, seconds: float) -> Measured:
    """Keep `window` messages on their way for `seconds`, after a warm-up. Raises ConnectionError."""
    trips = histogram()
    flow = _Flow(way, window)
    span = Span.after(WARM_UP_SECONDS, seconds)
    now = perf_counter_ns()
    counted = 0
    try:
        while not span.is_over(now, trips.get_total_count()):
            flow.write()
            flow.read()
            now = perf_counter_ns()
            if now < span.since:
                counted = flow.arrived
            for sent_at in flow.come():
                if now >= span.since:
                    trips.record_value(max((now - sent_at) // 1000, 1))
    finally:
        flow.close()
    rate = (flow.arrived - counted) / ((now - span.since) / 1e9)
    return Measured(
        rate, rate * way.got, trips.get_value_at_percentile(50), trips.get_value_at_percentile(99)
    )


class _Flow:
    """Messages on their way from the writer to every reader, sent in pieces. `arrived`: at all readers."""

    def __init__(self, way: Way, window: int) -> None:
        self.arrived = 0
        self._way = way
        self._piece = max(1, min(window // 4, 65536 // len(way.sent)))
        self._window = max(window, self._piece)
        self._data = way.sent * self._piece
        self._left = memoryview(b"")
        self._sent = 0
        self._pieces: deque[tuple[int, int]] = deque()
        """(bytes at a reader when it has come, when it was sent)"""
        self._got = {reader.fileno(): 0 for reader in way.readers}
        """Bytes."""
        self._blocked = False
        self._by_fd = {sock.fileno(): sock for sock in (way.writer, *way.readers)}
        self._poll = select.epoll()
        for sock in self._by_fd.values():
            sock.setblocking(False)
            self._poll.register(sock, select.EPOLLIN)

    def write(self) -> None:
        """As many pieces as the window has room for and the socket takes."""
        way, left = self._way, self._left
        most = min(self._got.values()) // way.got + self._window - self._piece
        while not self._blocked and (left or self._sent <= most):
            if not left:
                left = memoryview(self._data)
                self._sent += self._piece
                self._pieces.append((self._sent * way.got, perf_counter_ns()))
            try:
                left = left[way.writer.send(left) :]
            except BlockingIOError:
                self._blocked = True
                self._poll.modify(way.writer, select.EPOLLIN | select.EPOLLOUT)
        self._left = left

    def read(self) -> None:
        """What has come, or comes within a second. Raises ConnectionError."""
        writer = self._way.writer
        for fd, flags in self._poll.poll(1.0):
            sock = self._by_fd[fd]
            if sock is writer and flags & select.EPOLLOUT:
                self._blocked = False
                self._poll.modify(sock, select.EPOLLIN)
            if flags & ~select.EPOLLOUT:
                try:
                    received = sock.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                if not received:
                    raise ConnectionError("the server closed a connection")
                if sock is not writer:  # a writer's answers say nothing
                    self._count(fd, len(received))

    def _count(self, fd: int, received: int) -> None:
        before, each = self._got[fd], self._way.got
        self._got[fd] = before + received
        self.arrived += (before + received) // each - before // each

    def come(self) -> Iterator[int]:
        """When those pieces were sent that have since come to every reader, each once."""
        slowest = min(self._got.values())
        while self._pieces and self._pieces[0][0] <= slowest:
            yield self._pieces.popleft()[1]

    def close(self) -> None:
        self._poll.close()


class _Blocking(trio.abc.Stream):
    """A socket as the principal wants it; every call blocks."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._sock.sendall(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return self._sock.recv(max_bytes or RECEIVE_BYTES)

    async def wait_send_all_might_not_block(self) -> None:
        return

    async def aclose(self) -> None:
        self._sock.close()


def _principal(address: Address) -> tuple[Principal, socket.socket]:
    sock = _dial(address)
    principal = Principal(_Blocking(sock))
    trio.run(principal.greet)
    trio.run(principal.log_in, "guest", "guest")
    trio.run(principal.open_channel)
    trio.run(principal.declare_exchange, EXCHANGE, "fanout")
    return principal, sock


def direct(address: Address, body: bytes, readers: int) -> Way:
    principal, sock = _principal(address)
    feeds = []
    for _ in range(readers):
        queue = trio.run(principal.declare_queue, "")
        trio.run(principal.bind, queue, EXCHANGE, KEY)
        feeds.append(_leased(address, trio.run(principal.feed_lease, queue)))
    sink = _leased(address, trio.run(principal.sink_lease, EXCHANGE))
    message = direct_message(body)
    return Way(sink, feeds, message, len(message), (sock,))


def recorded(size: int) -> Case:
    """A sink and a feed, as `brokers bench recording` wants them."""
    body = b"x" * size
    message = direct_message(body)

    def run(address: tuple[str, int], data: Path, seconds: float) -> float:
        way = direct(address, body, 1)
        try:
            return poured(way.writer, way.readers[0], message, seconds)
        finally:
            way.close()

    return Case(run, "dmp_messages_sunk_total", len(message))


def direct_message(body: bytes) -> bytes:
    """As a sink takes it, and a feed gives it."""
    return wire.message(wire.Message(b"", KEY.encode(), body))


def basic(address: Address, body: bytes, readers: int) -> Way:
    consumers = []
    for _ in range(readers):
        principal, sock = _principal(address)
        queue = trio.run(principal.declare_queue, "")
        trio.run(principal.bind, queue, EXCHANGE, KEY)
        consume = commands.Basic.Consume(queue=queue, consumer_tag=TAG, no_ack=True)
        trio.run(principal.call, consume, commands.Basic.ConsumeOk)
        consumers.append(sock)
    _, writer = _principal(address)
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + NO_PROPERTIES
    content = _frame(HEADER, header) + _frame(BODY, body)
    publish = encode(commands.Basic.Publish(exchange=EXCHANGE, routing_key=KEY), 1)
    deliver = encode(commands.Basic.Deliver(TAG, 1, False, EXCHANGE, KEY), 1)
    return Way(writer, consumers, publish + content, len(deliver + content))


def redis_way(address: Address, body: bytes, readers: int) -> Way:
    subscribers = []
    for _ in range(readers):
        sock = _dial(address)
        sock.sendall(b"SUBSCRIBE bench\r\n")
        _read_until(sock, b":1\r\n")
        subscribers.append(sock)
    rest = b"$5\r\nbench\r\n$%d\r\n%b\r\n" % (len(body), body)
    got = b"*3\r\n$7\r\nmessage\r\n" + rest
    return Way(_dial(address), subscribers, b"*3\r\n$7\r\nPUBLISH\r\n" + rest, len(got))


def nats_way(address: Address, body: bytes, readers: int) -> Way:
    hello = b'CONNECT {"verbose":false}\r\n'
    subscribers = []
    for _ in range(readers):
        sock = _dial(address)
        sock.sendall(hello + b"SUB bench 1\r\nPING\r\n")
        _read_until(sock, b"PONG\r\n")
        subscribers.append(sock)
    writer = _dial(address)
    writer.sendall(hello + b"PING\r\n")
    _read_until(writer, b"PONG\r\n")
    rest = b"%d\r\n%b\r\n" % (len(body), body)
    return Way(writer, subscribers, b"PUB bench " + rest, len(b"MSG bench 1 " + rest))


def _dial(address: Address) -> socket.socket:
    assert isinstance(address, tuple)
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _leased(address: Address, lease: bytes) -> socket.socket:
    sock = _dial(address)
    sock.sendall(DMP_HEADER + short(lease))
    _read_until(sock, b'"')
    _read_until(sock, b'"')
    return sock


def _read_until(sock: socket.socket, end: bytes) -> None:
    said = b""
    while not said.endswith(end):
        data = sock.recv(1)
        if not data:
            raise ConnectionError("the server closed a connection")
        said += data


def _frame(kind: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, 1, len(payload)) + payload + FRAME_END

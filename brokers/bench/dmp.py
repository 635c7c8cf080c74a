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

import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, TypeVar

import attrs
import trio
from pamqp import commands

from brokers.bench.load import Address, Case, FanOut, Measured, connect, in_turns, pass_on, poured
from brokers.bench.options import Rounds, Seconds, Size, some
from brokers.bench.servers import nats_server, redis_server, serving
from brokers.errors import ExitCode, Refusal
from dmp import wire
from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, HEADER, encode
from dmp.data_types import short
from dmp.principal import Principal
from dmp.properties import NO_PROPERTIES
from dmp.wire import DMP_HEADER
from shared.cli.options import Json
from shared.cli.progress import progress

EXCHANGE = KEY = "bench"
TAG = "t"
T = TypeVar("T")


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


OpenWay = Callable[[Address, bytes, int], Way]
"""With a body and a number of readers."""


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
        peers: dict[str, tuple[Address, OpenWay]] = {"direct": (ours, direct), "basic": (ours, basic)}
        if (redis := stack.enter_context(redis_server(folder))) is not None:
            peers["redis"] = redis, redis_way
        if (nats := stack.enter_context(nats_server())) is not None:
            peers["nats"] = nats, nats_way

        def way(address: Address, open_: OpenWay, count: int, under_way: int) -> Callable[[], Measured]:
            def measured() -> Measured:
                with closing(open_(address, body, count)) as opened:
                    return run(opened, under_way, seconds)

            return measured

        for done, (count, under_way) in enumerate(((1, 1), (1, window), (readers, window)), 1):
            ways = {name: way(*peer, count, under_way) for name, peer in peers.items()}
            best = in_turns(rounds, ways)
            mine = best.pop("direct")
            rows += [
                Row(
                    mode="direct",
                    readers=count,
                    window=under_way,
                    **mine.figures("deliveries_per_second", size),
                    baseline=name,
                    ratio=round(mine.rate / theirs.rate, 2),
                )
                for name, theirs in best.items()
            ]
            update(done)
    return rows


def run(way: Way, window: int, seconds: float) -> Measured:
    """Keep `window` messages on their way for `seconds`, after a warm-up. Raises Refusal."""
    return pass_on(
        FanOut(lambda queue, stamp: way.sent, way.got, 0), [way.writer], way.readers, window, seconds
    )


def _prepared(address: Address, prepare: Callable[[Principal], Awaitable[T]]) -> tuple[T, socket.socket]:
    """What `prepare` returns, done by a principal that is logged in; and its connection, which blocks now."""

    async def run() -> tuple[T, socket.socket]:
        stream = await trio.open_tcp_stream(*address)
        principal = Principal(stream)
        await principal.greet()
        await principal.log_in()
        await principal.open_channel()
        done = await prepare(principal)
        return done, socket.socket(fileno=stream.socket.detach())

    done, sock = trio.run(run)
    sock.setblocking(True)
    return done, sock


async def _exchange(principal: Principal) -> None:
    await principal.declare_exchange(EXCHANGE, "fanout")


async def _bound_queue(principal: Principal) -> str:
    await _exchange(principal)
    queue = await principal.declare_queue("")
    await principal.bind(queue, EXCHANGE, KEY)
    return queue


def direct(address: Address, body: bytes, readers: int) -> Way:
    async def leases(principal: Principal) -> list[bytes]:
        feeds = [await principal.feed_lease(await _bound_queue(principal)) for _ in range(readers)]
        return [await principal.sink_lease(EXCHANGE), *feeds]

    found, sock = _prepared(address, leases)
    sink, *feeds = [_leased(address, lease) for lease in found]
    message = direct_message(body)
    return Way(sink, feeds, message, len(message), (sock,))


def recorded(size: int) -> Case:
    """A sink and a feed, as `brokers bench recording` wants them."""
    body = b"x" * size
    message = direct_message(body)

    def run(address: tuple[str, int], data: Path, seconds: float) -> float:
        with closing(direct(address, body, 1)) as way:
            return poured(way.writer, way.readers[0], message, seconds)

    return Case(run, "dmp_messages_sunk_total", len(message))


def direct_message(body: bytes) -> bytes:
    """As a sink takes it, and a feed gives it."""
    return wire.message(wire.Message(b"", KEY.encode(), body))


def basic(address: Address, body: bytes, readers: int) -> Way:
    async def consume(principal: Principal) -> None:
        queue = await _bound_queue(principal)
        method = commands.Basic.Consume(queue=queue, consumer_tag=TAG, no_ack=True)
        await principal.call(method, commands.Basic.ConsumeOk)

    consumers = [_prepared(address, consume)[1] for _ in range(readers)]
    _, writer = _prepared(address, _exchange)
    header = b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + NO_PROPERTIES
    content = _frame(HEADER, header) + _frame(BODY, body)
    publish = encode(commands.Basic.Publish(exchange=EXCHANGE, routing_key=KEY), 1)
    deliver = encode(commands.Basic.Deliver(TAG, 1, False, EXCHANGE, KEY), 1)
    return Way(writer, consumers, publish + content, len(deliver + content))


def redis_way(address: Address, body: bytes, readers: int) -> Way:
    subscribers = []
    for _ in range(readers):
        sock = connect(address)
        sock.sendall(b"SUBSCRIBE bench\r\n")
        _read_until(sock, b":1\r\n")
        subscribers.append(sock)
    rest = b"$5\r\nbench\r\n$%d\r\n%b\r\n" % (len(body), body)
    got = b"*3\r\n$7\r\nmessage\r\n" + rest
    return Way(connect(address), subscribers, b"*3\r\n$7\r\nPUBLISH\r\n" + rest, len(got))


def nats_way(address: Address, body: bytes, readers: int) -> Way:
    hello = b'CONNECT {"verbose":false}\r\n'
    subscribers = []
    for _ in range(readers):
        sock = connect(address)
        sock.sendall(hello + b"SUB bench 1\r\nPING\r\n")
        _read_until(sock, b"PONG\r\n")
        subscribers.append(sock)
    writer = connect(address)
    writer.sendall(hello + b"PING\r\n")
    _read_until(writer, b"PONG\r\n")
    rest = b"%d\r\n%b\r\n" % (len(body), body)
    return Way(writer, subscribers, b"PUB bench " + rest, len(b"MSG bench 1 " + rest))


def _leased(address: Address, lease: bytes) -> socket.socket:
    sock = connect(address)
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

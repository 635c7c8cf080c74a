"""`brokers bench dmp`: one writer, and readers that each get everything, beside others in the same run.

A writer sends messages that are all alike, in pieces, and keeps so many on their way to the slowest reader;
every reader's bytes are counted, and since all messages have one size, so are its messages. The rate is that
of deliveries, all readers together; the latency runs from a piece's send to the arrival of its last byte at
the last reader. With a window above one it includes the wait behind others.

The servers are processes of their own. The load comes from this one, which is one thread: where it is the
limit, it is so for all of them. Measured in turns:

- `direct`: a sink and feeds, over leases;
- `basic`: basic.publish and basic.consume without acknowledgements, on the same server;
- redis and nats, PUBLISH and SUBSCRIBE, where they are installed.
"""

import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
import trio
from pamqp import base, commands

from brokers.bench import bare
from brokers.bench.load import Address, Case, FanOut, Measured, Row, opened, pour_rate
from brokers.bench.login import login
from brokers.bench.options import Rounds, Seconds, Size, each, some
from brokers.bench.servers import nats_fan_out, nats_server, redis_command, redis_server, same_server
from brokers.bench.sweep import NO_SWEEP, Point, Sweep, Swept, fan_out_load, measured_at, started, swept
from brokers.errors import ExitCode, Failure
from dmp import wire
from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, HEADER, encode
from dmp.data_types import short
from dmp.principal import Principal
from dmp.properties import NO_PROPERTIES
from dmp.wire import AMQP_HEADER, DMP_HEADER
from shared.cli.options import Json
from shared.client.login import Login, Password

EXCHANGE = "bench"
KEY = b"bench"
TAG = "t"
SIZE_MAX = 100_000


def bench(
    *,
    readers: Annotated[int, some("Readers of everything; one alone is measured too.")] = 10,
    window: Annotated[int, some("Messages on their way; one alone is measured too.")] = 16384,
    size: Size = 100,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    sweep: Sweep = NO_SWEEP,
    json: Json = False,
) -> Iterable[Any]:
    """Measure DMP on this machine.

    A sink and feeds, one and many, beside basic.publish on the same server, and beside
    redis and nats where they are installed.
    """
    if sweep.sweep:
        return swept([SWEPT], sweep, window, seconds, rounds, json=json)
    if not 4 <= size <= SIZE_MAX:
        raise Failure(f"--size: 4 to {SIZE_MAX} bytes", ExitCode.USAGE)
    with started(SWEPT.servers) as ways:

        def measure(case: tuple[int, int]) -> Iterator[Row]:
            best = measured_at(ways, Point(size, 1, *case), seconds, rounds)
            mine = best.pop("dmp")
            for name, theirs in best.items():
                yield {
                    "mode": "direct",
                    **dict(zip(("readers", "window"), case, strict=True)),
                    **mine.figures("deliveries_per_second", size),
                    "baseline": name,
                    "ratio": round(mine.rate / theirs.rate, 2),
                }

        return list(each(((1, 1), (1, window), (readers, window)), measure))


def direct(address: Address, point: Point, seconds: float) -> Measured:
    with leased(address, point.name_list(), point.size, point.producers, point.clients) as fan:
        return fan_out_load(lambda point: fan)(address, point, seconds)


@contextmanager
def leased(address: Address, keys: Sequence[bytes], size: int, sinks: int, feeds: int) -> Iterator[FanOut]:
    """Sinks, and feeds of queues, each bound with the keys of one sink, which live as long as this does."""

    async def leases() -> tuple[int, list[bytes]]:
        stream = await trio.open_tcp_stream(*address)
        principal = Principal(stream)
        await principal.greet()
        await principal.log_in(login())
        await principal.open_channel()
        await principal.declare_exchange(EXCHANGE, _kind(keys))
        found = [await principal.sink_lease(EXCHANGE) for _ in range(sinks)]
        for number in range(feeds):
            queue = await principal.declare_queue("")
            for key in keys[number % sinks :: sinks]:
                await principal.bind(queue, EXCHANGE, key.decode())
            found.append(await principal.feed_lease(queue))
        return stream.socket.detach(), found

    fd, found = trio.run(leases)
    content = b"x" * size
    heads = [direct_message(key, size)[:-size] for key in keys]  # as for `basic`: the load is one thread
    with socket.socket(fileno=fd):
        yield FanOut(
            hello_producer=lambda number: DMP_HEADER + short(found[number]),
            hello_consumer=lambda number: DMP_HEADER + short(found[sinks + number]),
            message=lambda key, stamp: heads[key] + content,
            delivered_bytes=len(direct_message(keys[0], size)),
            stamp_at=0,
            queues=len(keys) // sinks,
            groups=sinks,
        )


def _kind(keys: Sequence[bytes]) -> str:
    """The kind of exchange: with one key everybody gets everything anyway."""
    return "fanout" if len(keys) == 1 else "direct"


def direct_message(key: bytes, size: int) -> bytes:
    """As a sink takes it, and a feed gives it."""
    return wire.message(wire.Message(b"", key, b"x" * size))


def recorded(size: int) -> Case:
    """A sink and a feed, as `brokers bench recording` wants them."""
    message = direct_message(KEY, size)

    def run(address: Address, data: Path, seconds: float) -> float:
        with leased(address, [KEY], size, 1, 1) as fan, opened(address, fan, 1, 1) as ((sink,), (feed,)):
            return pour_rate(sink, feed, message, seconds)

    return Case(run, "dmp_messages_sunk_total", len(message))


def _basic(point: Point) -> FanOut:
    """Everything up to the first message is said at once."""
    keys, groups, size = point.name_list(), point.producers, point.size
    who = login() or Login("guest", Password("guest"))
    hello: bytes = AMQP_HEADER + b"".join(
        encode(method, channel)
        for channel, method in (
            (0, commands.Connection.StartOk({}, "PLAIN", f"\0{who.user}\0{who.secret}", "en_US")),
            (0, commands.Connection.TuneOk(2047, 128 << 10, 0)),
            (0, commands.Connection.Open("/")),
            (1, commands.Channel.Open()),
            (1, commands.Exchange.Declare(exchange=EXCHANGE, exchange_type=_kind(keys))),
        )
    )

    def consume(number: int) -> bytes:
        methods: list[base.Frame] = [commands.Queue.Declare(exclusive=True)]
        for key in keys[number % groups :: groups]:
            methods.append(commands.Queue.Bind(exchange=EXCHANGE, routing_key=key.decode()))
        methods.append(commands.Basic.Consume(consumer_tag=TAG, no_ack=True))
        return hello + b"".join(encode(method, 1) for method in methods)

    content = _frame(HEADER, b"\0\x3c\0\0" + size.to_bytes(8, "big") + NO_PROPERTIES) + _frame(
        BODY, b"x" * size
    )
    heads = [encode(commands.Basic.Publish(exchange=EXCHANGE, routing_key=key.decode()), 1) for key in keys]
    deliver = encode(commands.Basic.Deliver(TAG, 1, False, EXCHANGE, keys[0].decode()), 1)
    return FanOut(
        hello_producer=lambda number: hello,
        hello_consumer=consume,
        message=lambda key, stamp: heads[key] + content,
        delivered_bytes=len(deliver + content),
        stamp_at=0,
        queues=len(keys) // groups,
        groups=groups,
    )


def _redis(point: Point) -> FanOut:
    channels, groups, body = point.name_list(), point.producers, b"x" * point.size
    messages = [redis_command(b"PUBLISH", name, body) for name in channels]
    return FanOut(
        hello_consumer=lambda number: b"SUBSCRIBE %b\r\n" % b" ".join(channels[number % groups :: groups]),
        message=lambda channel, stamp: messages[channel],
        delivered_bytes=len(redis_command(b"message", channels[0], body)),
        stamp_at=0,
        queues=len(channels) // groups,
        groups=groups,
    )


def _nats(point: Point) -> FanOut:
    # Messages are not looked at, as of the others.
    return attrs.evolve(nats_fan_out(point.name_list(), point.size, groups=point.producers), stamp_at=0)


def _frame(kind: int, payload: bytes) -> bytes:
    head: bytes = FRAME_HEAD.pack(kind, 1, len(payload))
    return head + payload + FRAME_END


SWEPT = Swept(
    "dmp",
    "direct",
    direct,
    {
        "basic": (same_server, fan_out_load(_basic)),
        "redis": (redis_server, fan_out_load(_redis)),
        "nats": (nats_server, fan_out_load(_nats)),
    },
    bare.relays(),
    SIZE_MAX,
)

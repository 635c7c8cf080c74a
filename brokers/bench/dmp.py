"""How DMP is loaded: `direct` sends into sinks and reads feeds, `basic` is AMQP's basic.publish and
basic.consume without acknowledgements.

Each reader gets everything of one producer.
"""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import trio
from pamqp import base, commands

from brokers.bench import load
from brokers.bench.adapter import Adapter, Point, fan_out_load
from brokers.bench.load import STAMPED_BYTES_MIN, Address, FanOut, Measured, stamped_body
from dmp import wire
from dmp.amqp.wire import BODY, FRAME_END, FRAME_HEAD, HEADER, encode
from dmp.amqp_client import AmqpConnection
from dmp.client import Principal
from dmp.data_types import short
from dmp.principal import Dialog, LoginDialog
from dmp.properties import NO_PROPERTIES
from dmp.wire import AMQP_HEADER, DMP_HEADER
from shared.client.login import Login, Password
from shared.client.trio_loop import trio_loop

EXCHANGE = "bench"
TAG = "t"
SIZE_MAX = 100_000


def direct(address: Address, point: Point, seconds: float) -> Measured:
    """Sinks and feeds, over leases."""
    with leased(address, point.name_list(), point.size, point.producers, point.clients) as fan:
        return fan_out_load(lambda point: fan)(address, point, seconds)


@contextmanager
def leased(address: Address, keys: Sequence[bytes], size: int, sinks: int, feeds: int) -> Iterator[FanOut]:
    """Sinks, and feeds of queues, each bound with the keys of one sink, which live as long as this does."""

    async def leases() -> tuple[int, list[bytes]]:
        async with trio_loop() as loop:
            stream = await trio.open_tcp_stream(*address)
            dialog = Dialog(loop)
            loop.attach(stream, dialog)
            login = LoginDialog(dialog)
            await login.greet()
            connection = AmqpConnection(loop, await login.log_in(load.who))
            dialog.hand_over(connection)
            principal = Principal(connection)
            await principal.declare_exchange(EXCHANGE, _kind(keys), durable=False)
            found = [await principal.sink_lease(EXCHANGE) for _ in range(sinks)]
            for number in range(feeds):
                queue = await principal.declare_queue(durable=False, exclusive=True)
                for key in keys[number % sinks :: sinks]:
                    await principal.bind(queue, EXCHANGE, key.decode())
                found.append(await principal.feed_lease(queue))
            return os.dup(stream.socket.fileno()), found

    fd, found = trio.run(leases)
    body = stamped_body(size)
    heads = [_message(key, size)[:-size] for key in keys]
    with socket.socket(fileno=fd):
        yield FanOut(
            hello_producer=lambda number: DMP_HEADER + short(found[number]),
            hello_consumer=lambda number: DMP_HEADER + short(found[sinks + number]),
            message=lambda key, stamp: heads[key] + body(stamp),
            delivered_bytes=len(_message(keys[0], size)),
            stamp_at=size,
            queues=len(keys) // sinks,
            groups=sinks,
        )


def _kind(keys: Sequence[bytes]) -> str:
    """The kind of exchange: with one key everybody gets everything anyway."""
    return "fanout" if len(keys) == 1 else "direct"


def _message(key: bytes, size: int) -> bytes:
    """As a sink takes it, and a feed gives it."""
    return wire.message(wire.Message(b"", key, b"x" * size))


def _basic(point: Point) -> FanOut:
    """Everything up to the first message is said at once."""
    keys, groups, size = point.name_list(), point.producers, point.size
    who = load.who or Login("guest", Password("guest"))
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

    body = stamped_body(size)
    header = _frame(HEADER, b"\0\x3c\0\0" + size.to_bytes(8, "big") + NO_PROPERTIES)
    publish = [commands.Basic.Publish(exchange=EXCHANGE, routing_key=key.decode()) for key in keys]
    heads = [encode(method, 1) + header for method in publish]
    deliver = encode(commands.Basic.Deliver(TAG, 1, False, EXCHANGE, keys[0].decode()), 1) + header
    return FanOut(
        hello_producer=lambda number: hello,
        hello_consumer=consume,
        message=lambda key, stamp: heads[key] + _frame(BODY, body(stamp)),
        delivered_bytes=len(deliver + _frame(BODY, bytes(size))),
        stamp_at=size + len(FRAME_END),
        queues=len(keys) // groups,
        groups=groups,
    )


def _frame(kind: int, payload: bytes) -> bytes:
    head: bytes = FRAME_HEAD.pack(kind, 1, len(payload))
    return head + payload + FRAME_END


ADAPTERS = {
    "direct": Adapter("dmp", "direct", direct, STAMPED_BYTES_MIN, SIZE_MAX),
    "basic": Adapter("dmp", "basic", fan_out_load(_basic), STAMPED_BYTES_MIN, SIZE_MAX),
}

"""pika, as its users write it, against the real server over a real socket."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from tests.dmp.served import Served

Connect = Callable[..., BlockingConnection]


@pytest.fixture
def connect(server: Served) -> Iterator[Connect]:
    made: list[BlockingConnection] = []

    def new(*, port: int | None = None, **options: Any) -> BlockingConnection:
        parameters = pika.ConnectionParameters("127.0.0.1", port or server.port, **options)
        made.append(pika.BlockingConnection(parameters))
        return made[-1]

    yield new
    for connection in made:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


@pytest.fixture
def channel(connect: Connect) -> BlockingChannel:
    return connect().channel()


def own_queue(channel: BlockingChannel, **options: Any) -> str:
    return str(channel.queue_declare("", exclusive=True, **options).method.queue)


def take(channel: BlockingChannel, queue: str, count: int, *, ack: bool = True) -> list[bytes]:
    """So many messages by basic.consume."""
    bodies = []
    for method, _, body in channel.consume(queue, inactivity_timeout=30):
        assert method is not None, f"nothing came behind {bodies}"
        bodies.append(body)
        if ack:
            channel.basic_ack(method.delivery_tag)
        if len(bodies) == count:
            break
    channel.cancel()
    return bodies


def test_what_is_bound_is_delivered_and_confirmed(channel: BlockingChannel) -> None:
    channel.exchange_declare("orders", "topic", auto_delete=True)
    queue = own_queue(channel)
    channel.queue_bind(queue, "orders", "eu.#")
    channel.confirm_delivery()
    for key in ("eu", "eu.de", "us", "eu.fr.paris"):
        channel.basic_publish("orders", key, key.encode())
    assert take(channel, queue, 3) == [b"eu", b"eu.de", b"eu.fr.paris"]


def test_properties_come_through_as_they_were_sent(channel: BlockingChannel) -> None:
    queue = own_queue(channel)
    sent = pika.BasicProperties(
        content_type="text/plain",
        headers={"n": 1, "deep": {"list": [1, "two", None, True]}},
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        priority=3,
    )
    channel.basic_publish("", queue, b"x", sent)
    _, got, body = channel.basic_get(queue, auto_ack=True)
    assert (got, body) == (sent, b"x")


def test_a_request_is_answered_by_direct_reply_to(connect: Connect, channel: BlockingChannel) -> None:
    def answer(_: Any, __: Any, properties: pika.BasicProperties, body: bytes) -> None:
        echoed = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, body.upper(), echoed)

    channel.queue_declare("work", auto_delete=True)
    channel.basic_consume("work", answer, auto_ack=True)
    requester = connect().channel()
    got: list[tuple[str, bytes]] = []
    requester.basic_consume(
        "amq.rabbitmq.reply-to",
        lambda _, __, properties, body: got.append((properties.correlation_id, body)),
        auto_ack=True,
    )
    for number in range(3):
        asked = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number))
        requester.basic_publish("", "work", b"question", asked)
        channel.connection.process_data_events(30)
        requester.connection.process_data_events(30)
    assert got == [(str(number), b"QUESTION") for number in range(3)]


def test_a_transaction_moves_messages_from_queue_to_queue(channel: BlockingChannel) -> None:
    old, new = own_queue(channel), own_queue(channel)
    for number in range(3):
        channel.basic_publish("", old, b"%d" % number)
    channel.tx_select()
    for commit in (False, True, True):
        method, _, body = channel.basic_get(old)
        channel.basic_publish("", new, body)
        channel.basic_ack(method.delivery_tag)
        if commit:
            channel.tx_commit()
        else:
            channel.tx_rollback()
            channel.basic_nack(method.delivery_tag)
            channel.tx_commit()
    assert take(channel, new, 2) == [b"0", b"1"]
    channel.tx_commit()
    assert channel.basic_get(old, auto_ack=True)[2] == b"2"

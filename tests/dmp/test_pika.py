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


def test_prefetch_holds_back_what_is_not_acknowledged(connect: Connect, channel: BlockingChannel) -> None:
    queue = own_queue(channel)
    for n in range(5):
        channel.basic_publish("", queue, b"%d" % n)
    channel.basic_qos(prefetch_count=2)
    got: list[tuple[int, bytes]] = []
    channel.basic_consume(queue, lambda _, method, __, body: got.append((method.delivery_tag, body)))
    while len(got) < 2:
        channel.connection.process_data_events(30)
    assert channel.queue_declare(queue, passive=True).method.message_count == 3
    channel.basic_ack(got[1][0], multiple=True)
    while len(got) < 4:
        channel.connection.process_data_events(30)
    assert [body for _, body in got] == [b"0", b"1", b"2", b"3"]


def test_headers_exchanges_look_at_headers(channel: BlockingChannel) -> None:
    every, one = own_queue(channel), own_queue(channel)
    channel.queue_bind(every, "amq.headers", "", {"x-match": "all", "kind": "a", "size": 1})
    channel.queue_bind(one, "amq.headers", "", {"x-match": "any", "kind": "a", "size": 1})
    for headers in ({"kind": "a", "size": 1}, {"kind": "a"}, {"size": 2}, {"kind": "a", "size": True}):
        channel.basic_publish(
            "amq.headers", "", repr(headers).encode(), pika.BasicProperties(headers=headers)
        )
    assert take(channel, every, 1) == [b"{'kind': 'a', 'size': 1}"]
    assert take(channel, one, 3) == [
        b"{'kind': 'a', 'size': 1}",
        b"{'kind': 'a'}",
        b"{'kind': 'a', 'size': True}",
    ]


def test_another_vhost_is_refused(connect: Connect) -> None:
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="530"):
        connect(virtual_host="other")


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


def test_consumers_hear_that_their_queue_is_gone(connect: Connect, channel: BlockingChannel) -> None:
    channel.queue_declare("going")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume("going", lambda *_: None)
    connect().channel().queue_delete("going")
    while not cancelled:
        channel.connection.process_data_events(30)
    assert cancelled == [tag]


def test_arguments_that_change_nothing_are_accepted_and_ignored(channel: BlockingChannel) -> None:
    arguments = {
        "x-queue-mode": "lazy",
        "x-queue-type": "classic",
        "x-single-active-consumer": False,
        "x-queue-version": 2,
        "x-queue-leader-locator": "balanced",
        "x-dead-letter-strategy": "at-least-once",
        "x-max-in-memory-length": 5,
        "mine": True,
    }
    name = channel.queue_declare("", exclusive=True, arguments=arguments).method.queue
    for priority in (1, 9):
        channel.basic_publish("", name, b"%d" % priority, pika.BasicProperties(priority=priority))
    assert [channel.basic_get(name, auto_ack=True)[2] for _ in range(2)] == [b"1", b"9"]
    channel.queue_declare(name, exclusive=True)


def test_a_delayed_message_comes_later_and_a_failing_one_is_given_up(channel: BlockingChannel) -> None:
    dead = own_queue(channel)
    arguments = {
        "x-delivery-limit": 1,
        "x-retry-ms": 50,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    queue = own_queue(channel, arguments=arguments)
    channel.basic_publish("", queue, b"late", pika.BasicProperties(headers={"x-delay": 300}))
    channel.basic_publish("", queue, b"bad")
    seen = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=30):
        assert method is not None
        seen.append((body, (properties.headers or {}).get("x-delivery-count")))
        if body == b"late":
            channel.basic_ack(method.delivery_tag)
            break
        channel.basic_nack(method.delivery_tag)
    channel.cancel()
    assert seen == [(b"bad", None), (b"bad", 1), (b"late", None)]
    assert take(channel, dead, 1) == [b"bad"]

"""py-amqp, the client under kombu and Celery, against the real server; and `kill -9` of a real process."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from pamqp import commands

from dmp.amqp.wire import encode
from tests.dmp.amqp_peer import login, publish
from tests.dmp.served import Served
from tests.dmp.world import PERSISTENT
from tests.support.server import SHORT_LINGER, Server


@pytest.fixture
def connection(server: Served) -> Iterator[amqp.Connection]:
    with connected(server.port) as connection:
        yield connection


def connected(port: int, **options: Any) -> amqp.Connection:
    options.setdefault("confirm_publish", True)
    return amqp.Connection(f"127.0.0.1:{port}", connect_timeout=30, read_timeout=30, **options)


def drained(channel: amqp.Channel, queue: str) -> list[bytes]:
    return [message.body for message in iter(lambda: channel.basic_get(queue, no_ack=True), None)]


def test_kill_9_amid_transactions_leaves_each_message_where_it_was_or_where_it_was_moved(
    new_server: Callable[..., Server],
) -> None:
    server = new_server("--enable", "dmp").start()
    count, batch = 1000, 10
    bodies = [b"%08d" % number for number in range(count)]
    with socket.create_connection(server.address("dmp"), timeout=30) as raw:
        raw.sendall(login() + encode(commands.Channel.Open(), 1))
        for queue in ("old", "new"):
            raw.sendall(encode(commands.Queue.Declare(0, queue, durable=True), 1))
        raw.sendall(publish("", "old", *bodies, properties=PERSISTENT))
        raw.sendall(encode(commands.Tx.Select(), 1) + encode(commands.Basic.Consume(0, "old"), 1))
        heard = b""
        while bodies[-1] + b"\xce" not in heard:
            heard += raw.recv(1 << 16)
        for end in range(batch, count + 1, batch):
            moved = publish("", "new", *bodies[end - batch : end], properties=PERSISTENT)
            raw.sendall(moved + encode(commands.Basic.Ack(end, True), 1) + encode(commands.Tx.Commit(), 1))
        heard, committed = b"", encode(commands.Tx.CommitOk(), 1)
        while heard.count(committed) < 5:
            heard += raw.recv(len(committed))
        server.kill()
    server.start()
    with connected(server.address("dmp")[1]) as connection:
        channel = connection.channel()
        old, new = (drained(channel, queue) for queue in ("old", "new"))
    assert new + old == bodies
    assert len(new) % batch == 0
    assert len(new) >= 5 * batch


def test_a_drain_says_goodbye(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "dmp", environ=SHORT_LINGER).start()
    connection = connected(server.address("dmp")[1])
    connection.connect()
    assert server.stop() == 0
    with pytest.raises(amqp.exceptions.ConnectionForced, match="the broker stops"):
        connection.drain_events(timeout=30)
    connection.collect()


@pytest.mark.parametrize("header", [b"AMQP\x01\x01\x00\x0a", b"GET / HT", b"AMQP\x00\x00\x09\x02", b"X"])
def test_what_is_not_amqp_is_told_what_is(server: Served, header: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(header)
        assert b"".join(iter(lambda: raw.recv(100), b"")) == b"AMQP\x00\x00\x09\x01"

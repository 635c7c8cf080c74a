"""Bounds by user: whatever one user takes, another finds room."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest

from dms import wire as dms_wire
from shared.access import Rule, Secret, User
from tests.e2e.users import server_of
from tests.support.forked import quick_passwords
from tests.support.server import Server, until

PASSWORD = "secret"
MOST, CONNECTIONS, MEMORY = 8, 40, 4 << 20
LIMITS = {
    "BROKERS_DMS_QUEUES_MAX": str(MOST),
    "BROKERS_DMS_CLIENTS_MAX": str(MOST),
    "BROKERS_LOGMQ_TOPICS_MAX": str(MOST),
    "BROKERS_LOGMQ_COMMITS_MAX": str(MOST),
    "BROKERS_DMP_QUEUES_MAX": str(MOST),
    "BROKERS_DMP_EXCHANGES_MAX": "16",
    "BROKERS_NET_CONNECTIONS_MAX": str(CONNECTIONS),
    "BROKERS_DMP_BINDINGS_MAX": str(MOST),
    "BROKERS_DMP_MEMORY_BYTES_MAX": str(MEMORY),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with quick_passwords():
        secret = Secret.make(PASSWORD.encode(), b"s" * 16)
    users = {name: User(name, (Rule.parse("*:*:*"),), secret) for name in ("ann", "mal")}
    folder: Path = tmp_path_factory.mktemp("shares")
    enable = "dmp,dms,kqmsgq,logmq,pubsub"
    with server_of(folder, users, enable=enable, BROKERS_ACCESS_REQUIRED="always", **LIMITS) as running:
        yield running


def line(stream: socket.socket, text: str) -> str:
    stream.sendall(text.encode() + b"\n")
    return stream.makefile().readline()


def logmq(server: Server, user: str) -> socket.socket:
    stream = socket.create_connection(server.address("logmq"), timeout=30)
    assert line(stream, f"AUTH {user} {PASSWORD}") == "OK\n"
    return stream


def topics(server: Server, user: str, count: int) -> int:
    with logmq(server, user) as stream:
        return sum(line(stream, f"PRODUCE {user}{n} x").startswith("OK") for n in range(count))


def commits(server: Server, user: str, count: int) -> int:
    with logmq(server, user) as stream:
        line(stream, f"PRODUCE {user}0 x")
        return sum(line(stream, f"COMMIT {user}g{n} {user}0 0").startswith("OK") for n in range(count))


def dms(server: Server, user: str) -> tuple[socket.socket, int]:
    stream = socket.create_connection(server.address("dms"), timeout=30)
    login = json.dumps({"user": user, "password": PASSWORD}).encode()
    stream.sendall(dms_wire.pack(dms_wire.Type.HANDSHAKE, 1, login))
    return stream, answer_type(stream)


def answer_type(stream: socket.socket) -> int:
    reader = stream.makefile("rb", buffering=0)
    head = reader.read(dms_wire.HEADER_BYTES) or b""
    _, length, type_, *_ = dms_wire.HEADER.unpack(head)
    while length:
        length -= len(reader.read(length) or b"")
    return int(type_)


def queues(server: Server, user: str, count: int) -> int:
    stream, _ = dms(server, user)
    made = 0
    with stream:
        for n in range(count):
            name = f"{user}{n}".encode()
            payload = struct.pack(">H", len(name)) + name
            stream.sendall(dms_wire.pack(dms_wire.Type.CREATE_QUEUE, n + 2, payload))
            made += answer_type(stream) != dms_wire.Type.ERROR
    return made


def clients(server: Server, user: str, count: int) -> int:
    found = [dms(server, user) for _ in range(count)]
    for stream, _ in found:
        stream.close()
    return sum(type_ == dms_wire.Type.HANDSHAKE_ACK for _, type_ in found)


Take = Callable[[Server, str, int], int]
"""Has a user take so many of one bound; returns how many he got."""
Channel = pika.adapters.blocking_connection.BlockingChannel


def amqp(declare: Callable[[Channel, str], object]) -> Take:
    def take(server: Server, user: str, count: int) -> int:
        host, port = server.address("dmp")
        made = 0
        login = pika.PlainCredentials(user, PASSWORD)
        with pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=login)) as connection:
            for n in range(count):
                with suppress(pika.exceptions.ChannelClosedByBroker):
                    declare(connection.channel(), f"{user}{n}")
                    made += 1
        return made

    return take


amqp_queues = amqp(lambda channel, name: channel.queue_declare(name))
amqp_exchanges = amqp(lambda channel, name: channel.exchange_declare(name))


@amqp
def amqp_bindings(channel: Channel, name: str) -> None:
    if name.endswith("0"):
        channel.queue_declare(name)
    channel.queue_bind(f"{name[:-1]}0", "amq.direct", name)


@pytest.mark.parametrize(
    ("take", "most"),
    [
        (commits, MOST),
        (topics, MOST),
        (queues, MOST),
        (clients, MOST),
        (amqp_exchanges, 16),
        (amqp_queues, MOST),
        (amqp_bindings, MOST),
    ],
)
def test_a_user_takes_his_share_and_another_finds_room(server: Server, take: Take, most: int) -> None:
    assert take(server, "mal", most + 1) == most // 2
    assert take(server, "ann", 2) == 2


def test_connections_above_a_share_are_closed_and_another_connects(server: Server) -> None:
    held = [logmq(server, "mal") for _ in range(CONNECTIONS // 2)]
    assert not stays(server, "mal")
    assert stays(server, "ann")
    held.pop().close()
    until(lambda: stays(server, "mal"))
    for stream in held:
        stream.close()


def stays(server: Server, user: str) -> bool:
    with socket.create_connection(server.address("logmq"), timeout=30) as stream:
        try:
            line(stream, f"AUTH {user} {PASSWORD}")
            return line(stream, "PING") == "PONG\n"
        except ConnectionError:
            return False

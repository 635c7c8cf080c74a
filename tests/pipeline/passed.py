"""What a real server wrote while clients used it: the folder that queries are held against."""

import json
import socket
from pathlib import Path

import pytest

from dms import wire
from dms.wire import Type
from shared.storage.tools.logs import RecordRow, log_dump
from tests.dms import plain_events
from tests.support.server import Server, speak

ORDERS = [b"%06d" % number + b"." * (number % 50) for number in range(500)]
BILLS = [b"bill %d" % number for number in range(40)]
READ = 123
"""Orders that the group `billing` has read."""


@pytest.fixture(scope="session")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder: two topics and a group of LogMQ, two queues of DMS."""
    folder = tmp_path_factory.mktemp("passed")
    with Server(folder, "--enable", "logmq,dms") as server:
        topics = server.address("logmq")
        said = speak(topics, b"".join(b"PRODUCE orders %s\n" % body for body in ORDERS)).decode()
        place = int(said.splitlines()[READ].removeprefix("OK "))
        end = int(said.splitlines()[-1].removeprefix("OK ")) + 4 + len(ORDERS[-1])
        speak(topics, b"".join(b"PRODUCE bills %s\n" % body for body in BILLS))
        commits = [
            ("billing", "orders", 0),
            ("billing", "orders", place),
            ("audit", "orders", end),
            ("billing", "bills", 0),
        ]
        speak(topics, b"".join(f"COMMIT {group} {topic} {at}\n".encode() for group, topic, at in commits))
        speak(topics, b"PRODUCE old one\nCOMMIT billing old 0\nDELETE old\n")
        _queues(server.address("dms"))
        assert server.stop() == 0
    return folder / "data"


def _queues(address: tuple[str, int]) -> None:
    """`jobs`: 20 came, 5 were acknowledged, 3 died for two NACKs, 2 were given back, the rest waits."""
    name, options = wire.pack_name("jobs"), json.dumps({"max_deliveries": 2, "dead_letter": "dead"}).encode()
    bodies = [b"job %d" % number * (1 + number % 3) for number in range(20)]
    with socket.create_connection(address) as connection:
        connection.sendall(wire.pack(Type.HANDSHAKE, 1))
        connection.sendall(wire.pack(Type.CREATE_QUEUE, 2, wire.pack_name("dead")))
        connection.sendall(wire.pack(Type.CREATE_QUEUE, 2, name + options))
        connection.sendall(b"".join(wire.pack(Type.PRODUCE, 3, name + body) for body in bodies))
        _frames(connection, 23)

        def consume(count: int) -> list[int]:
            connection.sendall(wire.pack(Type.CONSUME, 4, name) * count)
            return [frame[3] for frame in _frames(connection, count)]

        def each(type_: Type, ids: list[int]) -> None:
            connection.sendall(b"".join(wire.pack(type_, number) for number in ids))
            _frames(connection, len(ids))

        ids = consume(10)
        each(Type.ACK, ids[:5])
        each(Type.NACK, ids[5:])
        each(Type.NACK, consume(3))  # what has come back goes out first


def _frames(connection: socket.socket, count: int) -> list[wire.Frame]:
    data = b""
    while True:
        frames, _ = wire.decode(data)
        if len(frames) >= count:
            return list(frames)
        received = connection.recv(1 << 16)
        assert received
        data += received


def records_of(folder: Path, namespace: str, name: str) -> list[plain_events.Placed]:
    """Plain Python's view of a log."""
    rows = [row for row in log_dump(folder, namespace, name) if isinstance(row, RecordRow)]
    return [(name, row.offset, row.payload) for row in rows]

"""A real server that records: what passed through is in its logs, after kill -9 too; its tables say so."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio

from brokers import plugins
from dmp import client as dmp_client
from kqmsgq import wire as kqmsgq_wire
from pubsub.wire import Kind, datagram
from shared.storage.format import length_at
from shared.tables.table import tables_of
from tests.support.recorded import batch_of
from tests.support.server import Server, run_here, until

NewServer = Callable[..., Server]


PROTOCOLS = ("kqmsgq", "pubsub", "dmp")


def recorded(server: Server, protocol: str) -> int:
    said = run_here("metrics", "--data-dir", str(server.data)).stdout
    series = f'brokers_recorded_messages_total{{protocol="{protocol}"'
    return sum(int(float(line.split()[-1])) for line in said.splitlines() if line.startswith(series))


def table(data: Path, protocol: str, name: str) -> list[dict[str, Any]]:
    """A table of a recorded log, read from a stopped folder's file."""
    log = (data / "recorded" / f"{protocol}.log").read_bytes()
    payloads, at = [], 0
    while at < len(log):
        end = at + 4 + length_at(log, at)[0]
        payloads.append(log[at + 4 : end])
        at = end
    (found,) = (each for each in tables_of(plugins.load(protocol)) if each.name == name)
    rows: list[dict[str, Any]] = found.decode(batch_of(payloads, protocol)).to_pylist()
    return rows


def produce(server: Server, *bodies: bytes) -> str:
    """Returns where they came from."""
    with socket.create_connection(server.address("kqmsgq")) as sock:
        source = "{}:{}".format(*sock.getsockname()[:2])
        sock.sendall(kqmsgq_wire.PRODUCE + b"".join(kqmsgq_wire.message(b"orders", body) for body in bodies))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""  # closed: all was handed on
    return source


SENT = (
    datagram(b"hall/1", Kind.INT, b"\1\0\0\0\7"),
    b"short",
    datagram(b"hall/1", Kind.STRING, b"a word"),
    datagram(b"t", Kind.STRING, b"")[:50] + b"\x09",  # of no type
    datagram(b"t" * 50, Kind.STRING, b"x" * 1500),
)


def publish(server: Server) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for each in SENT:
            sock.sendto(each, server.address("pubsub", "pubsub-udp"))


async def sink(address: tuple[str, int]) -> None:
    async with dmp_client.open_sink("amq.topic", *address) as opened:
        await opened.send_many([(b"stocks.acme", b"17.20"), (b"stocks.acme", b"17.30")])
        await opened.send(b"stocks.else", b"1")


def pass_through(server: Server) -> list[str]:
    """Three messages by each protocol, once they are written; returns where kqmsgq's came from."""
    before = {protocol: recorded(server, protocol) for protocol in PROTOCOLS}
    sources = [produce(server, b"1", b"22"), produce(server, b"333")]
    publish(server)
    trio.run(sink, server.address("dmp"))
    for protocol in PROTOCOLS:
        until(lambda protocol=protocol: recorded(server, protocol) == before[protocol] + 3)
    return sources


def test_what_was_written_is_there_after_kill_9_and_its_tables_say_all_of_it(new_server: NewServer) -> None:
    server = new_server("--record", ",".join(PROTOCOLS)).start()
    began = time.time()
    sources = pass_through(server)
    server.kill()
    server.start()
    sources += pass_through(server)
    assert server.stop() == 0

    rows = table(server.data, "kqmsgq", "recorded")
    assert [(row["name"], row["payload"], row["source"], row["fault"]) for row in rows] == [
        ("orders", body, source, None)
        for one, two in (sources[:2], sources[2:])
        for body, source in ((b"1", one), (b"22", one), (b"333", two))
    ]
    assert all(began - 1 <= row["time"].timestamp() <= time.time() + 1 for row in rows)

    rows = table(server.data, "pubsub", "readings")
    assert [(row["name"], row["key"], row["value"], row["string_value"], row["fault"]) for row in rows] == [
        ("hall/1", "INT", -7.0, None, None),
        ("hall/1", "STRING", None, "a word", None),
        ("t" * 50, "STRING", None, "x" * 1500, None),
    ] * 2
    assert all(row["source"].startswith("127.0.0.1:") for row in rows)

    rows = table(server.data, "dmp", "recorded")
    assert [(row["name"], row["key"], row["payload"], row["fault"]) for row in rows] == [
        ("amq.topic", "stocks.acme", b"17.20", None),
        ("amq.topic", "stocks.acme", b"17.30", None),
        ("amq.topic", "stocks.else", b"1", None),
    ] * 2

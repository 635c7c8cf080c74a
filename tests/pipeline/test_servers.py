"""Logs over TCP, as the source reads them: real servers, and scripted ones for what no real one does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from crc32c import crc32c

from brokers.pipeline.source import servers as source
from brokers.pipeline.source.link import Reach
from brokers.pipeline.source.link import Server as Address
from brokers.pipeline.source.logs import Damaged, DataLost, LogMissing
from brokers.pipeline.source.servers import Ambiguous, ServerLogs, Servers, parse_servers
from logmq.runs import encode
from tests.support.server import Server, speak, until

IMPATIENT = Reach(retry_seconds=0.05)
MESSAGES = [b"%d:" % number + b"x" * (number % 500) for number in range(4000)]
LOG, LENGTHS = encode(MESSAGES)


def produce(server: Server, topic: str, messages: list[bytes]) -> None:
    lines = b"".join(b"PRODUCE %b %b\n" % (topic.encode(), message) for message in messages)
    assert speak(server.address("logmq"), lines).count(b"OK ") == len(messages)


@contextmanager
def opened(*servers: Server, reach: Reach = IMPATIENT) -> Iterator[ServerLogs]:
    with Servers(tuple(Address(*server.address("logmq")) for server in servers), reach).open() as logs:
        yield logs


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the topic `orders`: MESSAGES, written in several goes."""
    with Server(tmp_path_factory.mktemp("one"), "--enable", "logmq") as server:
        for start in range(0, len(MESSAGES), 500):
            produce(server, "orders", MESSAGES[start : start + 500])
        yield server


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("bytes_max", [1, 200_000, 64 << 20])
def test_what_is_read_is_the_log_byte_for_byte(one: Server, bytes_max: int, verify: bool) -> None:
    with opened(one) as logs:
        extent = logs.extents(["orders"])["orders"]
        assert (extent.first, extent.end) == (0, len(LOG))
        starts = [0, sum(LENGTHS[:7]), sum(LENGTHS[:3000])]
        for start in starts:
            for stop in (sum(LENGTHS[:3001]), len(LOG)):
                chunks = list(logs.chunks("orders", start, stop, bytes_max, verify))
                assert b"".join(bytes(chunk.data) for chunk in chunks) == LOG[start:stop]
                at = start
                for chunk in chunks:
                    assert chunk.offset == at == chunk.stretches[0].offset
                    at += len(chunk.data)
                    assert all(at > stretch.offset for stretch in chunk.stretches)
                times = [stretch.unix_ms for chunk in chunks for stretch in chunk.stretches]
                assert times == sorted(times)
        assert list(logs.chunks("orders", len(LOG), len(LOG), bytes_max, verify)) == []


def test_it_is_cut_at_records(one: Server) -> None:
    starts = {sum(LENGTHS[:count]) for count in range(len(LENGTHS))}
    with opened(one) as logs:
        cuts = logs.cuts("orders", 0, len(LOG), 150_000)
        assert len(cuts) >= 4
        assert cuts == sorted(set(cuts) & starts - {0})
        assert logs.cuts("orders", 0, len(LOG), len(LOG)) == []


def test_times_are_sought(one: Server) -> None:
    with opened(one) as logs:
        (chunk,) = logs.chunks("orders", 0, len(LOG), 64 << 20, False)
        oldest, newest = chunk.stretches[0].unix_ms, chunk.stretches[-1].unix_ms
        assert logs.seek("orders", -1) == logs.seek("orders", oldest) == 0
        assert logs.seek("orders", newest + 10_000) == len(LOG)


def test_a_name_on_two_servers_is_two_logs(one: Server, new_server: Callable[..., Server]) -> None:
    two = new_server("--enable", "logmq").start()
    produce(two, "orders", [b"other"])
    produce(two, "alone", [b"a"])
    here, there = (f"orders@{Address(*server.address('logmq'))}" for server in (one, two))
    with opened(one, two) as logs:
        assert logs.names() == sorted(["alone", here, there])
        extents = logs.extents([here, there, "alone", "nowhere"])
        assert {name: extent.end for name, extent in extents.items()} == {
            here: len(LOG),
            there: 9,
            "alone": 5,
        }
        with pytest.raises(Ambiguous, match=f"ask for {here} or {there}"):
            logs.extents(["orders"])
        with pytest.raises(LogMissing, match="is not one of the servers"):
            logs.extents(["orders@nowhere:1"])
        (chunk,) = logs.chunks(there, 0, 9, 1 << 20, True)
        assert bytes(chunk.data) == b"\0\0\0\5other"


def test_a_server_that_is_down_is_named(one: Server, new_server: Callable[..., Server]) -> None:
    two = new_server("--enable", "logmq").start()
    two.kill()
    with opened(one, two) as logs:
        for ask in (logs.names, lambda: logs.extents(["orders"])):
            with pytest.raises(ConnectionRefusedError, match="no LogMQ server answers") as raised:
                ask()
            assert raised.value.filename == str(Address(*two.address("logmq")))


def test_a_read_goes_on_when_the_server_is_back(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    port = server.address("logmq")[1]
    with opened(server, reach=Reach(retry_seconds=60)) as logs:
        chunks = logs.chunks("orders", 0, len(LOG), 100_000, True)
        data = bytes(next(chunks).data)
        server.kill()
        server.start("--port", f"logmq={port}")
        assert data + b"".join(bytes(chunk.data) for chunk in chunks) == LOG


def test_what_is_not_there_any_more_is_data_lost(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    with opened(server) as logs:
        before = logs.extents(["orders"])["orders"]
        assert not logs.made_again("orders", before.end, before.seen)
        speak(server.address("logmq"), b"DELETE orders\n")
        assert logs.extents(["orders"]) == {}
        with pytest.raises(LogMissing):
            list(logs.chunks("orders", 0, before.end, 1 << 20, False))
        produce(server, "orders", MESSAGES[:10])
        assert logs.made_again("orders", before.end, before.seen)
        with pytest.raises(DataLost, match="made again"):
            list(logs.chunks("orders", 0, before.end, 1 << 20, False))
        produce(server, "orders", MESSAGES[10:])
        now = logs.extents(["orders"])["orders"]
        earlier = str(int(before.seen) - 2 * source.SAME_MS)  # as if a while had gone by
        assert now.end == before.end
        assert logs.made_again("orders", before.end, earlier)


def test_retention_that_overtakes_says_where_to_go_on(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    server.stop()
    keep = new_server("--enable", "logmq", data=server.data, environ=_KEEP_LITTLE).start()
    with opened(keep) as logs:
        until(lambda: logs.extents(["orders"])["orders"].first > 0)
        first = logs.extents(["orders"])["orders"].first
        with pytest.raises(DataLost, match="retention") as raised:
            list(logs.chunks("orders", 0, len(LOG), 1 << 20, True))
        assert raised.value.resume == first
        data = b"".join(bytes(chunk.data) for chunk in logs.chunks("orders", first, len(LOG), 1 << 20, True))
        assert data == LOG[first:]


_KEEP_LITTLE = {"BROKERS_LOGMQ_RETENTION_BYTES": "300000", "BROKERS_STORAGE_RETENTION_SECONDS": "0.01"}


def test_a_flipped_bit_is_reported(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    server.stop()
    file = server.data / "logmq" / "orders.log"
    data = bytearray(file.read_bytes())
    data[300_000] ^= 1
    file.write_bytes(data)
    server.start()
    with opened(server) as logs, pytest.raises(Damaged, match="orders"):
        list(logs.chunks("orders", 0, len(LOG), 1 << 20, False))


def test_it_speaks_tls(new_server: Callable[..., Server], tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    server = new_server(
        "--enable", "logmq", environ={"BROKERS_TLS_CERTIFICATE": str(tmp_path / "server.pem")}
    ).start()
    trusting = Reach(ca=str(tmp_path / "ca.pem"))
    with opened(server, reach=trusting) as logs:
        assert logs.names() == []
    with (
        opened(server, reach=Reach(tls=True)) as logs,
        pytest.raises(ConnectionRefusedError, match="certificate"),
    ):
        logs.names()


@contextmanager
def scripted(*answers: bytes, reply_seconds: float = 60) -> Iterator[Servers]:
    """A server that gives these answers, one a request, over however many connections, then says nothing."""
    left = list(answers)

    def talk(connection: socket.socket) -> None:
        with connection:
            while connection.recv(1 << 16):
                if left:
                    connection.sendall(left.pop(0))

    def serve() -> None:
        threads = []
        with listener:
            while (connection := listener.accept()[0]) and not over.is_set():
                threads.append(threading.Thread(target=talk, args=(connection,)))
                threads[-1].start()
            connection.close()
        for thread in threads:
            thread.join()

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        thread = threading.Thread(target=serve)
        thread.start()
        yield Servers((Address(*address),), Reach(reply_seconds=reply_seconds, retry_seconds=0))
        over.set()
        socket.create_connection(address).close()
        thread.join()


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with (
        scripted(reply_seconds=0.05) as place,
        place.open() as logs,
        pytest.raises(ConnectionRefusedError, match="timed out"),
    ):
        logs.names()


def test_bytes_that_do_not_match_their_crc_are_damage() -> None:
    record = b"\0\0\0\1x"
    answers = (
        b"OFFSETS 0 5\n",
        b"MARK 0 5 1 %d 1700000000000\nEND\n" % crc32c(record),
        b"CHUNK 0 5 5\n\0\0\0\1y",
    )
    with scripted(*answers) as place, place.open() as logs, pytest.raises(Damaged, match="offset 0 on"):
        list(logs.chunks("orders", 0, 5, 1 << 20, True))


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", [("a", 8080)]),
        ("a:1, b:2 ,", [("a", 1), ("b", 2)]),
        ("[::1],[::1]:9", [("::1", 8080), ("::1", 9)]),
    ],
)
def test_servers_are_named(text: str, servers: list[tuple[str, int]]) -> None:
    parsed = parse_servers(text)
    assert [(each.host, each.port) for each in parsed] == servers
    assert parse_servers(",".join(map(str, parsed))) == parsed


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:x", "a:0", "a:70000", "::1", "[::1", "[::1]8", "a b", "a,a:8080"]
)
def test_what_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_servers(text)

"""A server's logs, as the source reads them: real servers, and scripted ones for what no real one does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme
from crc32c import crc32c

from brokers.pipeline.source import servers, stream
from brokers.pipeline.source.address import Reach, parse_servers
from brokers.pipeline.source.address import Server as Address
from brokers.pipeline.source.options import Topics, Unverified, parse
from brokers.pipeline.source.origin import LogSpot, Policy
from brokers.pipeline.source.places import open_place
from brokers.pipeline.source.servers import SAME_MS, Served
from brokers.pipeline.source.spans import Span
from brokers.pipeline.source.stream import Limit, Offset
from logmq.runs import encode
from logmq.wire import Refusal
from shared.errors import ConfigError, RemoteProtocolError
from tests.support.server import Server, speak, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IMPATIENT = Reach(retry_seconds=0.05)
MESSAGES = [b"%d:" % number + b"x" * (number % 500) for number in range(4000)]
LOG, LENGTHS = encode(MESSAGES)
ORDERS = Topics(("orders",))


class LostError(Exception):
    pass


def lose(text: str) -> None:
    raise LostError(text)


STRICT = Policy(True, Unverified.READ, lose)
TRUSTING = Policy(False, Unverified.READ, lose)


def produce(server: Server, topic: str, messages: list[bytes]) -> None:
    lines = b"".join(b"PRODUCE %b %b\n" % (topic.encode(), message) for message in messages)
    assert speak(server.address("logmq"), lines).count(b"OK ") == len(messages)


@contextmanager
def opened(server: Server, reach: Reach = IMPATIENT) -> Iterator[Served]:
    with closing(Served(Address(*server.address("logmq")), reach)) as served:
        yield served


def whole(served: Served, start: int = 0, stop: int = len(LOG)) -> Span:
    spot = served.spots(ORDERS)["orders"]
    return Span(served.source, "orders", spot.id, start, stop)


def read(served: Served, span: Span, policy: Policy = STRICT) -> bytes:
    """What the chunks hold of the span."""
    data = b""
    for chunk in served.chunks(span, policy):
        low, high = max(span.start - chunk.offset, 0), min(span.stop - chunk.offset, len(chunk.data))
        data += chunk.data[low:high]
    return data


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the topic `orders`: MESSAGES, written in several goes."""
    with Server(tmp_path_factory.mktemp("one"), "--enable", "logmq") as server:
        for start in range(0, len(MESSAGES), 500):
            produce(server, "orders", MESSAGES[start : start + 500])
        yield server


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A second one, for tests that begin with what they write; `orders` goes after each."""
    with Server(tmp_path_factory.mktemp("other"), "--enable", "logmq") as server:
        yield server


@pytest.fixture
def fresh(other: Server) -> Iterator[Server]:
    yield other
    speak(other.address("logmq"), b"DELETE orders\n")


@pytest.mark.parametrize("policy", [STRICT, TRUSTING])
@pytest.mark.parametrize("chunk_bytes", [1, 200_000, 8 << 20])
def test_what_is_read_is_the_log_byte_for_byte(
    one: Server, chunk_bytes: int, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.pipeline.source.servers.CHUNK_BYTES", chunk_bytes)
    with opened(one) as served:
        spot = served.spots(ORDERS)["orders"]
        assert (spot.first, spot.end) == (0, len(LOG))
        for start in (0, sum(LENGTHS[:7]), sum(LENGTHS[:3000])):
            for stop in (sum(LENGTHS[:3001]), len(LOG)):
                span = Span(served.source, "orders", spot.id, start, stop)
                assert read(served, span, policy) == LOG[start:stop]
                for chunk in served.chunks(span, policy):
                    assert sum(mark.length for mark in chunk.marks) == len(chunk.data)
                    assert chunk.marks[0].offset == chunk.offset


def test_places_in_a_log_are_found(one: Server) -> None:
    starts = [sum(LENGTHS[:count]) for count in range(len(LENGTHS) + 1)]
    with opened(one) as served:
        spot = served.spots(ORDERS)["orders"]
        span = whole(served)
        assert served.cut(span, starts[2000]) in starts[1:2001]
        (first, *_, last) = [mark for chunk in served.chunks(span, STRICT) for mark in chunk.marks]
        assert served.at_time(spot, 0) == served.at_time(spot, first.first_ms) == 0
        assert served.at_time(spot, last.first_ms + 100_000) is None
        for count in (0, 1, 1500, 4000):
            assert served.start_below(spot, starts[count]) == starts[count]
        assert served.start_below(spot, starts[1500] + 1) == starts[1500]
        assert served.start_below(spot, starts[1500] - 1) == starts[1499]


@pytest.mark.parametrize(
    ("start", "records", "size", "count"),
    [
        (0, 1, None, 1),
        (0, 1234, None, 1234),
        (1234, 1234, None, 1234),
        (0, None, 1, 1),
        (10, None, sum(LENGTHS[10:20]) + 1, 10),
        (10, 7, sum(LENGTHS[10:20]), 7),
        (10, 70, sum(LENGTHS[10:20]), 10),
        (3990, 1000, None, 10),
        (0, 100_000, 1 << 40, 4000),
    ],
)
def test_a_trigger_is_limited(
    one: Server, start: int, records: int | None, size: int | None, count: int
) -> None:
    with opened(one) as served:
        spot = served.spots(ORDERS)["orders"]
        stop, passed = served.advance(spot, sum(LENGTHS[:start]), records, size)
        assert (stop, passed) == (sum(LENGTHS[: start + count]), count)


def test_topics_are_found_by_name_or_pattern(fresh: Server) -> None:
    produce(fresh, "a.1", [b"one"])
    produce(fresh, "a.2", [b"two", b"two"])
    produce(fresh, "b", [b"three"])
    with opened(fresh) as served:
        assert sorted(served.spots(Topics(pattern=r"a\..*"))) == ["a.1", "a.2"]
        found = served.spots(Topics(("b", "a.2", "none")))
        assert {name: (spot.first, spot.end) for name, spot in found.items()} == {"b": (0, 9), "a.2": (0, 14)}
        speak(fresh.address("logmq"), b"DELETE b\n")
        assert list(served.spots(Topics(("b",)))) == []


def test_a_name_that_no_topic_can_have_is_not_asked_for(one: Server) -> None:
    with opened(one) as served:
        with pytest.raises(Refusal, match="BAD_TOPIC"):
            served.spots(Topics(("x\nDELETE orders",)))
        assert served.spots(ORDERS)["orders"].end == len(LOG)


def test_a_server_that_is_down_is_named() -> None:
    down = Address("127.0.0.1", 1)
    with (
        closing(Served(down, IMPATIENT)) as served,
        pytest.raises(ConnectionRefusedError, match="no LogMQ server") as raised,
    ):
        served.spots(ORDERS)
    assert raised.value.filename == str(down)


def test_a_read_goes_on_when_the_server_is_back(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.pipeline.source.servers.CHUNK_BYTES", 100_000)
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    with opened(server, Reach(retry_seconds=60)) as served:
        chunks = served.chunks(whole(served), STRICT)
        data = next(chunks).data
        server.kill()
        server.start("--port", f"logmq={server.address('logmq')[1]}")
        assert data + b"".join(chunk.data for chunk in chunks) == LOG


def test_a_log_that_was_deleted_or_made_again_is_lost(fresh: Server) -> None:
    produce(fresh, "orders", MESSAGES)
    with opened(fresh) as served:
        before = served.spots(ORDERS)["orders"]
        span = whole(served)
        assert not served.is_other(before, before.id, before.end)
        speak(fresh.address("logmq"), b"DELETE orders\n")
        with pytest.raises(LostError, match=f"orders on .*offsets 0 to {len(LOG)} are lost: NO_TOPIC"):
            read(served, span)
        produce(fresh, "orders", MESSAGES[:10])
        shorter = served.spots(ORDERS)["orders"]
        assert served.is_other(shorter, before.id, before.end)
        with pytest.raises(LostError, match="made again"):
            read(served, span)
        produce(fresh, "orders", MESSAGES[10:])
        again = served.spots(ORDERS)["orders"]
        earlier = before.id - 2 * SAME_MS  # as if a while had gone by
        assert again.end == before.end
        assert served.is_other(again, earlier, before.end)
        with pytest.raises(LostError, match="made again"):
            read(served, Span(served.source, "orders", earlier, 0, before.end))


def test_retention_that_overtakes_is_told_and_passed_over(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    with opened(server) as served:
        span = whole(served)
    server.stop()
    environ = {"BROKERS_LOGMQ_RETENTION_BYTES": "300000", "BROKERS_STORAGE_RETENTION_SECONDS": "0.01"}
    keep = new_server("--enable", "logmq", data=server.data, environ=environ).start()
    with opened(keep) as served:
        until(lambda: served.spots(ORDERS)["orders"].first > 0)
        first = served.spots(ORDERS)["orders"].first
        lost: list[str] = []
        assert read(served, span, Policy(True, Unverified.READ, lost.append)) == LOG[first:]
        (text,) = lost
        assert f"offsets 0 to {first} are lost: retention dropped it" in text


def test_a_damaged_range_is_told_and_passed_over(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    server.stop()
    file = server.data / "logmq" / "orders.log"
    data = bytearray(file.read_bytes())
    data[300_000] ^= 1
    file.write_bytes(data)
    server.start()
    with opened(server) as served:
        lost: list[str] = []
        found = read(served, whole(served), Policy(True, Unverified.READ, lost.append))
        (text,) = lost
        start, stop = map(int, text.split("offsets ")[1].split(" are lost")[0].split(" to "))
        assert start <= 300_000 < stop
        assert found == LOG[:start] + LOG[stop:]


def test_it_speaks_tls(new_server: Callable[..., Server], tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    certificate = {"BROKERS_TLS_CERTIFICATE": str(tmp_path / "server.pem")}
    server = new_server("--enable", "logmq", environ=certificate).start()
    with opened(server, Reach(ca=str(tmp_path / "ca.pem"))) as served:
        assert served.spots(ORDERS) == {}
    with (
        opened(server, Reach(tls=True)) as served,
        pytest.raises(ConnectionRefusedError, match="certificate"),
    ):
        served.spots(ORDERS)


def test_a_stream_meets_a_topic_that_comes_goes_and_comes_again(fresh: Server) -> None:
    where = str(Address(*fresh.address("logmq")))
    options = parse({"servers": where, "subscribe": "orders", "startingOffsets": "earliest"}, streaming=True)
    lost: list[str] = []

    def following(start: Offset, policy: Policy = STRICT) -> Offset:
        return stream.following(options, policy, start, Limit())

    def ranges(start: Offset, end: Offset) -> list[tuple[int, int]]:
        return [(span.start, span.stop) for span in stream.spans(options, start, end)]

    nothing = following(stream.INITIAL)
    assert ranges(stream.INITIAL, nothing) == []
    produce(fresh, "orders", MESSAGES[:100])
    some = following(nothing)
    assert ranges(nothing, some) == [(0, sum(LENGTHS[:100]))]
    produce(fresh, "orders", MESSAGES[100:])
    more = following(some)
    assert ranges(some, more) == [(sum(LENGTHS[:100]), len(LOG))]
    assert following(more) == more

    speak(fresh.address("logmq"), b"DELETE orders\n")
    with pytest.raises(LostError, match="has been deleted"):
        following(more)
    produce(fresh, "orders", MESSAGES)
    end, newest = more["logs"][where]["orders"]
    a_while_ago = {"logs": {where: {"orders": [end, newest - 2 * SAME_MS]}}}
    with pytest.raises(LostError, match="deleted and made again"):
        following(a_while_ago)
    going_on = Policy(True, Unverified.READ, lost.append)
    again = following(a_while_ago, going_on)
    assert ranges(a_while_ago, again) == [(0, len(LOG))]
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("given", "reach"),
    [
        ({}, Reach()),
        ({"TLS": "true"}, Reach(tls=True)),
        (
            {"tlsCa": "a", "tlsCertificate": "c", "tlsKey": "k", "connectTimeoutMs": "1500"},
            Reach(False, "a", "c", "k", 1.5),
        ),
        ({"replyTimeoutMs": "10", "retryTimeoutMs": "20"}, Reach(reply_seconds=0.01, retry_seconds=0.02)),
    ],
)
def test_how_servers_are_reached_is_an_option(given: dict[str, str], reach: Reach) -> None:
    assert parse({"servers": "a", "subscribe": "t", **given}).reach == reach


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"servers": "a:x"}, "servers: 'a:x': 'x' is not a port"),
        ({"servers": "a:65536"}, "servers: 'a:65536': '65536' is not a port"),
        ({"tlsKey": "k"}, "tlsKey: is the key of a certificate"),
        ({"tls": "perhaps"}, "tls: not true or false"),
        ({"retryTimeoutMs": "0"}, "retryTimeoutMs: not a whole number above 0"),
        ({"replyTimeoutMs": str(1 << 31)}, "replyTimeoutMs: above 2147483647"),
        ({"servers": "a..b:1"}, "servers: 'a..b' is not the name of a host"),
        ({"servers": "http://a:1"}, "servers: 'http://a:1' is not host:port"),
        ({"namespace": "dms"}, "namespace: only a data folder"),
        ({"unverified": "fail"}, "unverified: only a data folder"),
        ({"subscribe": "t,a b"}, "subscribe: 'a b': a name is"),
    ],
)
def test_a_wrong_option_of_reaching_servers_is_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse({"servers": "a", "subscribe": "t", **given})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tlsCa": "/nowhere.pem"}, "tlsCa: /nowhere.pem cannot be used: No such file"),
        ({"tlsCa": __file__}, "tlsCa: .* cannot be used"),
        ({"tlsCertificate": "/nowhere.pem"}, "tlsCertificate: /nowhere.pem cannot be used"),
    ],
)
def test_a_file_that_is_no_good_for_tls_is_named(given: dict[str, str], text: str) -> None:
    chosen = parse({"servers": "a", "subscribe": "t", **given})
    with pytest.raises(ConfigError, match=text):
        open_place(chosen, "a")


def test_several_servers_are_read_together(spark: "SparkSession", one: Server, fresh: Server) -> None:
    produce(fresh, "bills", [b"bill"])
    servers = ",".join(str(Address(*server.address("logmq"))) for server in (one, fresh))
    frame = spark.read.format("logmq").option("servers", servers)
    found = frame.option("subscribe", "orders,bills").option("minPartitions", "3").load()
    rows = [(row.topic, row.offset, bytes(row.value)) for row in found.orderBy("topic", "offset").collect()]
    orders = [("orders", sum(LENGTHS[:number]), message) for number, message in enumerate(MESSAGES)]
    assert rows == [("bills", 0, b"bill"), *orders]


@contextmanager
def scripted(*answers: bytes, reply_seconds: float = 60) -> Iterator[Served]:
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
        try:
            with closing(
                Served(Address(*address), Reach(reply_seconds=reply_seconds, retry_seconds=0))
            ) as served:
                yield served
        finally:
            over.set()
            socket.create_connection(address).close()
            thread.join()


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with scripted(reply_seconds=0.05) as served, pytest.raises(ConnectionRefusedError, match="timed out"):
        served.spots(ORDERS)


def test_bytes_that_do_not_match_their_crc_are_damage() -> None:
    answers = (
        b"OFFSETS 0 5\n",
        b"MARK 0 5 1 %d 1700000000000\nEND\n" % crc32c(b"\0\0\0\1x"),
        b"CHUNK 0 5 5\n\0\0\0\1y",
    )
    with scripted(*answers) as served, pytest.raises(LostError, match=r"offsets 0 to 5 .*CRC"):
        read(served, Span(served.source, "orders", 0, 0, 5))
    with scripted(*answers) as served:
        assert read(served, Span(served.source, "orders", 0, 0, 5), TRUSTING) == b"\0\0\0\1y"


def test_what_no_mark_covers_is_read_and_its_records_are_counted() -> None:
    """Nothing at all, or what retention left of a mark, or between two, or behind the last."""
    log, lengths = encode([b"%d" % number for number in range(10)])
    size = lengths[0]
    ends = [size * number for number in range(11)]

    def mark(first: int, last: int) -> bytes:
        crc = crc32c(log[ends[first] : ends[last]])
        return b"MARK %d %d %d %d 1700000000000\n" % (
            ends[first],
            ends[last] - ends[first],
            last - first,
            crc,
        )

    for first, marks, expected in (
        (0, [], [10]),
        (0, [mark(0, 2), mark(5, 7)], [2, 3, 2, 3]),
        (3, [mark(0, 2), mark(2, 5), mark(5, 10)], [2, 5]),
    ):
        answers = (
            b"OFFSETS %d %d\n" % (ends[first], ends[10]),
            b"".join(marks) + b"END\n",
            b"CHUNK %d %d %d\n" % (ends[first], ends[10] - ends[first], ends[10]) + log[ends[first] :],
        )
        with scripted(*answers) as served:
            chunks = list(served.chunks(Span(served.source, "orders", 0, ends[first], ends[10]), STRICT))
        assert b"".join(bytes(chunk.data) for chunk in chunks) == log[ends[first] :]
        assert [mark.records for chunk in chunks for mark in chunk.marks] == expected


def test_of_several_marks_that_are_not_given_only_the_damaged_is_lost() -> None:
    log, lengths = encode([b"a", b"b"])
    size = lengths[0]
    marks = b"".join(
        b"MARK %d %d 1 %d 1700000000000\n" % (at, size, crc32c(log[at : at + size])) for at in (0, size)
    )
    answers = (
        b"OFFSETS 0 %d\n" % len(log),
        marks + b"END\n",
        b"ERR STORAGE damaged\n",
        b"CHUNK 0 %d %d\n" % (size, size) + log[:size],
        b"ERR STORAGE damaged\n",
    )
    lost: list[str] = []
    with scripted(*answers) as served:
        span = Span(served.source, "orders", 0, 0, len(log))
        assert read(served, span, Policy(True, Unverified.READ, lost.append)) == log[:size]
    assert [text.partition(" are lost")[0].partition(": ")[2] for text in lost] == [
        f"offsets {size} to {len(log)}"
    ]


def test_a_log_is_fetched_in_chunks_of_a_bounded_size(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(one) as served:
        most = 2 * max(mark.length for mark in served._marks("orders", 0, len(LOG)))
        monkeypatch.setattr(servers, "CHUNK_BYTES", most)
        chunks = list(served.chunks(whole(served), STRICT))
    assert max(len(chunk.data) for chunk in chunks) <= most
    assert b"".join(bytes(chunk.data) for chunk in chunks) == LOG


def test_where_everything_that_was_read_is_gone_a_log_is_not_another_one() -> None:
    """Nothing that was there before is left to be asked for."""
    with scripted(b"ERR OUT_OF_RANGE below the first\n") as served:
        assert not served.is_other(LogSpot(served.source, "orders", 1, 20, 30), 1, 20)


def test_a_log_is_told_from_one_made_again_by_its_newest_record() -> None:
    """One that is a second younger, behind what was read, was not there then."""
    log, _ = encode([b"a", b"b"])
    newest = b"MARK 5 5 1 %d 1700000000000\nEND\n" % crc32c(log[5:])
    with scripted(b"OFFSETS 0 10\n", newest) as served:
        assert served.spots(ORDERS) == {"orders": LogSpot(served.source, "orders", 1_700_000_000_000, 0, 10)}
    for seen, is_other in ((1_700_000_000_000, False), (1_699_999_999_000, False), (1_699_999_998_999, True)):
        with scripted(newest) as served:
            found = LogSpot(served.source, "orders", 1_700_000_000_000, 0, 10)
            assert served.is_other(found, seen, 10) is is_other
            assert served.is_other(found, seen, 11)


def test_a_time_before_what_is_kept_is_the_first_place_and_one_behind_it_none() -> None:
    for answer, place in ((b"OK 3\n", 20), (b"OK 25\n", 25), (b"OK 30\n", None)):
        with scripted(answer) as served:
            assert served.at_time(LogSpot(served.source, "orders", 1, 20, 30), 7) == place


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"TOPIC x\n", b"CHUNK 0 9 8\n"])
def test_what_is_no_logmq_server_is_told_apart(answer: bytes) -> None:
    with scripted(answer) as served, pytest.raises(RemoteProtocolError, match="not LogMQ's"):
        served.spots(ORDERS)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", [("a", 8080)]),
        ("a:1, b:2 ,", [("a", 1), ("b", 2)]),
        ("[::1],[::1]:9", [("::1", 8080), ("::1", 9)]),
    ],
)
def test_servers_are_hosts_with_or_without_ports(text: str, servers: list[tuple[str, int]]) -> None:
    parsed = parse_servers(text)
    assert [(each.host, each.port) for each in parsed] == servers
    assert parse_servers(",".join(map(str, parsed))) == parsed


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:x", "a:0", "a:70000", "::1", "[::1", "[::1]8", "a b", "a,a:8080"]
)
def test_what_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_servers(text)

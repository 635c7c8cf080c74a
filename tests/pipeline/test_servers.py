"""Logs of real servers, as the source reads them (scripted ones are in `test_scripted_servers`)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from brokers.pipeline.source import stream
from brokers.pipeline.source.options import Reach, TopicChoice, parse
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import DataLoss, LossPolicy
from brokers.pipeline.source.servers import SAME_MS, ServerReader
from brokers.pipeline.source.stream import Offset
from tests.pipeline.folders import follow
from tests.pipeline.served import (
    IMPATIENT,
    LENGTHS,
    LOG,
    MESSAGES,
    ORDERS,
    STRICT,
    TRUSTING,
    LostError,
    opened,
    produce,
    read,
    telling,
    where,
    whole,
)
from tests.support.server import Server, speak, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    one: Server, chunk_bytes: int, policy: LossPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.pipeline.source.ranges.CHUNK_BYTES", chunk_bytes)
    with opened(one) as served:
        log = served.logs(ORDERS)["orders"]
        assert (log.start, log.stop) == (0, len(LOG))
        for start in (0, sum(LENGTHS[:7]), sum(LENGTHS[:3000])):
            for stop in (sum(LENGTHS[:3001]), len(LOG)):
                span = log.part(start, stop)
                assert read(served, span, policy) == LOG[start:stop]
                for chunk in served.chunks(span, policy):
                    assert sum(entry.length for entry in chunk.entries) == len(chunk.data)
                    assert len(chunk.data) <= chunk_bytes or len(chunk.entries) == 1
                    assert chunk.entries[0].offset == chunk.offset


def test_places_in_a_log_are_found(one: Server) -> None:
    starts = [sum(LENGTHS[:count]) for count in range(len(LENGTHS) + 1)]
    with opened(one) as served:
        log = span = whole(served)
        assert served.cut(span, starts[2000]) in starts[1:2001]
        (first, *_, last) = [entry for chunk in served.chunks(span, STRICT) for entry in chunk.entries]
        assert served.at_time(log, 0) == served.at_time(log, first.first_ms) == 0
        assert served.at_time(log, last.first_ms + 100_000) is None
        for count in (0, 1, 1500, 4000):
            assert served.start_below(log, starts[count]) == starts[count]
        assert served.start_below(log, starts[1500] + 1) == starts[1500]
        assert served.start_below(log, starts[1500] - 1) == starts[1499]


def test_topics_are_found_by_name_or_pattern(fresh: Server) -> None:
    produce(fresh, "a.1", [b"one"])
    produce(fresh, "a.2", [b"two", b"two"])
    produce(fresh, "b", [b"three"])
    with opened(fresh) as served:
        assert sorted(served.logs(TopicChoice(pattern=r"a\..*"))) == ["a.1", "a.2"]
        found = served.logs(TopicChoice(("b", "a.2", "none")))
        assert {name: (log.start, log.stop) for name, log in found.items()} == {"b": (0, 9), "a.2": (0, 14)}
        speak(fresh.address("logmq"), b"DELETE b\n")
        assert list(served.logs(TopicChoice(("b",)))) == []


def test_a_server_that_is_down_is_named() -> None:
    down = Address("127.0.0.1", 1)
    with (
        closing(ServerReader(down, IMPATIENT)) as served,
        pytest.raises(ConnectionRefusedError, match="no LogMQ server") as raised,
    ):
        served.logs(ORDERS)
    assert raised.value.filename == str(down)


def test_a_read_goes_on_when_the_server_is_back(
    new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokers.pipeline.source.ranges.CHUNK_BYTES", 100_000)
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
        before = served.logs(ORDERS)["orders"]
        span = whole(served)
        assert not served.is_other(before, before.log_id, before.stop)
        speak(fresh.address("logmq"), b"DELETE orders\n")
        with pytest.raises(LostError, match=f"orders in .*offsets 0 to {len(LOG)} are lost: NO_TOPIC"):
            read(served, span)
        produce(fresh, "orders", MESSAGES[:10])
        shorter = served.logs(ORDERS)["orders"]
        assert served.is_other(shorter, before.log_id, before.stop)
        with pytest.raises(LostError, match="made again"):
            read(served, span)
        produce(fresh, "orders", MESSAGES[10:])
        again = served.logs(ORDERS)["orders"]
        earlier = before.log_id - 2 * SAME_MS  # as if a while had gone by
        assert again.stop == before.stop
        assert served.is_other(again, earlier, before.stop)
        with pytest.raises(LostError, match="made again"):
            read(served, LogRange(served.source, "orders", earlier, 0, before.stop))


def test_retention_that_overtakes_is_told_and_passed_over(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    produce(server, "orders", MESSAGES)
    with opened(server) as served:
        span = whole(served)
    server.stop()
    environ = {"BROKERS_LOGMQ_RETENTION_BYTES": "300000", "BROKERS_STORAGE_RETENTION_SECONDS": "0.01"}
    keep = new_server("--enable", "logmq", data=server.data, environ=environ).start()
    with opened(keep) as served:
        until(lambda: served.logs(ORDERS)["orders"].start > 0)
        first = served.logs(ORDERS)["orders"].start
        lost: list[str] = []
        assert read(served, span, telling(lost)) == LOG[first:]
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
        found = read(served, whole(served), telling(lost))
        (text,) = lost
        start, stop = map(int, text.split("offsets ")[1].split(" are lost")[0].split(" to "))
        assert start <= 300_000 < stop
        assert found == LOG[:start] + LOG[stop:]


def test_it_speaks_tls_and_a_side_that_alone_does_is_told_so_at_once(
    new_server: Callable[..., Server], tmp_path: Path, one: Server
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    certificate = {"BROKERS_TLS_CERTIFICATE": str(tmp_path / "server.pem")}
    server = new_server("--enable", "logmq", environ=certificate).start()
    with opened(server, Reach(ca=str(tmp_path / "ca.pem"))) as served:
        assert served.logs(ORDERS) == {}
    for there, reach, text in (
        (server, Reach(tls=True), "certificate"),
        (server, Reach(retry_seconds=3600), r"it speaks TLS: the option tls=true is missing"),
        (one, Reach(tls=True, retry_seconds=3600), "it does not speak TLS"),
    ):
        with opened(there, reach) as served, pytest.raises(ConnectionRefusedError, match=text):
            served.logs(ORDERS)


def test_a_stream_meets_a_topic_that_comes_goes_and_comes_again(
    fresh: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    place = where(fresh)
    given = {"servers": place, "subscribe": "orders", "startingOffsets": "earliest"}
    options = parse(given, streaming=True)

    def ranges(start: Offset, end: Offset) -> list[tuple[int, int]]:
        return [(span.start, span.stop) for span in stream.ranges(options, start, end)]

    nothing = follow(options, stream.INITIAL)
    assert ranges(stream.INITIAL, nothing) == []
    produce(fresh, "orders", MESSAGES[:100])
    some = follow(options, nothing)
    assert ranges(nothing, some) == [(0, sum(LENGTHS[:100]))]
    produce(fresh, "orders", MESSAGES[100:])
    more = follow(options, some)
    assert ranges(some, more) == [(sum(LENGTHS[:100]), len(LOG))]
    assert follow(options, more) == more

    speak(fresh.address("logmq"), b"DELETE orders\n")
    with pytest.raises(DataLoss, match="has been deleted"):
        follow(options, more)
    produce(fresh, "orders", MESSAGES)
    end, newest = more["logs"][place]["orders"]
    a_while_ago = {"logs": {place: {"orders": [end, newest - 2 * SAME_MS]}}}
    with pytest.raises(DataLoss, match="deleted and made again"):
        follow(options, a_while_ago)
    again = follow(parse(given | {"failOnDataLoss": "false"}, streaming=True), a_while_ago)
    assert ranges(a_while_ago, again) == [(0, len(LOG))]
    assert capsys.readouterr().err.count("\n") == 2  # it was not there at first


def test_several_servers_are_read_together(spark: "SparkSession", one: Server, fresh: Server) -> None:
    produce(fresh, "bills", [b"bill"])
    frame = spark.read.format("logmq").option("servers", f"{where(one)},{where(fresh)}")
    found = frame.option("subscribe", "orders,bills").option("minPartitions", "3").load()
    rows = [(row.topic, row.offset, bytes(row.value)) for row in found.orderBy("topic", "offset").collect()]
    orders = [("orders", sum(LENGTHS[:number]), message) for number, message in enumerate(MESSAGES)]
    assert rows == [("bills", 0, b"bill"), *orders]

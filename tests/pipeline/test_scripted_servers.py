"""A server's logs, as the source reads them, from scripted servers: what no real one does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from crc32c import crc32c

from brokers.pipeline.source.options import Reach, Unverified
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.origin import LossPolicy
from brokers.pipeline.source.servers import Served
from brokers.pipeline.source.spans import LogSpot, Span
from logmq.runs import encode
from shared.errors import RemoteProtocolError
from tests.pipeline.served import ORDERS, STRICT, TRUSTING, LostError, read


@contextmanager
def scripted(*answers: bytes, reply_seconds: float = 60) -> Iterator[Served]:
    """A server that gives these answers, one a request, over however many connections, then says nothing."""
    left = list(answers)

    def talk(connection: socket.socket) -> None:
        with connection:
            while received := connection.recv(1 << 16):
                asked = received.count(b"\n")
                given = left[:asked]
                del left[:asked]  # before they are sent: the next request may come on another connection
                connection.sendall(b"".join(given))

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
    """Nothing at all, or what retention left of an entry, or between two, or behind the last."""
    log, lengths = encode([b"%d" % number for number in range(10)])
    size = lengths[0]
    ends = [size * number for number in range(11)]

    def entry(first: int, last: int) -> bytes:
        crc = crc32c(log[ends[first] : ends[last]])
        return b"MARK %d %d %d %d 1700000000000\n" % (
            ends[first],
            ends[last] - ends[first],
            last - first,
            crc,
        )

    for first, entries, expected in (
        (0, [], [10]),
        (0, [entry(0, 2), entry(5, 7)], [2, 3, 2, 3]),
        (3, [entry(0, 2), entry(2, 5), entry(5, 10)], [2, 5]),
    ):
        answers = (
            b"OFFSETS %d %d\n" % (ends[first], ends[10]),
            b"".join(entries) + b"END\n",
            b"CHUNK %d %d %d\n" % (ends[first], ends[10] - ends[first], ends[10]) + log[ends[first] :],
        )
        with scripted(*answers) as served:
            chunks = list(served.chunks(Span(served.source, "orders", 0, ends[first], ends[10]), STRICT))
        assert b"".join(bytes(chunk.data) for chunk in chunks) == log[ends[first] :]
        assert [entry.records for chunk in chunks for entry in chunk.entries] == expected


def test_of_several_marks_that_are_not_given_only_the_damaged_is_lost() -> None:
    log, lengths = encode([b"a", b"b"])
    size = lengths[0]
    entries = b"".join(
        b"MARK %d %d 1 %d 1700000000000\n" % (at, size, crc32c(log[at : at + size])) for at in (0, size)
    )
    answers = (
        b"OFFSETS 0 %d\n" % len(log),
        entries + b"END\n",
        b"ERR STORAGE damaged\n",
        b"CHUNK 0 %d %d\n" % (size, size) + log[:size],
        b"ERR STORAGE damaged\n",
    )
    lost: list[str] = []
    with scripted(*answers) as served:
        span = Span(served.source, "orders", 0, 0, len(log))
        assert read(served, span, LossPolicy(True, Unverified.READ, lost.append)) == log[:size]
    assert [text.partition(" are lost")[0].partition(": ")[2] for text in lost] == [
        f"offsets {size} to {len(log)}"
    ]


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

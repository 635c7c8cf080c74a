"""A server's logs, as the source reads them, from scripted servers: what no real one does."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from crc32c import crc32c

from brokers.pipeline.source.options import Reach
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.servers import ServerReader
from logmq.runs import encode
from shared.errors import RemoteProtocolError
from tests.pipeline.served import ORDERS, STRICT, TRUSTING, LostError, read, telling


def mark(at: int, data: bytes, records: int = 1) -> bytes:
    return b"MARK %d %d %d %d 1700000000000\n" % (at, len(data), records, crc32c(data))


@contextmanager
def scripted(
    *answers: bytes | tuple[bytes], reply_seconds: float = 60, retry_seconds: float = 0
) -> Iterator[ServerReader]:
    """A server that gives these answers, one a request, over however many connections, then says nothing.

    Behind an answer in a tuple it closes the connection.
    """
    left = list(answers)

    def talk(connection: socket.socket) -> None:
        with connection:
            while received := connection.recv(1 << 16):
                asked = received.count(b"\n")
                given = left[:asked]
                del left[:asked]  # before they are sent: the next request may come on another connection
                connection.sendall(b"".join(each if isinstance(each, bytes) else each[0] for each in given))
                if any(isinstance(each, tuple) for each in given):
                    return

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
                ServerReader(
                    Address(*address), Reach(reply_seconds=reply_seconds, retry_seconds=retry_seconds)
                )
            ) as served:
                yield served
        finally:
            over.set()
            socket.create_connection(address).close()
            thread.join()


def test_a_server_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with scripted(reply_seconds=0.05) as served, pytest.raises(ConnectionRefusedError, match="timed out"):
        served.logs(ORDERS)


def test_bytes_that_do_not_match_their_crc_are_damage() -> None:
    answers = (
        b"OFFSETS 0 5\n",
        mark(0, b"\0\0\0\1x") + b"END\n",
        b"CHUNK 0 5 5\n\0\0\0\1y",
    )
    with scripted(*answers) as served, pytest.raises(LostError, match=r"offsets 0 to 5 .*CRC"):
        read(served, LogRange(served.source, "orders", 0, 0, 5))
    with scripted(*answers) as served:
        assert read(served, LogRange(served.source, "orders", 0, 0, 5), TRUSTING) == b"\0\0\0\1y"


def test_what_no_mark_covers_is_read_and_its_records_are_counted() -> None:
    """Nothing at all, or what retention left of an entry, or between two, or behind the last."""
    log, lengths = encode([b"%d" % number for number in range(10)])
    size = lengths[0]
    ends = [size * number for number in range(11)]

    def entry(first: int, last: int) -> bytes:
        return mark(ends[first], log[ends[first] : ends[last]], last - first)

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
            chunks = list(served.chunks(LogRange(served.source, "orders", 0, ends[first], ends[10]), STRICT))
        assert b"".join(bytes(chunk.data) for chunk in chunks) == log[ends[first] :]
        assert [entry.records for chunk in chunks for entry in chunk.entries] == expected


def test_of_several_marks_that_are_not_given_only_the_damaged_is_lost() -> None:
    log, lengths = encode([b"a", b"b"])
    size = lengths[0]
    answers = (
        b"OFFSETS 0 %d\n" % len(log),
        mark(0, log[:size]) + mark(size, log[size:]) + b"END\n",
        b"ERR STORAGE damaged\n",
        b"CHUNK 0 %d %d\n" % (size, size) + log[:size],
        b"ERR STORAGE damaged\n",
    )
    lost: list[str] = []
    with scripted(*answers) as served:
        span = LogRange(served.source, "orders", 0, 0, len(log))
        assert read(served, span, telling(lost)) == log[:size]
    assert [text.partition(" are lost")[0].partition(": ")[2] for text in lost] == [
        f"offsets {size} to {len(log)}"
    ]


def test_where_everything_that_was_read_is_gone_a_log_is_not_another_one() -> None:
    """Nothing that was there before is left to be asked for."""
    with scripted(b"ERR OUT_OF_RANGE below the first\n") as served:
        assert not served.is_other(LogRange(served.source, "orders", 1, 20, 30), 1, 20)


def test_a_log_is_told_from_one_made_again_by_its_newest_record() -> None:
    """One that is a second younger, behind what was read, was not there then."""
    log, _ = encode([b"a", b"b"])
    newest = mark(5, log[5:]) + b"END\n"
    with scripted(b"OFFSETS 0 10\n", newest) as served:
        assert served.logs(ORDERS) == {"orders": LogRange(served.source, "orders", 1_700_000_000_000, 0, 10)}
    for seen, is_other in ((1_700_000_000_000, False), (1_699_999_999_000, False), (1_699_999_998_999, True)):
        with scripted(newest) as served:
            found = LogRange(served.source, "orders", 1_700_000_000_000, 0, 10)
            assert served.is_other(found, seen, 10) is is_other
            assert served.is_other(found, seen, 11)


def test_a_time_before_what_is_kept_is_the_first_place_and_one_behind_it_none() -> None:
    for answer, place in ((b"OK 3\n", 20), (b"OK 25\n", 25), (b"OK 30\n", None)):
        with scripted(answer) as served:
            assert served.at_time(LogRange(served.source, "orders", 1, 20, 30), 7) == place


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"TOPIC x\n", b"CHUNK 0 9 8\n"])
def test_what_is_no_logmq_server_is_told_apart(answer: bytes) -> None:
    with scripted(answer) as served, pytest.raises(RemoteProtocolError, match="not LogMQ's"):
        served.logs(ORDERS)


ONE = b"\0\0\0\1x"
"""A log of one record."""
ENDS = b"OFFSETS 0 5\n"
MARKS = mark(0, ONE) + b"END\n"
CHUNK = b"CHUNK 0 5 5\n" + ONE
SPOT = LogRange("", "orders", 1_700_000_000_000, 0, 5)


def of(served: ServerReader) -> LogRange:
    return LogRange(served.source, "orders", 0, 0, 5)


def test_after_bytes_that_are_not_logmqs_nothing_that_was_asked_before_is_answered_again() -> None:
    """The connection goes, and with it the requests that were on it; the next ones have their own answers."""
    with scripted(b"HTTP/1.1 400 Bad Request\r\n", b"OK 3\n", retry_seconds=5) as served:
        with pytest.raises(RemoteProtocolError):
            served.logs(ORDERS)
        assert served.at_time(SPOT, 7) == 3


def test_a_chunk_that_breaks_off_is_fetched_whole_over_another_connection() -> None:
    with scripted(ENDS, MARKS, (CHUNK[:-2],), CHUNK, retry_seconds=5) as served:
        assert read(served, of(served)) == ONE


@pytest.mark.parametrize("head", [b"CHUNK 0 5 6\n", b"CHUNK 0 %d %d\n" % (1 << 31, 1 << 31)])
def test_a_chunk_whose_numbers_cannot_be_is_not_waited_for(head: bytes) -> None:
    with scripted(ENDS, MARKS, head) as served, pytest.raises(RemoteProtocolError, match="a chunk of"):
        read(served, of(served))


@pytest.mark.parametrize(
    "answer", [b"EOF\n", b"CHUNK 5 5 10\n" + ONE, b"CHUNK 0 10 10\n" + 2 * ONE], ids=["EOF", "behind", "more"]
)
def test_a_topic_that_is_made_again_during_a_read_is_not_read(answer: bytes) -> None:
    with scripted(ENDS, MARKS, answer) as served, pytest.raises(LostError, match="it was made again"):
        read(served, of(served))


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ((b"ERR NO_TOPIC gone\n", MARKS), "NO_TOPIC"),
        ((ENDS, b"ERR OUT_OF_RANGE gone\n"), "OUT_OF_RANGE"),
        ((b"OFFSETS 0 4\n", MARKS), "made again"),
        ((ENDS, MARKS, b"ERR OUT_OF_RANGE gone\n", b"OFFSETS 9 20\n"), r"the first kept offset is 9"),
        ((ENDS, MARKS, b"ERR STORAGE damaged\n"), "STORAGE"),
    ],
    ids=["deleted", "no entries", "shorter", "dropped meanwhile", "damaged"],
)
def test_a_loss_that_is_passed_over_is_told_once_and_yields_nothing(
    answers: tuple[bytes, ...], text: str
) -> None:
    lost: list[str] = []
    with scripted(*answers) as served:
        assert read(served, of(served), telling(lost)) == b""
    assert len(lost) == 1
    assert re.search(f"orders in .*: offsets 0 to 5 are lost: .*{text}", lost[0])


def test_a_range_that_no_entry_covers_is_read() -> None:
    """Otherwise than of a folder: it says nothing about its bytes."""
    with scripted(ENDS, b"END\n", CHUNK) as served:
        assert read(served, of(served), STRICT) == ONE


def test_where_no_entry_can_be_had_an_offset_is_taken_as_it_is_and_a_log_is_not_cut() -> None:
    with scripted(b"ERR STORAGE damaged\n", b"ERR STORAGE damaged\n") as served:
        assert served.start_below(SPOT, 2) == 2
        assert served.cut(of(served), 2) == 0

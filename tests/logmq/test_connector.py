"""A client takes answers apart however they arrive, and says so where they are not LogMQ's."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logmq.connector import (
    Answer,
    ChunkAnswer,
    LineAnswer,
    LogmqError,
    Mark,
    OffsetsAnswer,
    Record,
    RecordAnswer,
    RowsAnswer,
    Topic,
    mark_row,
    records_of,
    take_message,
    topic_row,
)
from logmq.runs import message_lines
from shared.errors import RemoteProtocolError
from tests.logmq.world import records

CASES: list[tuple[Callable[[], Answer], bytes, object]] = [
    (lambda: LineAnswer(b"OK", 1), b"OK 12\n", (12,)),
    (lambda: LineAnswer(b"OK", 0), b"OK\n", ()),
    (lambda: LineAnswer(b"OFFSETS", 2), b"OFFSETS 3 9223372036854775807\n", (3, 2**63 - 1)),
    (lambda: OffsetsAnswer(3), b"OK 0\nOK 7\nOK 14\n", [0, 7, 14]),
    (RecordAnswer, b"MESSAGE 7 5 a\nb\nc\n", Record(7, b"a\nb\nc")),
    (RecordAnswer, b"MESSAGE 7 0 \n", Record(7, b"")),
    (RecordAnswer, b"EOF\n", None),
    (lambda: ChunkAnswer(9), b"CHUNK 9 14 23\n" + records(b"one", b"two"), (9, records(b"one", b"two"))),
    (lambda: ChunkAnswer(9), b"EOF\n", (9, b"")),
    (lambda: RowsAnswer(topic_row), b"TOPIC a 0 5\nTOPIC b 2 9\nEND\n", [Topic("a", 0, 5), Topic("b", 2, 9)]),
    (lambda: RowsAnswer(topic_row), b"END\n", []),
    (lambda: RowsAnswer(mark_row), b"MARK 0 10 2 77 1000\nEND\n", [Mark(0, 10, 2, 77, 1000)]),
]


def feed(answer: Answer, data: bytes, size: int) -> bytes:
    """Give it `data` in pieces, as a client does; returns what it left."""
    held = bytearray()
    for start in range(0, len(data), size):
        held += data[start : start + size]
        if not answer.done:
            end = answer.take(held, 0)
            if end > 0:
                del held[:end]
    return bytes(held)


@pytest.mark.parametrize(("make", "data", "result"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_an_answer_is_taken_whole_or_in_pieces_and_no_byte_further(
    make: Callable[[], Answer], data: bytes, result: object, size: int
) -> None:
    answer = make()
    told: list[bool] = []
    answer.on_done = lambda: told.append(True)
    assert feed(answer, data + b"OK 1\nmore", size) == b"OK 1\nmore"
    assert answer.done
    assert answer.error is None
    assert answer.result == result
    assert told == [True]


@pytest.mark.parametrize("make", [case[0] for case in CASES])
def test_a_refusal_is_an_error_with_its_code(make: Callable[[], Answer]) -> None:
    answer = make()
    line = b"ERR NO_TOPIC t does not exist\n"
    count = 3 if isinstance(answer, OffsetsAnswer) else 1
    assert feed(answer, line * count, 4) == b""
    if isinstance(answer, OffsetsAnswer):
        assert [str(error) for error in answer.offsets] == ["NO_TOPIC: t does not exist"] * 3
    else:
        assert isinstance(answer.error, LogmqError)
        assert answer.error.code == "NO_TOPIC"


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (lambda: LineAnswer(b"OK", 1), b"OK\n"),
        (lambda: LineAnswer(b"OK", 1), b"OK x\n"),
        (lambda: LineAnswer(b"OK", 1), b"OK 1 2\n"),
        (lambda: LineAnswer(b"OK", 1), b"OK 99999999999999999999\n"),
        (lambda: LineAnswer(b"OK", 1), b"OK 9999999999999999999\n"),
        (lambda: LineAnswer(b"OK", 1), b"x" * 70_000),
        (lambda: OffsetsAnswer(1), b"MESSAGE 0 0 \n"),
        (RecordAnswer, b"HELLO\n"),
        (RecordAnswer, b"MESSAGE 1\n"),
        (RecordAnswer, b"MESSAGE 1 2 abcd\n"),
        (RecordAnswer, b"MESSAGE 1 99999999999 "),
        (RecordAnswer, b"MESSAGE " + b"1" * 70_000),
        (lambda: ChunkAnswer(0), b"CHUNK 0 5 6\n"),
        (lambda: ChunkAnswer(0), b"CHUNK 0 99999999999 99999999999\n"),
        (lambda: RowsAnswer(topic_row), b"TOPIC a b\n"),
    ],
)
def test_what_is_no_answer_is_an_error(make: Callable[[], Answer], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        make().take(data, 0)


@given(st.lists(st.binary(max_size=40), min_size=1), st.integers(0, 2**40), st.integers(1, 50))
def test_message_lines_come_back_as_the_records_that_went_in(
    payloads: list[bytes], offset: int, size: int
) -> None:
    lines, _ = message_lines(records(*payloads), offset)
    held, found = bytearray(), []
    for start in range(0, len(lines), size):
        held += lines[start : start + size]
        while held.startswith(b"MESSAGE "):
            record, end = take_message(held, 0)
            if record is None:
                break
            found.append(record)
            del held[:end]
    assert [record.payload for record in found] == payloads
    assert found == records_of(records(*payloads), offset)
    assert found[-1].next_offset == offset + len(records(*payloads))


def test_a_chunk_that_is_not_whole_records_is_an_error() -> None:
    with pytest.raises(RemoteProtocolError):
        records_of(records(b"one") + b"\0\0\0\5abc", 0)


def test_a_record_in_a_log_line_shows_no_payload() -> None:
    assert "secret" not in repr(Record(1, b"secret"))

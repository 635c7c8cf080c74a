"""Pieces to a real server: each is there once, whatever has to be sent again."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing

import pytest

from brokers.pipeline.source import writing
from brokers.pipeline.source.link import Link
from brokers.pipeline.source.options import Reach
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.writing import NotWritten, PackedRecords, Writer
from logmq.connector import LogmqError
from logmq.runs import encode
from tests.pipeline.served import log
from tests.support.server import Server


def pieces(topic: str, count: int, what: str = "") -> list[PackedRecords]:
    return [
        PackedRecords(topic, encode([f"{what}{number}".encode(), b"x" * number])[0], 2)
        for number in range(count)
    ]


def write(
    server: Server,
    pieces: Sequence[PackedRecords],
    epoch: int = 0,
    name: str = "w",
) -> None:
    address, reach = Address(*server.address("logmq")), Reach(retry_seconds=60)
    with closing(Writer(address, reach, epoch)) as writer:
        numbers: Counter[str] = Counter()
        for piece in pieces:
            writer.write(piece, name, numbers[piece.topic])
            numbers[piece.topic] += 1
        writer.finish()


def joined(pieces: Sequence[PackedRecords]) -> bytes:
    return b"".join(piece.records for piece in pieces)


def test_pieces_are_written_in_order(server: Server) -> None:
    some, other = pieces("order", 40), pieces("order-2", 3)
    write(server, [*some[:20], *other, *some[20:]])
    assert log(server, "order") == joined(some)
    assert log(server, "order-2") == joined(other)


def test_a_task_that_runs_again_writes_what_is_missing(server: Server) -> None:
    some = pieces("again", 3 * writing.REMEMBERED)
    write(server, some[:-10])
    write(server, some)
    write(server, some)
    assert log(server, "again") == joined(some)


def test_the_next_epoch_is_new_and_an_old_one_is_not_written_again(server: Server) -> None:
    old, new, newer = pieces("epochs", 200, "a"), pieces("epochs", 5, "b"), pieces("epochs", 150, "c")
    for epoch, some in ((7, old), (8, new), (8, new), (9, newer)):
        write(server, some, epoch)
    assert log(server, "epochs") == joined([*old, *new, *newer])
    with pytest.raises(NotWritten, match="a newer epoch of this writer is there already"):
        write(server, old, 7)
    assert log(server, "epochs") == joined([*old, *new, *newer])


def test_other_rows_than_the_first_time_are_an_error(server: Server) -> None:
    some = pieces("other", 9)
    write(server, some)
    with pytest.raises(NotWritten, match=r"seq 4 at offset .* other records"):
        write(server, [*some[:4], some[5], some[4], *some[6:]])
    assert log(server, "other") == joined(some)
    write(server, pieces("other", 9, "z"), name="another")
    assert log(server, "other") == joined([*some, *pieces("other", 9, "z")])


def test_what_cannot_be_read_back_is_no_proof_that_it_is_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = pieces("unread", 3)
    write(server, some)
    for code, text in (("OUT_OF_RANGE", "retention has dropped these records"), ("STORAGE", "other records")):
        refused = LogmqError(code, "not now")
        monkeypatch.setattr(Link, "receive_chunk", lambda self, allocate, refused=refused: refused)
        with pytest.raises(NotWritten, match=text):
            write(server, some)


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (PackedRecords(".t", encode([b"x"])[0], 1), "a row's topic is '.t': a name is"),
        (PackedRecords("t\nDELETE order", encode([b"x"])[0], 1), "a row's topic is"),
        (PackedRecords("large", encode([bytes(1 << 21)])[0], 1), "TOO_LARGE: .* message_bytes_max"),
        (PackedRecords("huge", encode([bytes(65 << 20)])[0], 1), "above what the wire carries"),
    ],
)
def test_what_the_server_refuses_says_why(server: Server, piece: PackedRecords, text: str) -> None:
    with pytest.raises(NotWritten, match=text):
        write(server, [piece])


def test_the_largest_record_of_the_usual_settings_is_written(server: Server) -> None:
    piece = PackedRecords("largest", encode([bytes(1 << 20)])[0], 1)
    write(server, [piece])
    assert log(server, "largest") == piece.records


def test_a_server_that_is_killed_meanwhile_has_everything_once(new_server: Callable[..., Server]) -> None:
    server = new_server("--enable", "logmq").start()
    some = pieces("killed", 60)
    address = Address(*server.address("logmq"))
    with closing(Writer(address, Reach(retry_seconds=60), 0)) as writer:
        for number, piece in enumerate(some):
            writer.write(piece, "w", number)
            if number == 30:
                server.kill()
                server.start("--port", f"logmq={address.port}")
        writer.finish()
    assert log(server, "killed") == joined(some)

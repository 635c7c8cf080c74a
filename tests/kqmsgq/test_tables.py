"""What the tables of the recorded log say is what plain Python reads in it, whatever stands there."""

from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from kqmsgq import wire
from kqmsgq.tables import TABLES
from shared.errors import RemoteProtocolError
from shared.recording.blocks import GAP_BYTES, Block
from tests.support.recorded import Row, batch_of, block, damaged, plainly, repeated, rows, told

RECORDED, MESSAGES, VOLUMES = TABLES

messages = st.tuples(st.binary(max_size=5) | st.sampled_from((b"a", b"bb", b"\xff")), st.binary(max_size=20))


@st.composite
def honest(draw: st.DrawFn) -> bytes:
    sent = draw(repeated(messages))
    source = draw(st.sampled_from((b"", b"127.0.0.1:5")))
    return block("kqmsgq", len(sent), b"".join(wire.message(*each) for each in sent), source=source)


def plain_frames(head: Block, data: bytes) -> Iterator[Row]:
    while data:
        try:
            [one], end = _first(data)
        except RemoteProtocolError as error:
            raise ValueError(error.text) from None
        yield {"name": one.queue.decode(errors="backslashreplace"), "payload": one.body}
        data = data[end:]


def _first(data: bytes) -> tuple[list[wire.Message], int]:
    if data[0] != wire.MESSAGE:
        raise ValueError("no message")
    after = wire.name_end(data, 0, 1 << 32)
    end = None if after is None else wire.message_end(data, after, 1 << 32)
    if end is None or end > len(data):
        raise ValueError("it does not end")
    return wire.take_messages(data[:end], 1 << 32, 1 << 32)


@given(st.lists(damaged(honest()), max_size=5))
def test_recorded_is_what_plain_python_reads(payloads: list[bytes]) -> None:
    found = told(rows(RECORDED, batch_of(payloads, "kqmsgq")))
    assert found == plainly(payloads, "kqmsgq", plain_frames)


@given(st.lists(damaged(honest()), max_size=5))
def test_messages_and_volumes_agree_with_it(payloads: list[bytes]) -> None:
    batch = batch_of(payloads, "kqmsgq")
    found = rows(RECORDED, batch)
    counted = [
        {name: value for name, value in row.items() if name != "payload"}
        | {"bytes": None if row["payload"] is None else len(row["payload"])}
        for row in found
    ]
    assert rows(MESSAGES, batch) == [{name: row[name] for name in MESSAGES.schema.names} for row in counted]
    added = VOLUMES.decode(batch).to_pylist()
    assert all(len({row[column] for row in added}) == 1 for column in ("log", "protocol") if added)
    assert by_name((row["name"], row["messages"], row["bytes"]) for row in added if row["fault"] is None) == (
        by_name((row["name"], 1, len(row["payload"])) for row in found if row["fault"] is None)
    )
    assert {row["fault"] for row in added} == {row["fault"] for row in found}


def by_name(counts: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    added: dict[str, tuple[int, int]] = {}
    for name, messages, size in counts:
        before = added.get(name, (0, 0))
        added[name] = before[0] + messages, before[1] + size
    return added


def test_many_messages_in_one_block_and_a_queue_that_is_no_text() -> None:
    sent = [(b"orders", b"%03d" % number) for number in range(500)] + [(b"\xff", b"")]
    frames = b"".join(wire.message(*each) for each in sent)
    found = rows(RECORDED, batch_of([block("kqmsgq", 501, frames)], "kqmsgq"))
    assert [(row["name"], row["payload"]) for row in found] == [
        *((queue.decode(), body) for queue, body in sent[:-1]),
        ("\\xff", b""),
    ]


def test_what_was_not_recorded_is_counted_as_such() -> None:
    good = block("kqmsgq", 1, wire.message(b"q", b"body"))
    gap = block("kqmsgq", 7, GAP_BYTES.pack(700), codec=0)
    added = VOLUMES.decode(batch_of([good, gap], "kqmsgq")).to_pylist()
    found = {(row["name"], row["fault"]): (row["messages"], row["bytes"]) for row in added}
    assert found == {("q", None): (1, 4), (None, "not recorded"): (7, 700)}

"""What the tables of the recorded log say is what plain Python reads in it, whatever stands there."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from dmp import wire
from dmp.cold_records import TriesNote
from dmp.message import Head
from dmp.properties import NO_PROPERTIES
from dmp.queue_records import purged, put, taken, tried
from dmp.tables import SIZE_MAX, TABLES
from dmp.wire import NULL_MESSAGE, Message, MessageOptions
from shared.errors import RemoteProtocolError
from shared.recording.blocks import Block
from tests.support.recorded import Row, batch_of, block, damaged, plainly, repeated, rows, told

RECORDED, MESSAGES, *_ = TABLES

CONTENT_TYPE = b"\x80\x00\x04text"
messages = st.builds(
    Message,
    exchange=st.sampled_from((b"", b"sink")),
    key=st.sampled_from((b"", b"a.b", b"a.c", b"\xfe")),
    body=st.binary(max_size=20),
    properties=st.sampled_from((NO_PROPERTIES, NO_PROPERTIES, CONTENT_TYPE)),
    options=st.sampled_from((MessageOptions(0), MessageOptions(0), MessageOptions.MANDATORY)),
)


@st.composite
def honest(draw: st.DrawFn) -> bytes:
    sent = draw(repeated(messages | st.none()))
    frames = b"".join(NULL_MESSAGE if each is None else wire.message(each) for each in sent)
    many = sum(each is not None for each in sent)
    codec = draw(st.sampled_from((wire.RECORDED_MESSAGES, wire.RECORDED_PUBLISHES)))
    name = draw(st.sampled_from((b"", b"sink")))
    return block("dmp", many, frames, codec=codec, name=name, source=b"[::1]:5")


def plain_frames(head: Block, data: bytes) -> Iterator[Row]:
    name = head.name.decode(errors="backslashreplace")
    while data:
        try:
            end = wire.end_of(data, 0, SIZE_MAX)
            if end is None or end > len(data):
                raise ValueError("it does not end")
            found, _ = wire.take_messages(data[:end], 1 << 32)
        except RemoteProtocolError as error:
            raise ValueError(error.text) from None
        for one in found:
            yield {"name": name, "key": one.key.decode(errors="backslashreplace"), "payload": one.body}
        data = data[end:]


@given(st.lists(damaged(honest()), max_size=5))
def test_recorded_is_what_plain_python_reads(payloads: list[bytes]) -> None:
    batch = batch_of(payloads, "dmp")
    found = rows(RECORDED, batch)
    assert told(found) == plainly(payloads, "dmp", plain_frames, (1, 2))
    for row, message in zip(found, rows(MESSAGES, batch), strict=True):
        if (
            row["fault"] != "not recorded"
        ):  # a gap, which damage may make of a block, has bytes and no payload
            assert message["bytes"] == (None if row["payload"] is None else len(row["payload"]))


def test_keys_may_differ_where_all_else_repeats() -> None:
    sent = [Message(b"", b"k%d" % (number % 10), b"%04d" % number) for number in range(1000)]
    frames = b"".join(map(wire.message, sent))
    found = rows(RECORDED, batch_of([block("dmp", 1000, frames, name=b"sink")], "dmp"))
    assert [(row["key"].encode(), row["payload"]) for row in found] == [
        (each.key, each.body) for each in sent
    ]
    assert {row["name"] for row in found} == {"sink"}


def test_a_durable_queues_log_tells_what_came_and_left() -> None:
    stored = TABLES[-1]
    message = put(Head(b"logs", b"web.get", 5), [b"hello"], 3)
    records = [
        message[4:],
        taken([3, 4])[4:],
        purged(5, 9)[4:],
        tried(TriesNote(2, 0, False), [6])[4:],
        b"",
        b"\x01",
        b"\xff",
        taken([1 << 63])[4:],
    ]
    told = [
        (row["event"], row["number"], row["messages"], row["key"], row["payload"], bool(row["fault"]))
        for row in rows(stored, batch_of(records, "jobs"))
    ]
    assert told == [
        ("paged", 3, 1, "web.get", b"hello", False),
        ("taken", 3, 1, None, None, False),
        ("taken", 4, 1, None, None, False),
        ("purged", 5, 4, None, None, False),
        ("tried", 6, 1, None, None, False),
        *[(None, None, None, None, None, True)] * 4,
    ]

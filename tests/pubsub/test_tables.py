"""What the tables of the recorded log say is what plain Python reads in it, whatever stands there."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from struct import pack

from hypothesis import example, given
from hypothesis import strategies as st

from pubsub import wire
from pubsub.tables import TABLES
from pubsub.wire import PAYLOAD_BYTES_MIN, Kind, value_text
from shared.recording.blocks import Block
from tests.support.recorded import Row, batch_of, block, damaged, plainly, repeated, rows, told

READINGS, RECORDED, *_ = TABLES

VALUES = ("int_value", "short_real_value", "float_value", "string_value", "value")
Sent = tuple[bytes, bytes, int, bytes]
"""Sender, topic, type, payload."""


def recorded_block(sent: Sequence[Sent]) -> bytes:
    lengths = [wire.DATAGRAM_BYTES_MIN + len(payload) for *_, payload in sent]
    frames = [wire.frame(*each)[: wire.DATA_AT + len(each[3])] for each in sent]
    return block("pubsub", len(sent), pack(f">{len(sent)}H", *lengths) + b"".join(frames))


datagrams: st.SearchStrategy[Sent] = st.tuples(
    st.sampled_from((b"127.0.0.1:5", b"[::1]:40000")),
    st.sampled_from((b"", b"hall/1", b"\xff/x", b"t" * 50)),
    st.integers(0, 4),
    st.binary(max_size=9),
)


def plain_frames(head: Block, data: bytes) -> Iterator[Row]:
    begin = 2 * head.messages
    if len(data) < begin:
        raise ValueError("lengths")
    for place in range(head.messages):
        size = int.from_bytes(data[2 * place : 2 * place + 2], "big")
        frame = data[begin : begin + size + 51]
        if size < 51 or len(frame) < size + 51:
            raise ValueError("a frame")
        kind = frame[101]
        yield {
            "source": _text(frame[:50]),
            "name": _text(frame[50:100]),
            "key": Kind(kind).name if kind in PAYLOAD_BYTES_MIN else str(kind),
            "payload": frame[102:],
        }
        begin += len(frame)
    if begin != len(data):
        raise ValueError("more")


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="backslashreplace")


def plain_values(row: Row) -> Row:
    """The columns of values, by what the specification prints."""
    empty: Row = dict.fromkeys((*VALUES, "fault"))
    if row["fault"] is not None:
        return {**empty, "fault": row["fault"]}
    kinds = {kind.name: kind for kind in Kind}
    kind = kinds.get(row["key"])
    if kind is None or len(row["payload"]) < PAYLOAD_BYTES_MIN[kind]:
        return {**empty, "fault": True}
    said = value_text(kind, row["payload"]).decode(errors="backslashreplace")
    if kind is Kind.STRING:
        return {**empty, "string_value": said}
    value = {Kind.INT: int, Kind.SHORT_REAL: Decimal, Kind.FLOAT: float}[kind](said)
    return {**empty, f"{kind.name.lower()}_value": value, "value": float(said)}


@given(st.lists(damaged(repeated(datagrams).map(recorded_block)), max_size=5))
def test_recorded_and_readings_are_what_plain_python_reads(payloads: list[bytes]) -> None:
    batch = batch_of(payloads, "pubsub")
    found = rows(RECORDED, batch)
    assert told(found) == plainly(payloads, "pubsub", plain_frames)
    readings = told(rows(READINGS, batch))
    assert [{name: row[name] for name in (*VALUES, "fault")} for row in readings] == [
        plain_values(row) for row in told(found)
    ]
    same = ("log", "offset", "time", "protocol", "name", "key", "source")
    assert [[row[name] for name in same] for row in readings] == [
        [row[name] for name in same] for row in found
    ]


@given(st.integers(-(2**32) + 1, 2**32 - 1), st.integers(0, 255))
@example(-1, 255)
@example(2**32 - 1, 22)
@example(2**32 - 1, 23)
def test_a_float_is_the_nearest_to_its_decimal_number(digits: int, decimals: int) -> None:
    payload = bytes([digits < 0]) + abs(digits).to_bytes(4, "big") + bytes([decimals])
    [row] = rows(READINGS, batch_of([recorded_block([(b"", b"t", Kind.FLOAT, payload)])], "pubsub"))
    assert row["float_value"] == row["value"] == float(f"{digits}e-{decimals}")


def test_a_zero_has_no_sign_and_a_short_real_is_exact() -> None:
    sent = [
        (b"", b"t", Kind.INT, b"\1\0\0\0\0"),
        (b"", b"t", Kind.SHORT_REAL, b"\xff\xff"),
        (b"", b"t", Kind.STRING, b"abc\0def"),
    ]
    zero, real, text = rows(READINGS, batch_of([recorded_block(sent)], "pubsub"))
    assert str(zero["value"]) == "0.0"
    assert real["short_real_value"] == Decimal("655.35")
    assert text["string_value"] == "abc"

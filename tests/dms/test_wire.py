"""Frames as bytes: golden ones, any cut, any garbage."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.conform.notation import write
from brokers.conform.playing import conversations
from dms import wire
from dms.wire import Refusal, Status, Type
from shared.errors import RemoteProtocolError


def frames_of_the_vectors() -> dict[Type, bytes]:
    """A frame of each type."""
    frames = {}
    for conversation in conversations("dms"):
        names: dict[str, bytes] = {}
        for step in conversation.steps:
            data = write(step.parts or (), names, str.encode)
            for start in [match.start() for match in re.finditer(b"\xde\xad\xbe\xef", data)]:
                end = start + wire.HEADER_BYTES + int.from_bytes(data[start + 4 : start + 8], "big")
                with suppress(ValueError):
                    frames.setdefault(Type(data[start + 8]), data[start:end])
    return frames


MORE = {
    Type.PRODUCE_WITH: "deadbeef 00000012 23 01 0000 00000001 0001 71 000c 7b226b6579223a2261227d78 78",
    Type.CONSUME_WITH: "deadbeef 00000003 33 01 0000 00000002 0001 71",
    Type.DELIVER_WITH: "deadbeef 0000000c 36 01 0000 80000001 0009 7b22736571223a317d 78",
    Type.TOUCH: "deadbeef 00000000 45 01 0000 80000001",
    Type.TOUCH_OK: "deadbeef 00000000 46 01 0000 80000001",
    Type.CANCEL: "deadbeef 0000000e 47 01 0000 00000003 0001 71 0009 7b22736571223a317d",
    Type.CANCEL_OK: "deadbeef 00000000 48 01 0000 00000003",
    Type.RESCHEDULE: "deadbeef 00000015 49 01 0000 00000004 0001 71 0010 7b22736571223a312c226174223a307d",
    Type.RESCHEDULE_OK: "deadbeef 00000000 4a 01 0000 00000004",
    Type.GET_JOB: "deadbeef 0000000e 4b 01 0000 00000005 0001 71 0009 7b22736571223a317d",
    Type.GET_JOB_OK: "deadbeef 0000000c 4c 01 0000 00000005 0009 7b22736571223a317d 78",
}
"""Of what the specification does not have: vectors are played against servers of it, too."""
GOLDEN = frames_of_the_vectors() | {type_: bytes.fromhex(data) for type_, data in MORE.items()}


@pytest.mark.parametrize("type_", list(Type))
def test_frames_of_the_vectors_are_read_and_written(type_: Type) -> None:
    data = GOLDEN[type_]
    ((found, _, status, message_id, payload),), end = wire.decode(data)
    assert found == type_
    assert end == len(data)
    assert wire.pack(type_, message_id, payload, status) == data


@pytest.mark.parametrize("type_", list(Type))
def test_a_frame_that_is_not_whole_is_waited_for(type_: Type) -> None:
    data = GOLDEN[type_]
    for cut in range(len(data)):
        assert wire.decode(data[:cut]) == ([], 0)
    assert wire.decode(data + data[:15])[1] == len(data)


FRAMES = st.lists(
    st.tuples(
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 65535),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=300),
    ),
    max_size=20,
)


@given(FRAMES, st.data())
def test_frames_cut_anywhere_come_out_whole(frames: list[wire.Frame], data: st.DataObject) -> None:
    stream = b"".join(
        wire.pack(type_, message_id, payload, status, version)
        for type_, version, status, message_id, payload in frames
    )
    buffer, found = b"", []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        buffer, stream = buffer + stream[:cut], stream[cut:]
        some, end = wire.decode(buffer)
        found += some
        buffer = buffer[end:]
    assert found == frames
    assert buffer == b""


def answer(error: RemoteProtocolError) -> tuple[int, int, int]:
    """Type, status and message id of what the peer is told."""
    ((type_, _, status, message_id, _),), end = wire.decode(error.reply)
    assert end == len(error.reply)
    return type_, status, message_id


@given(st.binary(min_size=16, max_size=200))
def test_garbage_is_an_error(garbage: bytes) -> None:
    if garbage.startswith(bytes.fromhex("deadbeef")):
        return
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode(garbage)
    assert caught.value.fault == "BAD_MAGIC"
    assert answer(caught.value) == (Type.ERROR, Status.BAD_MAGIC, int.from_bytes(garbage[12:16], "big"))


def test_a_length_above_a_mebibyte_ends_it_and_says_whose_it_was() -> None:
    header = wire.HEADER.pack(wire.MAGIC, (1 << 20) + 1, Type.PRODUCE, 1, 0, 77)
    with pytest.raises(RemoteProtocolError) as caught:
        wire.unpack_header(header)
    assert answer(caught.value) == (Type.ERROR, Status.PAYLOAD_TOO_LARGE, 77)
    length, *_ = wire.unpack_header(wire.HEADER.pack(wire.MAGIC, 1 << 20, Type.PRODUCE, 1, 0, 77)) or (0,)
    assert length == 1 << 20


@pytest.mark.parametrize("name", ["", "x" * 65, "é" * 33, "a\x00b", "a\nb", "a\x7fb", "\x85", "\ud800"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refusal) as caught:
        wire.pack_name(name)
    assert caught.value.status is Status.PROTOCOL_ERROR


@pytest.mark.parametrize("name", ["x", "x" * 64, "é" * 32, "a b", "queue/1", "日本", "\u200b"])
def test_other_names_come_back_as_they_were_packed(name: str) -> None:
    encoded, end = wire.split_name(wire.pack_name(name) + b"body")
    assert wire.name_untrusted(encoded) == name
    assert end == len(encoded) + 2


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\2a", b"\xff\xffabc"])
def test_a_name_that_is_cut_short_is_malformed(payload: bytes) -> None:
    with pytest.raises(Refusal):
        wire.split_name(payload)


@given(st.lists(st.tuples(st.text("abcé", min_size=1, max_size=20), st.integers(0, 2**32 - 1)), max_size=300))
def test_a_list_holds_as_many_as_fit(queues: list[tuple[str, int]]) -> None:
    payload = wire.pack_list(len(queues), [(name.encode(), depth) for name, depth in queues])
    total, entries = wire.unpack_list(payload)
    assert len(payload) <= wire.PAYLOAD_BYTES_MAX
    assert total == len(queues)
    assert list(entries) == queues[: len(entries)]
    if len(entries) < len(queues):
        assert len(payload) + 6 + len(queues[len(entries)][0].encode()) > wire.PAYLOAD_BYTES_MAX


@given(st.binary(max_size=60))
def test_a_list_that_is_garbage_is_refused_or_read(payload: bytes) -> None:
    with suppress(Refusal):
        total, entries = wire.unpack_list(payload)
        assert wire.pack_list(total, [(name.encode(), depth) for name, depth in entries]) == payload


def test_a_refusal_is_an_error_frame_with_its_text() -> None:
    head = bytes.fromhex("deadbeef 00000012 fe 01 0004 00000006")
    assert Refusal(Status.TIMEOUT, "no message in time").frame(6) == head + b"no message in time"

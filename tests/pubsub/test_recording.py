"""Datagrams that are messages are recorded in their frames, cut behind their payloads; others are not."""

from struct import unpack
from typing import Any, cast

from hypothesis import example, given
from hypothesis import strategies as st

from pubsub.fanout import Fanout
from pubsub.recording import FrameTrack
from pubsub.wire import DATAGRAM_BYTES_MIN, DATAGRAM_TYPE_AT, PAYLOAD_BYTES_MIN, RECORDED_FRAMES
from tests.pubsub.world import World
from tests.support.recorded import Tape, repeated

SENDER = b"127.0.0.1:9"

SHORT, LONG = (b"a".ljust(50, b"\0") + b"\3" + b"x" * size for size in (5, 15))

datagrams = st.builds(
    lambda topic, kind, payload: topic.ljust(50, b"\0") + bytes([kind]) + payload,
    st.sampled_from((b"", b"a/b", b"a\0rest", b"t" * 50)),
    st.integers(0, 4),
    st.binary(max_size=12) | st.just(bytes(1500)) | st.just(bytes(1501)),
) | st.binary(max_size=52)


def recorded_world() -> tuple[World, Tape]:
    world, tape = World(), Tape()
    world.fanout = Fanout(world.sessions, FrameTrack(cast(Any, tape)))
    return world, tape


def is_message(datagram: bytes) -> bool:
    if not DATAGRAM_BYTES_MIN <= len(datagram) <= DATAGRAM_BYTES_MIN + 1500:
        return False
    kind = datagram[DATAGRAM_TYPE_AT]
    return kind in PAYLOAD_BYTES_MIN and len(datagram) - DATAGRAM_BYTES_MIN >= PAYLOAD_BYTES_MIN[kind]


@given(st.lists(repeated(datagrams).filter(bool), max_size=4))
@example([[SHORT, LONG, SHORT]])
def test_any_datagrams_are_recorded_as_they_came(batches: list[list[bytes]]) -> None:
    world, tape = recorded_world()
    for batch in batches:
        world.receive(batch, SENDER)
    assert tape.tracks == [(RECORDED_FRAMES, b"", b"")]
    found = []
    for messages, data in tape.blocks:
        lengths = unpack(f">{messages}H", data[: 2 * messages])
        at = 2 * messages
        for length in lengths:
            frame = data[at : at + 51 + length]
            assert frame[:50] == SENDER.ljust(50, b"\0")
            assert frame[100:101] == b"\0"
            found.append(frame[50:100] + frame[101:])
            at += len(frame)
        assert at == len(data)
    assert found == [datagram for batch in batches for datagram in batch if is_message(datagram)]
    assert tape.messages == world.counts.messages_in

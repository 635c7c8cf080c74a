"""What a producer sends is recorded as it stands on the wire: what is whole, and nothing else."""

from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from kqmsgq.wire import RECORDED_MESSAGES, message
from tests.kqmsgq.world import World
from tests.support.recorded import Tape, repeated

messages = st.builds(message, st.sampled_from((b"", b"a", b"bb")), st.binary(max_size=30))


def recorded_world() -> tuple[World, Tape]:
    world, tape = World(), Tape()
    world.queues.recorder = cast(Any, tape)
    return world, tape


@given(repeated(messages), st.lists(st.integers(0, 4000), max_size=5), st.sampled_from((b"", b"*\0", b">x")))
def test_any_messages_in_any_pieces_are_recorded_each_once(
    sent: list[bytes], cuts: list[int], rest: bytes
) -> None:
    world, tape = recorded_world()
    stream = b"produce" + b"".join(sent) + rest
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    producer = world.connect()
    producer.send(*(stream[at:end] for at, end in pairwise(bounds)))
    assert tape.tracks == [(RECORDED_MESSAGES, b"", b"127.0.0.1:1")]
    assert tape.frames == b"".join(sent)
    assert tape.messages == len(sent) == world.counts.messages_in


def test_a_large_message_is_in_one_block() -> None:
    world, tape = recorded_world()
    large = message(b"q", bytes(3 * 65536))
    producer = world.producer(large[:65536])
    producer.send(large[65536:-1], large[-1:] + message(b"q", b"next"))
    assert tape.blocks == [(2, large + message(b"q", b"next"))]


def test_messages_before_a_fault_are_recorded_and_what_is_wrong_is_not() -> None:
    world, tape = recorded_world()
    producer = world.producer(message(b"q", b"one") + b"?" + message(b"q", b"two"))
    assert producer.closed
    assert tape.blocks == [(1, message(b"q", b"one"))]

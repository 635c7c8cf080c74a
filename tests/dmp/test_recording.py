"""What comes into a sink is recorded as it stands on the wire: what is whole and good, and nothing else."""

from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmp import wire
from dmp.wire import NULL_MESSAGE, RECORDED_MESSAGES, Message, MessageOptions
from shared.errors import StoreError
from tests.dmp.peers import Application
from tests.dmp.world import World
from tests.support.recorded import Tape, repeated

messages = st.builds(
    Message,
    exchange=st.sampled_from((b"", b"quotes")),
    key=st.sampled_from((b"a", b"b", b"none")),
    body=st.binary(max_size=20),
    options=st.sampled_from((MessageOptions(0), MessageOptions(0), MessageOptions.MANDATORY)),
)
WRONG = st.sampled_from(
    (b"", b"\0\0", wire.message(Message(b"else", b"", b"")), b"\0\0\0\x04abcd", b"\0\0\0\x08\xff" + bytes(7))
)


async def recorded_world() -> tuple[World, Application, Tape]:
    world, tape = await World.open(), Tape()
    world.broker.recorder = cast(Any, tape)
    app = Application(world)
    app.exchange(b"quotes")
    return world, app, tape


@settings(max_examples=50)
@given(repeated(messages | st.none()), st.lists(st.integers(0, 4000), max_size=5), WRONG, st.booleans())
async def test_any_messages_in_any_pieces_are_recorded_each_once(
    sent: list[Message | None], cuts: list[int], wrong: bytes, slow: bool
) -> None:
    world, app, tape = await recorded_world()
    app.queue(b"all", b"quotes")
    if not slow:
        app.feed(b"all")
    stream = b"".join(NULL_MESSAGE if each is None else wire.message(each) for each in sent) + wrong
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    sink = app.sink(b"quotes")
    for at, end in pairwise(bounds):
        if not sink.connection.finished:
            sink.say(stream[at:end])
    assert tape.tracks == [(RECORDED_MESSAGES, b"quotes", sink.connection.peer.encode())]
    good = [each for each in sent if each is not None]
    found, end = wire.take_messages(tape.frames)
    assert end == len(tape.frames)
    assert found == good
    assert tape.messages == len(good) == world.broker.counts.sunk


@pytest.mark.parametrize("options", [MessageOptions(0), MessageOptions.MANDATORY])
async def test_what_the_store_refuses_to_a_queue_came_in_all_the_same(
    monkeypatch: pytest.MonkeyPatch, options: MessageOptions
) -> None:
    world, app, tape = await recorded_world()
    sink = app.sink(b"quotes")

    def refuse(*_: object) -> None:
        raise StoreError("the disk has failed")

    app.queue(b"all", b"quotes")
    monkeypatch.setattr(world.broker, "publish", refuse)
    sent = [Message(b"", b"a", b"1", options=options)] * 2
    sink.say(b"".join(map(wire.message, sent)))
    assert sink.connection.finished
    assert wire.take_messages(tape.frames)[0] == sent
    assert tape.messages == 2

"""What comes into a sink or by `basic.publish` is recorded: what is whole and good, and nothing else."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from dmp import wire
from dmp.settings import DmpSettings
from dmp.wire import NULL_MESSAGE, RECORDED_MESSAGES, RECORDED_PUBLISHES, Message, MessageOptions
from shared.errors import StoreError
from tests.dmp.amqp_peer import Peer, publish
from tests.dmp.peers import Application, pieces
from tests.dmp.world import PERSISTENT, World
from tests.support.recorded import Tape, repeated

messages = st.builds(
    Message,
    exchange=st.sampled_from((b"", b"quotes")),
    key=st.sampled_from((b"a", b"b", b"none")),
    body=st.binary(max_size=20),
    options=st.sampled_from((MessageOptions(0), MessageOptions(0), MessageOptions.MANDATORY)),
)
C = commands
WRONG = st.sampled_from(
    (b"", b"\0\0", wire.message(Message(b"else", b"", b"")), b"\0\0\0\x04abcd", b"\0\0\0\x08\xff" + bytes(7))
)


async def recorded_world() -> tuple[World, Application, Tape]:
    world, tape = await World.open(), Tape()
    world.broker.recorder = cast(Any, tape)
    app = Application(world)
    app.exchange(b"quotes")
    return world, app, tape


@given(repeated(messages | st.none()), st.lists(st.integers(0, 4000), max_size=5), WRONG, st.booleans())
async def test_any_messages_in_any_pieces_are_recorded_each_once(
    sent: list[Message | None], cuts: list[int], wrong: bytes, slow: bool
) -> None:
    world, app, tape = await recorded_world()
    app.queue(b"all", b"quotes")
    if not slow:
        app.feed(b"all")
    stream = b"".join(NULL_MESSAGE if each is None else wire.message(each) for each in sent) + wrong
    sink = app.sink(b"quotes")
    for piece in pieces(stream, cuts):
        if not sink.connection.finished:
            sink.say(piece)
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


async def publisher(tape: Tape, settings: DmpSettings | None = None) -> tuple[World, Peer]:
    world = await World.open(settings)
    world.broker.recorder = cast(Any, tape)
    peer = Peer(world).login()
    peer.ask(C.Queue.Declare(0, "jobs"))
    return world, peer


@given(
    repeated(
        st.tuples(
            st.sampled_from(("", "amq.topic", "amq.fanout")),
            st.sampled_from(("jobs", "a", "none")),
            st.binary(max_size=20),
            st.sampled_from((wire.NO_PROPERTIES, PERSISTENT)),
        )
    ),
    st.lists(st.integers(0, 4000), max_size=5),
)
async def test_any_publishes_in_any_pieces_are_recorded_each_once_as_they_came(
    sent: list[tuple[str, str, bytes, bytes]], cuts: list[int]
) -> None:
    tape = Tape()
    _, peer = await publisher(tape)
    stream = b"".join(
        publish(exchange, key, body, properties=properties) for exchange, key, body, properties in sent
    )
    for piece in pieces(stream, cuts):
        peer.send(piece)
        peer.pump()
    source = peer.connection.peer.encode()
    assert set(tape.tracks) == {(RECORDED_PUBLISHES, name.encode(), source) for name, *_ in sent}
    found, end = wire.take_messages(tape.frames)
    assert end == len(tape.frames)
    assert found == [
        Message(exchange.encode(), key.encode(), body, properties) for exchange, key, body, properties in sent
    ]
    assert tape.messages == len(sent)


async def test_a_transaction_is_recorded_when_it_is_committed() -> None:
    tape = Tape()
    world, peer = await publisher(tape)
    peer.ask(C.Tx.Select())
    peer.publish("", "jobs", b"1")
    assert peer.ask(C.Tx.Rollback()).name == "Tx.RollbackOk"
    peer.publish("", "jobs", b"2", b"3")
    assert not tape.blocks
    peer.method(C.Tx.Commit())
    world.settle()
    assert [message.body for message in wire.take_messages(tape.frames)[0]] == [b"2", b"3"]


async def test_what_is_refused_is_not_recorded_and_what_is_too_large_is_counted() -> None:
    tape = Tape()
    world, peer = await publisher(tape, DmpSettings(message_bytes_max=4096))
    peer.ask(C.Queue.Declare(0, "two", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}))
    peer.ask(C.Confirm.Select())
    peer.publish("", "two", b"1", b"2", b"3")
    peer.publish("", "jobs", bytes(5000))
    world.settle()
    assert [message.body for message in wire.take_messages(tape.frames)[0]] == [b"1", b"2"]
    assert tape.left_out == [("large", 1, 5000)]

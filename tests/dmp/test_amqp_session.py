"""An AMQP connection without a socket: any cut, garbage, deliveries, time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands
from structlog.testing import capture_logs

from dmp.amqp.wire import encode
from dmp.wire import AMQP_HEADER
from shared.net.stops import Stop
from tests.dmp.amqp_peer import Peer, bodies, login, opened, publish
from tests.dmp.world import World, ready

C = commands


DIALOG = b"".join(
    (
        login({"publisher_confirms": True}),
        encode(C.Channel.Open(), 1),
        encode(C.Confirm.Select(), 1),
        encode(C.Queue.Declare(0, "q", exclusive=True), 1),
        publish("", "q", b"first", b"other", b"longer one", b"", b"x" * 50, part=20),
        encode(C.Basic.Consume(0, "q", "tag"), 1),
        publish("", "q", *[b"%03d" % n for n in range(20)]),
        encode(C.Basic.Ack(5, True), 1),
        encode(C.Basic.Nack(6, False, True), 1),
        encode(C.Channel.Open(), 2),
        encode(C.Basic.Get(0, "none"), 2),
        encode(C.Connection.Close(200, "bye", 0, 0), 0),
    )
)


async def play(parts: list[bytes]) -> tuple[list[str], list[bytes]]:
    world = await World.open()
    peer = Peer(world)
    for part in parts:
        peer.send(part)
    world.settle()
    frames = peer.frames()
    assert peer.connection.finished
    peer.lose()
    assert not world.broker.queues
    assert world.broker.memory.total_bytes == 0
    names = [value.name for _, value in frames if value.name not in ("Basic.Ack", "ContentBody")]
    return names, bodies(frames)


async def test_a_dialog_is_the_same_however_it_is_cut() -> None:
    whole = await play([DIALOG])
    assert whole[0][:7] == [
        "Connection.Start",
        "Connection.Tune",
        "Connection.OpenOk",
        "Channel.OpenOk",
        "Confirm.SelectOk",
        "Queue.DeclareOk",
        "Basic.ConsumeOk",
    ]
    assert whole[0][-4:] == ["ContentHeader", "Channel.OpenOk", "Channel.Close", "Connection.CloseOk"]
    assert whole[1][:4] == [b"first", b"other", b"longer one", b"x" * 50]
    assert await play([DIALOG[at : at + 1] for at in range(len(DIALOG))]) == whole
    for cut in range(0, len(DIALOG), 17):
        assert await play([DIALOG[:cut], DIALOG[cut:]]) == whole


@given(st.binary(max_size=200), st.integers(0, 15), st.data())
async def test_garbage_ends_its_connection_and_nothing_else(
    garbage: bytes, after: int, data: st.DataObject
) -> None:
    world = await World.open()
    other = Peer(world).login()
    peer = Peer(world)
    at = data.draw(st.integers(0, len(DIALOG)))
    peer.send(DIALOG[:at])
    peer.send(garbage)
    peer.send(DIALOG[at + after :])
    peer.session.receive_eof()
    peer.connection.taken()
    peer.lose()
    assert world.broker.counts.connections == 1
    assert world.broker.memory.total_bytes == 0
    assert other.ask(C.Queue.Declare(0, "", exclusive=True)).name == "Queue.DeclareOk"


async def test_who_has_ended_while_its_input_is_held_back_is_given_nothing_and_may_acknowledge(
    peer: Peer,
) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t"))
    peer.publish("", "q", b"held")
    assert bodies(peer.frames()) == [b"held"]
    peer.session.pause_input(Stop.STORE)
    peer.session.receive(encode(C.Basic.Ack(1), 1))
    peer.session.hang_up()
    other = Peer(peer.world).login()
    other.publish("", "q", b"late")
    assert peer.frames() == []
    peer.session.resume_input(Stop.STORE)
    peer.close_input()
    peer.world.settle()
    assert other.ask_get("q") == b"late"
    assert other.ask(C.Queue.Declare(0, "q", passive=True)).message_count == 0


async def test_flow_stops_deliveries(peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t", no_ack=True))
    assert peer.ask(C.Channel.Flow(False)).active is False
    peer.publish("", "q", b"1", b"2")
    assert peer.frames() == []
    assert bodies(peer.say(C.Channel.Flow(True))) == [b"1", b"2"]


async def test_prefetch_for_the_channel_counts_all_its_consumers(peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "one"))
    peer.ask(C.Queue.Declare(0, "two"))
    peer.ask(C.Basic.Qos(0, 3, True))
    peer.ask(C.Basic.Consume(0, "one", "1"))
    peer.ask(C.Basic.Consume(0, "two", "2"))
    peer.publish("", "one", b"a", b"b")
    peer.publish("", "two", b"c", b"d", b"e")
    assert bodies(peer.frames()) == [b"a", b"b", b"c"]
    assert bodies(peer.say(C.Basic.Ack(1))) == [b"d"]
    assert bodies(peer.say(C.Basic.Ack(0, True))) == [b"e"]


async def test_a_channel_that_is_full_gives_nothing_to_who_does_not_acknowledge(peer: Peer) -> None:
    peer.ask(C.Basic.Qos(0, 1, True))
    for name in "ab":
        peer.ask(C.Queue.Declare(0, name))
        peer.ask(C.Basic.Consume(0, name, name, no_ack=name == "b"))
    peer.publish("", "a", b"held")
    assert bodies(peer.frames()) == [b"held"]
    peer.publish("", "b", b"1", b"2")
    assert bodies(peer.frames()) == []
    assert bodies(peer.say(C.Basic.Ack(1))) == [b"1", b"2"]


async def test_recover_gives_back_to_the_queue(world: World, peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t"))
    peer.publish("", "q", b"1", b"2")
    peer.frames()
    for requeue, tags in ((False, [3, 4]), (True, [5, 6])):
        frames = peer.say(C.Basic.Recover(requeue))
        assert frames[0][1].name == "Basic.RecoverOk"
        assert bodies(frames) == [b"1", b"2"]
        assert [f.delivery_tag for _, f in frames if f.name == "Basic.Deliver" and f.redelivered] == tags
    assert world.broker.queues[b"q"].held == 2


async def test_a_consumer_that_does_not_read_leaves_messages_in_the_queue() -> None:
    world = await World.open()
    slow = Peer(world, bound=10_000).login()
    slow.ask(C.Queue.Declare(0, "q"))
    slow.ask(C.Basic.Consume(0, "q", "t", no_ack=True))
    fast = Peer(world).login()
    for n in range(100):
        fast.publish("", "q", b"%03d" % n + bytes(997))
    queue = world.broker.queues[b"q"]
    assert 80 < len(queue.row.ready) < 95
    assert slow.connection.outbox.size < 20_000
    found: list[bytes] = []
    while len(found) < 100:
        got = bodies(slow.frames())
        assert got
        found += got
    assert [body[:3] for body in found] == [b"%03d" % n for n in range(100)]
    assert world.broker.memory.total_bytes == 0


async def test_a_durable_declaration_is_answered_after_the_sync(world: World, peer: Peer) -> None:
    peer.send(
        encode(C.Queue.Declare(0, "q", durable=True), 1)
        + encode(C.Basic.Consume(0, "q", "t"), 1)
        + publish("", "q", b"x")
    )
    assert peer.frames() == []
    world.settle()
    assert peer.names() == [
        "Queue.DeclareOk",
        "Basic.ConsumeOk",
        "Basic.Deliver",
        "ContentHeader",
        "ContentBody",
    ]


async def test_time_ends_logins_frames_and_silence() -> None:
    world = await World.open()
    silent, greeted = Peer(world), Peer(world)
    greeted.send(AMQP_HEADER)
    half = Peer(world).login()
    with capture_logs() as logged:
        for peer in (silent, greeted):
            peer.advance(29)
            assert not peer.connection.finished
            peer.advance(1)
            assert peer.connection.finished
        half.send(encode(C.Basic.Qos(), 1)[:9])
        half.advance(31)
    assert half.connection.finished
    assert world.broker.counts.too_late == 3
    assert [line["missing"] for line in logged] == ["the header", "connection.open", "the rest of a frame"]
    beating = Peer(world)
    beating.send(login(heartbeat=10))
    beating.frames()
    beating.advance(16)
    assert [value.name for _, value in beating.frames()] == ["Heartbeat"] * 3
    beating.send(b"\x08\0\0\0\0\0\0\xce")
    beating.advance(19)
    assert beating.connection.aborted is None
    beating.advance(2)
    assert beating.connection.aborted == "missed heartbeats"


async def test_names_of_any_kind_are_told_as_they_are(peer: Peer) -> None:
    name = "jöbs*\x07[all]"
    packed = bytes((len(name.encode()),)) + name.encode()
    payload = b"\0\x32\0\x0a\0\0" + packed + b"\0" + b"\0\0\0\0"
    peer.send(b"\x01\0\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce")
    assert peer.frames()[0][1].queue == name


@pytest.mark.parametrize("durable", [False, True])
async def test_who_deletes_a_queue_is_answered_before_he_hears_that_his_consumers_are_gone(
    world: World, durable: bool
) -> None:
    """py-amqp raises what comes before the answer: its queue_delete fails, though the queue is gone."""
    peer = Peer(world).login(capabilities={"consumer_cancel_notify": True})
    peer.say(C.Channel.Open(), 2)
    peer.ask(C.Queue.Declare(0, "q", durable=durable))
    for channel in (1, 2):
        peer.say(C.Basic.Consume(0, "q"), channel)
    peer.method(C.Queue.Delete(0, "q"))
    names = peer.names()
    world.settle()
    names += peer.names()
    assert names == ["Queue.DeleteOk", "Basic.Cancel", "Basic.Cancel"]


async def test_nobody_hears_on_a_closed_channel_that_a_consumer_is_gone(world: World, peer: Peer) -> None:
    peer = Peer(world).login(capabilities={"consumer_cancel_notify": True})
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.say(C.Basic.Consume(0, "q"))
    peer.send(encode(C.Queue.Delete(0, "q"), 1) + encode(C.Channel.Close(200, "", 0, 0), 1))
    world.settle()
    assert peer.names() == ["Queue.DeleteOk", "Basic.Cancel", "Channel.CloseOk"]


async def test_a_delete_that_is_refused_holds_back_nothing_later(world: World) -> None:
    peer = Peer(world).login(capabilities={"consumer_cancel_notify": True})
    peer.say(C.Channel.Open(), 2)
    peer.ask(C.Queue.Declare(0, "q"))
    peer.say(C.Basic.Consume(0, "q"), 2)
    peer.method(C.Queue.Delete(0, "q", if_unused=True))
    assert peer.names() == ["Channel.Close"]
    world.topology.delete_queue(world.broker.queues[b"q"])
    assert peer.names() == ["Basic.Cancel"]


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("count", [3, 600])
async def test_the_oldest_go_where_more_is_requeued_than_the_queue_may_hold(
    count: int, transaction: bool
) -> None:
    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q", arguments={"x-max-length": 2}))
    for _ in range(count):
        peer.publish("", "q", b"old")
        peer.say(C.Basic.Get(0, "q"))
    peer.publish("", "q", b"3", b"4")
    if transaction:
        peer.ask(C.Tx.Select())
    peer.say(C.Basic.Nack(0, multiple=True, requeue=True))
    if transaction:
        peer.say(C.Tx.Commit())
    world.settle()
    assert ready(world.broker.queues[b"q"]) == [b"3", b"4"]
    assert world.broker.counts.overflowed == count


@pytest.mark.parametrize(
    ("before", "data", "names"),
    [
        ((), encode(C.Confirm.Select(), 1) + publish("", "nowhere", b"x"), ["Confirm.SelectOk", "Basic.Ack"]),
        (
            (C.Confirm.Select(),),
            publish("", "nowhere", b"x", mandatory=True),
            ["Basic.Return", "ContentHeader", "ContentBody", "Basic.Ack"],
        ),
        (
            (C.Queue.Declare(0, "nowhere"), C.Basic.Get(0, "nowhere", True)),
            publish("", "nowhere", b"x") + encode(C.Basic.Get(0, "nowhere", True), 1),
            ["Basic.GetOk", "ContentHeader", "ContentBody"],
        ),
    ],
    ids=["confirm", "return", "get"],
)
async def test_what_the_server_says_comes_behind_answers_that_wait_for_the_disk(
    world: World, peer: Peer, before: tuple[base.Frame, ...], data: bytes, names: list[str]
) -> None:
    for method in before:
        peer.say(method)
    peer.send(encode(C.Queue.Declare(0, "durable", durable=True), 1) + data)
    assert peer.names() == []
    world.settle()
    assert peer.names() == ["Queue.DeclareOk", *names]

"""An AMQP connection without a socket: what is legal when, cuts, garbage, lies, time, and who pays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from dmp.amqp.methods import encode
from dmp.amqp.states import (
    CHANNEL_TRANSITIONS,
    TRANSITIONS,
    ChannelEvent,
    ChannelState,
    Event,
    State,
)
from dmp.door import AMQP_HEADER
from dmp.settings import DmpSettings
from dmp.users import Users
from tests.dmp.amqp_peer import Peer, bodies, content_header, publish, start_ok
from tests.dmp.world import PERSISTENT, World

C = commands


async def opened(settings: DmpSettings | None = None) -> tuple[World, Peer]:
    world = await World.open(settings)
    return world, Peer(world).login()


def closed(peer: Peer) -> tuple[str, int]:
    """The close that the server has said last, and its code."""
    found = [value for _, value in peer.frames() if value.name.endswith(".Close")]
    return found[-1].name, found[-1].reply_code


def test_the_tables_are_whole() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set(CHANNEL_TRANSITIONS) == set(ChannelState)
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(Event)
    assert {event for moves in CHANNEL_TRANSITIONS.values() for event in moves} == set(ChannelEvent)


DIALOG = b"".join(
    (
        AMQP_HEADER,
        encode(start_ok({"publisher_confirms": True}), 0),
        encode(C.Connection.TuneOk(0, 0, 0), 0),
        encode(C.Connection.Open("/"), 0),
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
    assert world.broker.memory.held_bytes == 0
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
    for cut in range(0, len(DIALOG), 7):
        assert await play([DIALOG[:cut], DIALOG[cut:]]) == whole


@settings(max_examples=100)
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
    assert len(world.broker.sessions) == 1
    assert world.broker.memory.held_bytes == 0
    assert other.ask(C.Queue.Declare(0, "", exclusive=True)).name == "Queue.DeclareOk"


@pytest.mark.parametrize(
    ("expected", "data"),
    [
        (505, content_header(5)),  # nobody has published
        (505, publish("", "q", b"abc")[:-11] + encode(C.Basic.Qos(), 1)),  # amid a content
        (505, encode(C.Basic.Publish(0, "", "q"), 1) + encode(C.Channel.Flow(True), 1)),
        (505, encode(C.Basic.Publish(0, "", "q"), 1) + b"\x03\0\x01\0\0\0\x01a\xce"),  # no header
        (505, encode(C.Basic.Publish(0, "", "q"), 1) + content_header(2) + b"\x03\0\x01\0\0\0\x03abc\xce"),
        (504, encode(C.Basic.Qos(), 2)),  # not open
        (504, encode(C.Channel.Open(), 1)),  # open
        (504, encode(C.Channel.Open(), 2048)),
        (504, content_header(5, channel=9)),
        (503, encode(C.Channel.Open(), 0)),
        (503, encode(C.Connection.Open("/"), 0)),
        (503, encode(C.Basic.Deliver("t", 1, False, "", ""), 1)),
        (503, encode(C.Connection.Open("/"), 1)),
        (503, encode(C.Channel.FlowOk(True), 1)),
        (540, encode(C.Tx.Select(), 1)),
        (540, b"\x01\0\x01\0\0\0\x04\0\x1e\0\x0a\xce"),  # class access is history
        (502, b"\x01\0\x01\0\0\0\x02\0\x1e\xce"),
        (502, b"\x01\0\x01\0\0\0\x05\0\x3c\0\x0a\x01\xce"),
        (501, b"\x01\0\x01\0\x10\0\0"),  # above frame_max
        (501, b"\x08\0\x01\0\0\0\0\xce"),
        (501, b"\x08\0\0\0\0\0\x01a\xce"),
        (
            501,
            encode(C.Basic.Publish(0, "", "q"), 1) + content_header(5).replace(b"\0\x3c", b"\0\x3d"),
        ),
        (502, encode(C.Basic.Publish(0, "", "q"), 1) + content_header(5, b"\x00\x01")),
        (502, encode(C.Basic.Publish(0, "", "q"), 1) + content_header(5, b"\x80\x00\x09text")),
    ],
)
async def test_what_is_not_legal_ends_the_connection_with_its_code(expected: int, data: bytes) -> None:
    _, peer = await opened()
    peer.send(data)
    assert closed(peer) == ("Connection.Close", expected)
    peer.send(publish("", "q", b"ignored") + encode(C.Connection.CloseOk(), 0))
    assert peer.connection.finished
    assert peer.connection.taken() == b""


@pytest.mark.parametrize("data", [b"\x05\0\0\0\0\0\0\xce", b"\x08\0\0\0\0\0\0\xcd", b"GET / HTTP/1.1"])
async def test_what_cannot_be_framed_is_answered_with_nothing(data: bytes) -> None:
    _, peer = await opened()
    peer.send(data)
    assert peer.garbage is not None
    assert peer.connection.finished
    assert peer.connection.taken() == b""


@pytest.mark.parametrize(
    ("expected", "parts"),
    [
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(0, 100, 0), 0)]),
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(65535, 0, 0), 0)]),
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(0, 1 << 30, 0), 0)]),
        (503, [encode(start_ok(mechanism="CRAM"), 0)]),
        (503, [encode(C.Connection.Open("/"), 0)]),
        (503, [encode(C.Channel.Open(), 1)]),
        (403, [encode(start_ok({"authentication_failure_close": True}, "\0guest\0wrong"), 0)]),
        (403, [encode(start_ok({"authentication_failure_close": True}, "guest"), 0)]),
    ],
)
async def test_a_login_that_goes_wrong(expected: int, parts: list[bytes]) -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER + b"".join(parts))
    assert closed(peer) == ("Connection.Close", expected)


async def test_a_wrong_password_without_the_capability_gets_no_word() -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER + encode(start_ok(response="\0guest\0wrong"), 0))
    assert peer.names() == ["Connection.Start"]
    assert peer.connection.finished


async def test_guest_comes_from_loopback_only() -> None:
    world = await World.open(DmpSettings(users=Users.parse("guest:guest, ann:secret")))
    for user, password, names in (("guest", "guest", 1), ("ann", "secret", 2)):
        peer = Peer(world, peer="192.0.2.7:5000")
        peer.send(AMQP_HEADER + encode(start_ok(response=f"\0{user}\0{password}"), 0))
        assert len(peer.names()) == names


def test_passwords_are_not_shown() -> None:
    users = Users.parse("ann:se:cret, bob:")
    assert (str(users), "cret" in repr(users)) == ("ann:***, bob:***", False)
    assert users.allow("ann", b"se:cret")
    assert users.allow("bob", b"")
    assert not users.allow("carl", b"")
    for text in ("", "ann", "ann:1,ann:2", ":x"):
        with pytest.raises(ValueError, match="NAME:PASSWORD"):
            Users.parse(text)


async def test_a_refused_channel_ignores_what_was_on_its_way_and_comes_back() -> None:
    _, peer = await opened()
    peer.send(
        encode(C.Queue.Declare(0, "none", True), 1)
        + publish("", "q", b"lost")
        + encode(C.Basic.Get(0, "none"), 1)
        + encode(C.Channel.Close(200, "", 0, 0), 1)
    )
    assert peer.names() == ["Channel.Close", "Channel.CloseOk"]
    peer.send(encode(C.Channel.CloseOk(), 1) + encode(C.Channel.Open(), 1))
    assert peer.names() == ["Channel.OpenOk"]


async def test_a_message_above_the_limit_is_refused_and_its_body_thrown_away() -> None:
    _, peer = await opened(DmpSettings(message_bytes_max=1000))
    peer.send(publish("", "q", bytes(1001), part=100))
    assert closed(peer) == ("Channel.Close", 311)
    _, peer = await opened()
    peer.send(encode(C.Basic.Publish(0, "", "q"), 1) + content_header(1 << 60))
    assert closed(peer) == ("Channel.Close", 311)


async def test_content_begun_on_many_channels_has_a_bound() -> None:
    _, peer = await opened(DmpSettings(message_bytes_max=1000))
    for number in range(2, 5):
        begun = encode(C.Basic.Publish(0, "", "q"), number) + content_header(900, channel=number)
        peer.send(encode(C.Channel.Open(), number) + begun)
    assert closed(peer) == ("Connection.Close", 506)


async def test_flow_stops_deliveries() -> None:
    _, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t", no_ack=True))
    assert peer.ask(C.Channel.Flow(False)).active is False
    peer.publish("", "q", b"1", b"2")
    assert peer.frames() == []
    peer.method(C.Channel.Flow(True))
    assert bodies(peer.frames()) == [b"1", b"2"]


async def test_prefetch_for_the_channel_counts_all_its_consumers() -> None:
    _, peer = await opened()
    peer.ask(C.Queue.Declare(0, "one"))
    peer.ask(C.Queue.Declare(0, "two"))
    peer.ask(C.Basic.Qos(0, 3, True))
    peer.ask(C.Basic.Consume(0, "one", "1"))
    peer.ask(C.Basic.Consume(0, "two", "2"))
    peer.publish("", "one", b"a", b"b")
    peer.publish("", "two", b"c", b"d", b"e")
    assert bodies(peer.frames()) == [b"a", b"b", b"c"]
    peer.method(C.Basic.Ack(1))
    assert bodies(peer.frames()) == [b"d"]
    peer.method(C.Basic.Ack(0, True))
    assert bodies(peer.frames()) == [b"e"]


async def test_acknowledgements_one_behind_the_other() -> None:
    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t"))
    peer.publish("", "q", *[b"%d" % n for n in range(10)])
    peer.frames()
    queue = world.broker.queues[b"q"]
    peer.send(encode(C.Basic.Ack(2), 1) + encode(C.Basic.Ack(5, True), 1) + encode(C.Basic.Ack(7), 1)[:-3])
    assert queue.unacked == 5
    peer.send(encode(C.Basic.Ack(7), 1)[-3:] + encode(C.Basic.Ack(9), 1)[:-1] + b"\xcd")
    assert peer.garbage is not None
    peer.lose()
    assert world.broker.counts.acknowledged == 6  # what came before the garbage stands
    assert (queue.unacked, len(queue.ready)) == (0, 4)
    peer = Peer(world).login()
    peer.method(C.Basic.Consume(0, "q", "t"))
    peer.send(encode(C.Basic.Ack(1), 1) + encode(C.Basic.Ack(1), 1) + encode(C.Queue.Declare(0, "q"), 1))
    assert closed(peer) == ("Channel.Close", 406)


async def test_room_on_the_channel_is_room_for_each_of_its_consumers() -> None:
    _, peer = await opened(DmpSettings(unacked_max=2))
    for name in ("one", "two"):
        peer.ask(C.Queue.Declare(0, name))
        peer.ask(C.Basic.Consume(0, name, name))
    peer.publish("", "one", b"a", b"b")
    peer.publish("", "two", b"c", b"d")
    assert bodies(peer.frames()) == [b"a", b"b"]
    peer.method(C.Basic.Ack(1))
    assert bodies(peer.frames()) == [b"c"]
    peer.method(C.Basic.Reject(2, False))
    assert bodies(peer.frames()) == [b"d"]


async def test_recover_gives_to_the_same_consumer_or_to_the_queue() -> None:
    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Basic.Consume(0, "q", "t"))
    peer.publish("", "q", b"1", b"2")
    peer.frames()
    peer.method(C.Basic.Recover(False))
    frames = peer.frames()
    assert [f.delivery_tag for _, f in frames if f.name == "Basic.Deliver" and f.redelivered] == [3, 4]
    peer.method(C.Basic.Recover(True))
    frames = peer.frames()
    assert frames[0][1].name == "Basic.RecoverOk"
    assert bodies(frames) == [b"1", b"2"]
    assert world.broker.queues[b"q"].unacked == 2


async def test_a_consumer_that_does_not_read_leaves_messages_in_the_queue() -> None:
    world = await World.open()
    slow = Peer(world, bound=10_000).login()
    slow.ask(C.Queue.Declare(0, "q"))
    slow.ask(C.Basic.Consume(0, "q", "t", no_ack=True))
    fast = Peer(world).login()
    for n in range(100):
        fast.publish("", "q", b"%03d" % n + bytes(997))
    queue = world.broker.queues[b"q"]
    assert 80 < len(queue.ready) < 95
    assert slow.connection.outbox.size < 20_000
    found: list[bytes] = []
    while len(found) < 100:
        got = bodies(slow.frames())
        assert got
        found += got
    assert [body[:3] for body in found] == [b"%03d" % n for n in range(100)]
    assert world.broker.memory.held_bytes == 0


async def test_full_memory_holds_publishers_back_and_not_consumers() -> None:
    world = await World.open(DmpSettings(memory_bytes_max=1 << 20))
    producer = Peer(world).login(capabilities={"connection.blocked": True})
    producer.ask(C.Queue.Declare(0, "q"))
    for _ in range(12):
        producer.publish("", "q", bytes(100_000))
    assert not producer.connection.reading
    assert producer.names() == ["Connection.Blocked"]
    assert len(world.broker.queues[b"q"].ready) == 11
    taker = Peer(world).login()
    for _ in range(3):
        taker.ask_get("q")
    producer.connection.now = world.clock.now
    producer.pump()
    assert producer.names() == ["Connection.Unblocked"]
    assert producer.connection.reading
    assert len(world.broker.queues[b"q"].ready) == 9


async def test_one_that_holds_messages_is_refused_where_others_wait() -> None:
    world, peer = await opened(DmpSettings(memory_bytes_max=1 << 20))
    peer.ask(C.Queue.Declare(0, "q"))
    peer.publish("", "q", b"first")
    peer.method(C.Basic.Get(0, "q"))
    peer.frames()
    peer.ask(C.Confirm.Select())
    for _ in range(12):
        peer.publish("", "q", bytes(100_000))
    names = peer.names()
    assert names.count("Basic.Nack") == 1
    assert peer.connection.reading
    peer.method(C.Basic.Ack(1))
    assert world.broker.queues[b"q"].unacked == 0


async def test_confirms_come_after_the_sync_and_a_failed_one_is_a_nack() -> None:
    world, peer = await opened()
    peer.ask(C.Confirm.Select())
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.publish("", "q", b"1", b"2", properties=PERSISTENT)
    peer.publish("", "q", b"3")
    assert peer.frames() == []
    world.settle()
    ((_, ack),) = peer.frames()
    assert (ack.name, ack.delivery_tag, ack.multiple) == ("Basic.Ack", 3, True)
    peer.publish("", "q", b"4", properties=PERSISTENT)

    def fail(operation: object) -> None:
        raise OSError(5, "disk")

    world.disk.before = fail
    world.settle()
    ((_, nack),) = peer.frames()
    assert (nack.name, nack.delivery_tag) == ("Basic.Nack", 4)
    peer.publish("", "q", b"5", properties=PERSISTENT)
    ((_, nack),) = peer.frames()
    assert (nack.name, nack.delivery_tag) == ("Basic.Nack", 5)


async def test_what_is_confirmed_is_told_before_the_channel_closes() -> None:
    _, peer = await opened()
    peer.ask(C.Confirm.Select())
    peer.send(publish("", "q", b"1", b"2") + encode(C.Queue.Declare(0, "none", True), 1))
    assert peer.names() == ["Basic.Ack", "Channel.Close"]


async def test_without_confirms_a_publish_that_cannot_be_stored_ends_the_connection() -> None:
    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    world.disk.before = lambda _: (_ for _ in ()).throw(OSError(5, "disk"))
    peer.publish("", "q", b"1", properties=PERSISTENT)
    world.settle()
    peer.publish("", "q", b"2", properties=PERSISTENT)
    assert closed(peer) == ("Connection.Close", 506)


async def test_a_durable_declaration_is_answered_after_the_sync() -> None:
    world, peer = await opened()
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
    silent = Peer(world)
    silent.advance(11)
    assert silent.connection.finished
    half = Peer(world).login()
    half.send(encode(C.Basic.Qos(), 1)[:9])
    half.advance(31)
    assert half.connection.finished
    assert world.broker.counts.too_late == 2
    beating = Peer(world)
    beating.send(AMQP_HEADER + encode(start_ok(), 0) + encode(C.Connection.TuneOk(0, 0, 10), 0))
    beating.send(encode(C.Connection.Open("/"), 0))
    beating.frames()
    beating.advance(16)
    assert [value.name for _, value in beating.frames()] == ["Heartbeat"] * 3
    beating.send(b"\x08\0\0\0\0\0\0\xce")
    beating.advance(19)
    assert beating.connection.aborted is None
    beating.advance(2)
    assert beating.connection.aborted == "missed heartbeats"


async def test_a_half_closed_client_gets_its_confirms_before_the_end() -> None:
    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.ask(C.Confirm.Select())
    peer.publish("", "q", b"1", properties=PERSISTENT)
    peer.session.receive_eof()
    assert not peer.connection.finished
    world.settle()
    assert peer.names() == ["Basic.Ack"]
    assert peer.connection.finished


async def test_a_publish_after_its_exchange_is_gone_is_refused() -> None:
    _, peer = await opened()
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.publish("e", "", b"same", b"same")
    peer.ask(C.Exchange.Delete(0, "e"))
    peer.publish("e", "", b"same")
    assert closed(peer) == ("Channel.Close", 404)


async def test_an_internal_exchange_takes_nothing_from_clients_and_users_are_who_they_are() -> None:
    _, peer = await opened()
    peer.ask(C.Exchange.Declare(0, "in", "fanout", internal=True))
    peer.publish("in", "", b"x")
    assert closed(peer) == ("Channel.Close", 403)
    _, peer = await opened()
    peer.publish("", "q", b"x", properties=b"\x00\x10\x03ann")
    assert closed(peer) == ("Channel.Close", 406)


async def test_names_of_any_kind_are_told_as_they_are() -> None:
    _, peer = await opened()
    name = "jöbs*\x07[all]"
    packed = bytes((len(name.encode()),)) + name.encode()
    payload = b"\0\x32\0\x0a\0\0" + packed + b"\0" + b"\0\0\0\0"
    peer.send(b"\x01\0\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce")
    assert peer.frames()[0][1].queue == name


async def test_leases_are_for_those_who_may() -> None:
    from dmp.amqp.methods import Direct

    world, peer = await opened()
    peer.ask(C.Queue.Declare(0, "shared"))
    peer.method(Direct.Get("shared"))
    assert closed(peer) == ("Channel.Close", 403)
    other = Peer(world).login()
    other.ask(C.Queue.Declare(0, "mine", exclusive=True))
    _, peer = world, Peer(world).login()
    peer.method(Direct.Get("mine"))
    assert closed(peer) == ("Channel.Close", 405)
    peer = Peer(world).login()
    peer.method(Direct.Put("nowhere"))
    assert closed(peer) == ("Channel.Close", 404)

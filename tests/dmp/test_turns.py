"""Requests that are small to send and long to do: others have their turn in between, and nothing is lost."""

import errno
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import count as counting
from typing import Any

import pytest
from pamqp import base, commands
from pamqp.encode import field_table
from structlog.testing import capture_logs

from dmp import exchanges, queues
from dmp.amqp import channel as channels
from dmp.amqp.wire import encode
from dmp.data_types import short
from dmp.dead_letters import LETTER_QUEUES, LETTERS_PER_TURN
from dmp.message import Message
from dmp.pacing import QUEUES_AT_ONCE
from dmp.queue_log import QueueLog
from dmp.queues import GIVEN_AT_ONCE, GIVEN_BYTES_AT_ONCE, Queue
from dmp.ready import ReadyRow
from dmp.series import QUEUES_PER_STEP
from dmp.settings import DmpSettings
from dmp.takers import LOOKED_AT_ONCE
from dmp.topology import UNBOUND_AT_ONCE
from dmp.wire import AMQP_HEADER
from shared.garbage import MANY, PAUSES
from shared.storage.committer import HeldBatch
from shared.turns import ITEMS
from tests.dmp.amqp_peer import Peer, bodies, publish
from tests.dmp.world import EIGHTEEN, PERSISTENT, Taker, World, bind_to_be_looked_at, head, ready
from tests.support.commits import fail, journal_write, watch
from tests.support.crashing import failing
from tests.support.turns import SLICES, short_turns

C = commands
EXPIRES_SOON = struct.pack(">H", 0x0100) + short(b"1")
EXPIRES_LATER = struct.pack(">H", 0x0100) + short(b"60000")
VERY_MANY_QUEUES = QUEUES_AT_ONCE + 52
RETURNED_PER_TURN = 4 * 512
"""Messages, with `returns`."""
UNBOUND_PER_TURN = SLICES * UNBOUND_AT_ONCE


def in_turns(
    world: World, left: Callable[[], int], most: int, seen: Callable[[], object] = lambda: None
) -> int:
    """How many turns the long work takes, in each of which `most` of what is left go, or fewer. Nobody is
    told or given anything (`seen`) before its end."""
    turns = 0
    while world.broker.long_work.busy:
        assert not seen()
        before = left()
        world.broker.timers.run_due()
        assert before - left() <= most
        turns += 1
    return turns


@pytest.fixture
def returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the tests' numbers want it: a client cannot be given any number of messages."""
    monkeypatch.setattr(channels, "RETURNED_AT_ONCE", 512)
    monkeypatch.setattr(channels, "SETTLED_AT_ONCE", 8192)


def dying(world: World, name: bytes, **arguments: object) -> Queue:
    return world.queue(name, dead_letter_exchange=b"", dead_letter_key=b"dead", **arguments)


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def rejected(world: World, queue: Queue, sent: list[bytes], properties: bytes = b"\0\0") -> None:
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    world.publish(b"", queue.name, *sent, properties=properties)
    queue.remove_consumers(taker)
    queue.reject(taker.messages)


async def test_many_dead_letters_are_buried_in_turns_and_in_order(world: World) -> None:
    dead = world.queue(b"dead")
    sent = numbered(200)
    rejected(world, dying(world, b"q"), sent)
    first = len(ready(dead))
    world.broker.timers.run_due()
    assert 0 < first < len(ready(dead)) < len(sent)
    world.advance(0)
    assert ready(dead) == sent
    assert world.broker.memory.held_bytes == sum(message.head.cost_bytes for message in dead.ready)


async def test_the_few_dead_of_one_queue_do_not_wait_for_the_many_of_another(world: World) -> None:
    dead = world.queue(b"dead")
    many = numbered(400)
    rejected(world, dying(world, b"q"), many)
    rejected(world, dying(world, b"other"), [b"few"])
    world.broker.timers.run_due()
    assert b"few" in ready(dead)
    world.advance(0)
    assert sorted(ready(dead)) == [*many, b"few"]


async def test_a_dead_letter_with_large_headers_is_a_turn_of_its_own(world: World) -> None:
    dead = world.queue(b"dead")
    table = b"".join(short(b"%04d" % number) + b"V" for number in range(600))
    properties = struct.pack(">HI", 0x2000, len(table)) + table
    rejected(world, dying(world, b"q"), numbered(3), properties)
    assert ready(dead) == numbered(1)
    world.advance(0)
    assert ready(dead) == numbered(3)


async def test_a_dead_letter_that_goes_to_many_queues_counts_as_many(world: World) -> None:
    targets = fan(world, LETTERS_PER_TURN * LETTER_QUEUES, name=b"dead")
    rejected(world, world.queue(b"q", dead_letter_exchange=b"amq.fanout"), numbered(3))
    assert {len(ready(target)) for target in targets} == {1}
    world.advance(0)
    assert all(ready(target) == numbered(3) for target in targets)


@pytest.mark.parametrize("durable", [False, True])
async def test_dead_letters_that_go_to_very_many_queues_go_in_turns_and_in_order(
    world: World, durable: bool
) -> None:
    targets = fan(world, VERY_MANY_QUEUES, durable=durable, name=b"dead")
    world.topology.bind(b"amq.fanout", world.queue(b"plain"))
    queue = world.queue(b"q", durable=durable, dead_letter_exchange=b"amq.fanout")
    taker = world.holder(queue, *numbered(3), properties=PERSISTENT if durable else b"\0\0")
    queue.reject(taker.messages)
    most = SLICES * QUEUES_PER_STEP
    reached, turns = sum(len(target.ready) for target in targets), 0
    while world.broker.timers.next <= world.clock.now or world.broker.long_work.busy:
        world.broker.timers.run_due()
        world.settle()
        now = sum(len(target.ready) for target in targets)
        assert now - reached <= most
        reached = now
        turns += 1
    assert turns >= 3 * len(targets) // most - 1
    assert all(ready(target) == numbered(3) for target in targets)
    assert ready(world.broker.queues[b"plain"]) == numbered(3)
    assert (queue.unacked, world.broker.counts.dead_lettered) == (0, 3)
    if durable:
        after = await world.again()
        assert not after.broker.queues[b"q"].depth
        assert all(ready(after.broker.queues[target.name]) == numbered(3) for target in targets)


async def test_a_dead_letter_to_very_many_queues_that_cannot_be_written_is_there_again(world: World) -> None:
    targets = fan(world, VERY_MANY_QUEUES, durable=True, name=b"dead")
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"amq.fanout")
    taker = world.holder(queue, b"x", properties=PERSISTENT)
    world.disk.full = True
    queue.reject(taker.messages)
    world.advance(0)
    world.disk.full = False
    assert world.broker.counts.dead_letters_lost + world.broker.counts.dead_lettered == 1
    after = await world.again()
    held = after.broker.queues[b"q"].depth
    assert {after.broker.queues[target.name].depth for target in targets} == {1 - held}


async def test_dead_letters_outlive_their_queue(world: World) -> None:
    dead = world.queue(b"dead", durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    sent = numbered(100)
    world.publish(b"", b"q", *sent, properties=PERSISTENT)
    world.settle()
    queue.remove_consumers(taker)
    queue.reject(taker.messages)
    world.topology.delete_queue(queue)
    world.advance(0)
    world.settle()
    assert ready(dead) == sent
    after = await world.again()
    assert ready(after.broker.queues[b"dead"]) == sent


async def test_much_that_expires_at_once_goes_in_turns_and_nobody_is_given_any_of_it(world: World) -> None:
    queue = world.queue(b"q")
    world.publish(b"", b"q", b"long", properties=EXPIRES_LATER)
    for _ in range(3):
        message_head = head(b"q", 1, EXPIRES_SOON)
        world.broker.publish(message_head, [queue], [b"x"] * 5000)
    world.publish(b"", b"q", b"alive")
    world.clock.now += 1
    late = Taker(room=1)
    queue.add_consumer(late)
    queue.dispatch()
    assert late.bodies == [b"long"]
    late.count = 100
    queue.dispatch()
    assert late.bodies == [b"long"], "behind it stands what is to go in several turns"
    assert queue.depth > 5000
    world.advance(0)
    assert late.bodies == [b"long", b"alive"]
    assert world.broker.counts.expired == 15_000
    assert world.broker.memory.held_bytes == 0


async def test_very_many_that_one_message_pushes_out_go_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "TRIMMED_AT_ONCE", 10)
    dead, queue = world.queue(b"dead"), dying(world, b"q", bytes_max=240)
    sent = numbered(40)
    world.publish(b"", b"q", *sent)
    world.publish(b"", b"q", b"x" * 100)
    assert len(queue.ready) == 31
    world.broker.timers.run_due()
    assert len(queue.ready) == 24, "23 of six bytes, and it"
    world.advance(0)
    assert ready(dead) == sent[:17]
    assert ready(queue) == [*sent[17:], b"x" * 100]
    assert queue.deadline == math.inf


async def test_a_get_behind_what_expires_waits_until_that_is_gone(world: World) -> None:
    peer = Peer(world).login()
    peer.method(C.Queue.Declare(0, "q"))
    queue = world.broker.queues[b"q"]
    world.broker.publish(head(b"q", 1, EXPIRES_SOON), [queue], [b"x"] * 10_000)
    world.publish(b"", b"q", b"alive")
    peer.frames()
    world.clock.now += 1
    peer.connection.now = world.clock.now
    peer.method(C.Basic.Get(0, "q", True))
    assert peer.names() == []
    world.advance(0)
    assert bodies(peer.frames()) == [b"alive"]


async def test_messages_that_differ_leave_others_their_turn(world: World) -> None:
    peer, queue = Peer(world).login(), world.queue()
    count = 2000
    pair = [publish("", "q", b"x" * size) for size in (1, 2)]
    peer.session.receive(b"".join(pair) * (count // 2))
    assert not peer.connection.reading
    assert 0 < queue.depth < 1000
    while not peer.connection.reading:
        peer.wake()
    assert queue.depth == count


async def test_methods_in_great_number_leave_others_their_turn(world: World) -> None:
    peer = Peer(world).login()
    count = 5000
    peer.session.receive(encode(C.Queue.Declare(0, "q"), 1) * count)
    assert not peer.connection.reading
    first = len(peer.frames_now())
    assert first < 600
    turns = 1
    while not peer.connection.reading:
        peer.wake()
        turns += 1
    assert first + len(peer.frames_now()) == count
    assert turns > 8


HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"
NOTHING = b"\x03\0\x01\0\0\0\0\xce"


@pytest.mark.parametrize("before", [b"", encode(C.Channel.Open(), 1)], ids=["greeted", "refused"])
async def test_who_is_not_known_yet_has_short_turns_also_with_what_nothing_comes_of(before: bytes) -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER)
    peer.session.receive(before + HEARTBEAT * 5000)
    turns = 1
    while not peer.connection.reading:
        peer.wake()
        turns += 1
    assert turns > 3


async def test_bodies_that_never_come_nearer_their_end_leave_others_their_turn() -> None:
    peer = Peer(await World.open()).login()
    peer.session.receive(publish("", "q", b"whole")[:-13] + NOTHING * 5000)
    assert not peer.connection.reading


async def test_tables_count_by_their_bytes(world: World) -> None:
    peer = Peer(world).login()
    table = short(b"a") + b"A" + struct.pack(">I", 4000) + b"V" * 4000
    declare = encode(C.Queue.Declare(0, "q"), 1)
    body = declare[7:-5] + struct.pack(">I", len(table)) + table
    peer.session.receive((declare[:3] + struct.pack(">I", len(body)) + body + b"\xce") * 20)
    assert len(peer.frames_now()) < 5


async def test_a_refusal_amid_a_long_stretch_still_hears_the_clients_answer(world: World) -> None:
    peer = Peer(world).login()
    cheap = encode(C.Basic.Cancel("nobody", True), 1)
    for count in range(280, 300):  # somewhere in there the turn ends with the method that is refused
        other = Peer(world).login()
        bad = encode(C.Channel.Open(), 1)
        other.send(cheap * count + bad + encode(C.Connection.CloseOk(), 0))
        assert other.names() == ["Connection.Close"]
        assert other.connection.finished, count
    assert peer.connection.reading


@pytest.mark.parametrize("per_priority", [3 * LOOKED_AT_ONCE, 2], ids=["one priority", "many priorities"])
async def test_a_queue_with_very_many_busy_consumers_is_gone_through_in_turns(
    world: World, per_priority: int
) -> None:
    queue = world.queue(b"q")
    asked = 0

    class Busy(Taker):
        def room(self) -> tuple[int, int]:
            nonlocal asked
            asked += 1
            return super().room()

    for number in range(3 * LOOKED_AT_ONCE):
        queue.add_consumer(Busy(room=0, priority=number // per_priority))
    free = Busy(room=1, priority=-1 if per_priority == 2 else 0)
    queue.add_consumer(free)
    world.publish(b"", b"q", b"a")
    assert asked < 1.5 * LOOKED_AT_ONCE
    assert free.bodies == []
    world.advance(0)
    assert free.bodies == [b"a"]
    asked = 0
    world.publish(b"", b"q", b"b", b"c")
    world.advance(0)
    world.publish(b"", b"q", b"d")
    world.advance(0)
    most = len(queue.consumers) + 1 if per_priority == 2 else 1.5 * len(queue.consumers)
    assert asked <= most, "nobody has room, and nobody is asked again"
    free.count = 3
    queue.dispatch()
    world.advance(0)
    assert free.bodies == [b"a", b"b", b"c", b"d"]


async def test_very_many_messages_are_given_to_who_has_room_in_turns_and_in_order(world: World) -> None:
    queue, sent = world.queue(), numbered(5 * GIVEN_AT_ONCE)
    world.publish(b"", b"q", *sent)
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    first = len(taker.bodies)
    assert 0 < first < 1.5 * GIVEN_AT_ONCE
    world.publish(b"", b"q", b"last")
    queue.dispatch()
    assert len(taker.bodies) == first, "neither what comes nor who asks hurries it"
    world.advance(0)
    assert taker.bodies == [*sent, b"last"]
    assert queue.deadline == math.inf


async def test_very_many_messages_go_round_all_consumers_in_turns(world: World) -> None:
    queue, sent = world.queue(), numbered(3 * 2 * GIVEN_AT_ONCE)
    takers = [Taker(no_ack=False) for _ in range(3)]
    for taker in takers:
        queue.add_consumer(taker)
    queue.pause()
    world.publish(b"", b"q", *sent)
    queue.resume()
    assert 0 < queue.unacked < 1.5 * GIVEN_AT_ONCE
    world.advance(0)
    assert [taker.bodies for taker in takers] == [sent[at::3] for at in range(3)]


async def test_what_is_large_is_given_to_many_in_turns_by_its_bytes(world: World) -> None:
    queue = world.queue()
    takers = [Taker() for _ in range(100)]
    for taker in takers:
        queue.add_consumer(taker)
    queue.pause()
    sent = [b"%0*d" % (GIVEN_BYTES_AT_ONCE // 42, number) for number in range(100)]
    world.publish(b"", b"q", *sent)
    queue.resume()
    assert 40 < queue.depth < 60
    world.advance(0)
    assert [body for taker in takers for body in taker.bodies] == sent


@pytest.mark.parametrize("stops", [Queue.purge, Queue.pause, Queue.delete])
async def test_nothing_goes_on_where_a_queue_stops_amid_what_it_gives_in_turns(
    world: World, stops: Callable[[Queue], object]
) -> None:
    queue = world.queue()
    world.publish(b"", b"q", *numbered(5 * GIVEN_AT_ONCE))
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    stops(queue)
    world.advance(0)
    assert len(taker.bodies) < 1.5 * GIVEN_AT_ONCE
    assert queue.deadline == math.inf


@pytest.mark.parametrize("stops", [Queue.purge, Queue.pause])
async def test_nobody_is_asked_on_where_a_queue_stops_amid_that(
    world: World, stops: Callable[[Queue], object]
) -> None:
    queue = world.queue()
    for _ in range(3 * LOOKED_AT_ONCE):
        queue.add_consumer(Taker(room=0))
    world.publish(b"", b"q", b"a")
    assert queue.deadline == world.clock.now
    stops(queue)
    for _ in range(3):
        world.broker.timers.run_due()
    assert queue.deadline == math.inf


async def test_who_comes_when_a_queue_is_resumed_amid_what_it_gives_gets_the_rest(world: World) -> None:
    queue, sent = world.queue(), numbered(5 * GIVEN_AT_ONCE)
    world.publish(b"", b"q", *sent)
    first, second = Taker(), Taker()
    queue.add_consumer(first)
    queue.dispatch()
    queue.pause()
    queue.remove_consumers(first)
    queue.add_consumer(second)
    queue.resume()
    world.advance(0)
    assert [*first.bodies, *second.bodies] == sent


@pytest.mark.usefixtures("returns")
async def test_all_that_a_connection_held_comes_back_in_its_order(world: World) -> None:
    owner = Peer(world).login()
    owner.method(C.Queue.Declare(0, "q"))
    sent = numbered(400)
    owner.send(publish("", "q", *sent))
    peer = Peer(world).login()
    for channel in range(2, 6):
        peer.method(C.Channel.Open(), channel)
        peer.method(C.Basic.Consume(0, "q", "tag"), channel)
    queue = world.broker.queues[b"q"]
    assert (queue.depth, queue.unacked) == (0, 400)
    peer.lose()
    assert ready(queue) == sent
    assert all(message.redelivered for message in queue.ready)
    assert (queue.unacked, len(queue.consumers), world.broker.counts.consumers) == (0, 0, 0)


@pytest.mark.usefixtures("returns")
async def test_very_much_that_a_connection_held_comes_back_in_turns_and_in_its_order(world: World) -> None:
    other = Peer(world).login()
    other.method(C.Queue.Declare(0, "q"))
    sent = numbered(12_000)
    peer = Peer(world).login()
    for channel in range(2, 5):  # a consumer each, of which one gets what comes behind the others'
        peer.method(C.Channel.Open(), channel)
    for channel in (2, 3):
        peer.method(C.Basic.Consume(0, "q", "tag"), channel)
    half = len(sent) // 2
    other.send(publish("", "q", *sent[:half]))
    world.advance(0)
    for channel in (2, 3):
        peer.method(C.Basic.Cancel("tag"), channel)
    peer.method(C.Basic.Consume(0, "q", "tag"), 4)
    other.send(publish("", "q", *sent[half:]))
    world.advance(0)
    queue = world.broker.queues[b"q"]
    assert (queue.depth, queue.unacked) == (0, len(sent))
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    other.frames()
    peer.lose()
    other.send(publish("", "q", b"new"))
    other.session.receive(encode(C.Basic.Get(0, "q", True), 1))
    last = Peer(world).login()
    last.frames()
    last.session.receive(encode(C.Queue.Purge(0, "q"), 1))

    def seen() -> object:
        return taker.bodies or other.frames_now() + last.frames_now()

    turns = in_turns(world, lambda: queue.unacked, RETURNED_PER_TURN, seen)
    assert turns > 3, "what stands before it is not back yet"
    world.advance(0)
    assert taker.bodies == [*sent, b"new"]
    assert other.names() == ["Basic.GetEmpty"]
    assert last.names() == ["Queue.PurgeOk"]
    assert world.broker.counts.requeued == len(sent)
    assert queue.unacked == len(sent) + 1


@pytest.mark.usefixtures("returns")
@pytest.mark.parametrize(
    ("method", "count", "part"),
    [("ack", 9_000, 0), ("ack", 17_000, 8_600), ("requeue", 10_000, 1_000), ("reject", 9_000, 0)],
)
async def test_very_many_that_are_acknowledged_or_given_back_at_once_go_in_turns(
    world: World, method: str, count: int, part: int
) -> None:
    """`part`: so many of the newest stay unacknowledged."""
    peer = Peer(world).login()
    queue = world.queue(b"q")
    peer.method(C.Confirm.Select())
    peer.method(C.Basic.Consume(0, "q", "tag"))
    sent = numbered(count)
    peer.send(publish("", "q", *sent))
    world.advance(0)
    peer.frames()
    assert queue.unacked == count
    peer.method(C.Basic.Cancel("tag"))
    peer.frames()
    tag = count - part if part else 0
    said = {
        "ack": C.Basic.Ack(tag, True),
        "requeue": C.Basic.Nack(tag, True, True),
        "reject": C.Basic.Nack(tag, True, False),
    }[method]
    peer.session.receive(encode(said, 1) + publish("", "other", b"x"))
    seen = peer.frames_now if method != "requeue" else list  # a confirm says that all before it was taken
    assert in_turns(world, lambda: queue.unacked, RETURNED_PER_TURN, seen) > 2
    assert peer.names() == ["Basic.Ack"], "the confirm"
    assert queue.unacked == part
    counts = world.broker.counts
    assert (counts.acknowledged, counts.requeued, counts.rejected) == (
        (count - part) * (method == "ack"),
        (count - part) * (method == "requeue"),
        (count - part) * (method == "reject"),
    )
    assert ready(queue) == (sent[: count - part] if method == "requeue" else [])
    peer.method(C.Basic.Ack(0, True))
    while world.broker.long_work.busy:
        world.broker.timers.run_due()
    peer.frames()
    assert queue.unacked == 0


@pytest.mark.usefixtures("returns")
@pytest.mark.parametrize("leaves", [False, True])
async def test_very_many_that_are_delivered_again_at_once_go_in_turns(world: World, leaves: bool) -> None:
    """`leaves`: the connection is lost before all have come."""
    peer = Peer(world).login()
    queue = world.queue(b"q")
    peer.method(C.Basic.Consume(0, "q", "tag"))
    sent = numbered(4_000)
    peer.send(publish("", "q", *sent))
    peer.frames()
    peer.session.receive(encode(C.Basic.Recover(False), 1) + publish("", "q", b"new"))
    first = bodies(peer.frames_now())
    assert 0 < len(first) <= RETURNED_PER_TURN
    assert world.broker.counts.published == len(sent), "input behind it waits"
    if leaves:
        peer.session.connection_lost()
        world.advance(0)
        assert ready(queue) == sent
        assert queue.unacked == 0
        return
    world.advance(0)
    peer.pump()
    assert [*first, *bodies(peer.frames())] == [*sent, b"new"]
    assert queue.unacked == len(sent) + 1


def of_many_queues(world: World, peer: Peer, count: int, *, durable: bool = False) -> list[Queue]:
    """So many queues with a message each, which the peer has got and not acknowledged."""
    names = [b"q%d" % number for number in range(count)]
    queues = [world.queue(name, durable=durable) for name in names]
    for name in names:
        world.publish(b"", name, name, properties=PERSISTENT if durable else b"\0\0")
    world.settle()
    for name in names:
        peer.method(C.Basic.Get(0, name.decode()))
    peer.frames()
    assert all(queue.unacked == 1 for queue in queues)
    return queues


@pytest.mark.parametrize("method", ["requeue", "recover", "close", "lost"])
async def test_messages_of_very_many_queues_come_back_in_turns(world: World, method: str) -> None:
    peer = Peer(world).login()
    queues = of_many_queues(world, peer, 2000)
    for queue in queues:
        world.publish(b"", queue.name, b"behind")
    takers = [Taker(no_ack=False) for _ in queues]
    for queue, taker in zip(queues[:1000], takers, strict=False):
        queue.add_consumer(taker)
        queue.dispatch()
    if method == "lost":
        peer.session.connection_lost()
    else:
        said = {
            "requeue": C.Basic.Nack(0, True, True),
            "recover": C.Basic.Recover(True),
            "close": C.Channel.Close(200, "", 0, 0),
        }[method]
        peer.session.receive(encode(said, 1))
    assert in_turns(world, lambda: sum(bool(queue.unacked) for queue in queues[1000:]), 600) > 3
    for queue, taker in zip(queues, takers[:1000], strict=False):
        assert taker.bodies == [b"behind", queue.name]
    assert all(ready(queue) == [queue.name, b"behind"] for queue in queues[1000:])
    assert all(queue.ready[0].redelivered and not queue.ready[1].redelivered for queue in queues[1000:])
    assert not any(queue.stops for queue in queues)


async def test_acknowledgements_of_very_many_queues_go_in_turns_and_are_written(world: World) -> None:
    peer = Peer(world).login()
    queues = of_many_queues(world, peer, 1500, durable=True)
    peer.session.receive(encode(C.Basic.Ack(0, True), 1) + encode(C.Queue.Declare(0, "q0", True), 1))
    turns = 0
    while world.broker.long_work.busy or world.broker.timers.next <= world.clock.now:
        world.broker.timers.run_due()
        world.broker.flush()
        turns += 1
    assert turns > 1
    assert not any(queue.unacked for queue in queues)
    world.settle()
    after = await world.again()
    assert not any(after.broker.queues[queue.name].depth for queue in queues)


async def test_what_has_left_very_many_queues_is_written_in_turns_and_whole_at_the_end(world: World) -> None:
    queues = [world.queue(b"q%d" % number, durable=True) for number in range(1500)]
    for queue in queues:
        world.publish(b"", queue.name, b"x", properties=PERSISTENT)
    world.settle()
    logs = [queue.log.log for queue in queues if queue.log is not None]
    ends = [log.end for log in logs]

    def written() -> int:
        return sum(log.end > end for log, end in zip(logs, ends, strict=True))

    for queue in queues:
        assert queue.get(True) is not None
    world.broker.flush()
    assert 0 < written() < 600
    world.broker.timers.run_due()
    assert 600 < written() < 1100
    world.broker.draining = True
    world.broker.flush()
    assert written() == 1500
    world.advance(0)
    assert world.broker.timers.next > world.clock.now


async def test_very_many_queues_of_one_owner_go_in_turns(world: World) -> None:
    count = 1280
    peer = Peer(world).login()
    for start in range(0, count, 256):
        names = (f"{number}" for number in range(start, start + 256))
        peer.send(
            b"".join(encode(C.Queue.Declare(0, name, exclusive=True, nowait=True), 1) for name in names)
        )
    assert len(world.broker.queues) == count
    other = Peer(world).login()
    other.frames()
    peer.lose()
    other.session.receive(encode(C.Queue.Declare(0, "0"), 1))
    assert in_turns(world, lambda: len(world.broker.queues), 400, other.frames_now) > 2
    assert other.names() == ["Queue.DeclareOk"]
    assert list(world.broker.queues) == [b"0"]


@pytest.mark.usefixtures("returns")
async def test_what_comes_back_to_a_queue_that_is_deleted_meanwhile_is_gone(world: World) -> None:
    owner = Peer(world).login()
    owner.method(C.Queue.Declare(0, "q"))
    peer = Peer(world).login()
    peer.method(C.Basic.Consume(0, "q", "tag"))
    owner.send(publish("", "q", *numbered(8000)))
    queue = world.broker.queues[b"q"]
    peer.lose()
    world.topology.delete_queue(queue)
    assert world.broker.long_work.busy
    world.advance(0)
    assert not world.broker.long_work.busy
    assert (world.broker.memory.held_bytes, queue.depth) == (0, 0)


def test_what_comes_back_finds_its_place_however_much_comes_back_at_once() -> None:
    for several in (1, 5, 40):
        row = ReadyRow(Message(head(), b"", number) for number in range(1000, 1200))
        numbers = [*range(0, 1000, 7), *range(3, 1000, 7)]
        for start in range(0, len(numbers), several):
            those = sorted(numbers[start : start + several])
            row.put_back([Message(head(), b"", number) for number in those])
        assert [message.number for message in row] == [*sorted(numbers), *range(1000, 1200)]


def test_what_comes_back_among_what_others_gave_back_costs_no_more_the_more_that_was() -> None:
    class Counted(ReadyRow):
        taken = 0

        def popleft(self) -> Message:
            Counted.taken += 1
            return super().popleft()

    row = Counted(Message(head(), b"", number) for number in range(0, 20_000, 2))
    numbers = [*range(1, 20_000, 2)]
    for end in range(len(numbers), 0, -100):  # the newest first
        row.put_back([Message(head(), b"", number) for number in numbers[end - 100 : end]])
    assert [message.number for message in row] == [*range(20_000)]
    assert Counted.taken <= len(numbers)


async def test_bytes_that_wait_for_the_disk_are_counted_until_it_has_them(world: World) -> None:
    queue = world.queue(b"q", durable=True, bytes_max=10, rejects=True)
    world.publish(b"", b"q", b"1234", properties=PERSISTENT)
    assert (queue.unsynced_bytes, queue.room_for(head(b"q", 4), 3)) == (4, 1)
    world.settle()
    assert (queue.unsynced_bytes, queue.room_for(head(b"q", 4), 3)) == (0, 1)


async def many_bindings(world: World, exchange: str, count: int) -> Peer:
    """A client that has bound so many keys of a durable exchange, and one of another, to a durable queue."""
    peer = Peer(world).login()
    for name in (exchange, "other"):
        peer.method(C.Exchange.Declare(0, name, durable=True, auto_delete=name == "other"))
    peer.method(C.Queue.Declare(0, "q", durable=True))
    peer.send(b"".join(encode(C.Queue.Bind(0, "q", exchange, f"{n}", nowait=True), 1) for n in range(count)))
    peer.method(C.Queue.Bind(0, "q", "other", "key"))
    world.settle()
    peer.frames()
    assert world.broker.bindings == count + 1
    return peer


@pytest.mark.parametrize("deletes", [C.Queue.Delete(0, "q"), C.Exchange.Delete(0, "x")])
async def test_many_bindings_of_what_is_deleted_go_in_turns_and_nobody_sees_it_half_done(
    world: World, deletes: base.Frame
) -> None:
    broker, count = world.broker, 5 * UNBOUND_PER_TURN
    peer = await many_bindings(world, "x", count)
    other = Peer(world).login()
    other.frames()
    peer.session.receive(encode(deletes, 1))
    assert count // 2 < broker.bindings, "others have their turn"
    for key in (b"0", b"%d" % (count - 1)):
        if b"x" in broker.exchanges:
            assert broker.route(b"x", head(key))[0] == (), "what is gone gets nothing"
    other.send(
        encode(C.Queue.Declare(0, "q", durable=True), 1)
        + encode(C.Exchange.Declare(0, "x", durable=True), 1)
        + publish("", "q", b"later")
    )
    assert in_turns(world, lambda: broker.bindings, UNBOUND_PER_TURN, other.frames_now) > 2
    world.settle()
    other.pump()
    world.settle()
    assert peer.names() == [f"{deletes.name}Ok"]
    said = other.names()
    world.settle()
    assert said + other.names() == ["Queue.DeclareOk", "Exchange.DeclareOk"]
    left = 0 if deletes.name == "Queue.Delete" else 1
    assert broker.bindings == left == len(broker.queues[b"q"].bound)
    assert broker.exchanges[b"x"].bindings == {}
    assert (b"other" in broker.exchanges) == bool(left), "it went with its last binding"
    assert ready(broker.queues[b"q"]) == [b"later"]
    world.settle()
    after = await world.again()
    assert after.broker.bindings == left


async def test_a_deletion_of_which_a_part_did_not_reach_the_disk_is_not_said_to_be_done(world: World) -> None:
    peer = await many_bindings(world, "x", 2 * UNBOUND_PER_TURN)
    peer.session.receive(encode(C.Queue.Delete(0, "q"), 1))
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    world.settle()
    assert world.broker.long_work.busy
    world.advance(0)
    world.settle()
    assert peer.names() == ["Connection.Close"]
    assert world.broker.bindings == 0


async def test_bindings_of_what_is_deleted_go_where_nothing_can_be_written_any_more(world: World) -> None:
    peer = await many_bindings(world, "x", 2 * UNBOUND_PER_TURN)
    peer.session.receive(encode(C.Queue.Delete(0, "q"), 1))
    fail(world.disk, errno.EIO, journal_write)
    world.settle()
    assert world.broker.long_work.busy
    assert world.store.read_only
    world.advance(0)
    assert peer.names() == ["Connection.Close"]
    assert (world.broker.bindings, world.broker.exchanges[b"x"].bindings) == (0, {})
    peer = Peer(world).login()
    peer.method(C.Queue.Declare(0, "q"))
    peer.method(C.Queue.Bind(0, "q", "x", "0"))
    peer.send(publish("x", "0", b"body"))
    assert peer.ask_get("q") == b"body"


@pytest.mark.parametrize("deletes", [C.Queue.Delete(0, "q"), C.Exchange.Delete(0, "x")])
async def test_a_crash_while_bindings_go_leaves_none_of_what_was_deleted(
    world: World, deletes: base.Frame
) -> None:
    peer = await many_bindings(world, "x", 2 * UNBOUND_PER_TURN)
    peer.session.receive(encode(deletes, 1))
    assert world.broker.long_work.busy
    world.settle()
    assert peer.frames_now() == []
    after = await world.again()
    assert b"q" not in after.broker.queues or b"x" not in after.broker.exchanges
    assert after.broker.bindings == (b"q" in after.broker.queues)
    peer = Peer(after).login()
    peer.method(C.Queue.Declare(0, "q", durable=True))
    peer.method(C.Exchange.Declare(0, "x", durable=True))
    assert after.broker.exchanges[b"x"].bindings == {}


class Counted(Taker):
    """Counts how often one is looked for."""

    hashed = 0

    def __hash__(self) -> int:
        Counted.hashed += 1
        return id(self)


def crowd(queue: Queue, count: int, priorities: int = 1) -> list[Counted]:
    takers = [Counted(room=1, priority=number % priorities) for number in range(count)]
    for taker in takers:
        queue.add_consumer(taker)
    return takers


@pytest.mark.parametrize("priorities", [1, 3])
async def test_a_consumer_among_many_goes_without_a_look_at_the_others(world: World, priorities: int) -> None:
    queue = world.queue()
    takers = crowd(queue, 2000, priorities)
    before = Counted.hashed
    for taker in takers[300:600]:
        queue.remove_consumers(taker)
    assert Counted.hashed - before < 300 * 10
    world.publish(b"", b"q", *numbered(1700))
    assert not any(taker.bodies for taker in takers[300:600])
    assert all(len(taker.bodies) == 1 for taker in [*takers[:300], *takers[600:]])


async def test_a_queue_with_many_consumers_is_deleted_in_turns_and_the_answer_waits(world: World) -> None:
    queue = world.queue()
    takers = crowd(queue, 3000)
    count, ticket = world.topology.delete_queue(queue)
    assert count == 0
    assert ticket is not None
    assert not ticket.done
    assert 0 < sum(taker.ended for taker in takers) < 3000
    world.advance(0)
    assert all(taker.ended for taker in takers)
    assert ticket.done


@pytest.mark.parametrize("ends", ["purge", "delete"])
@pytest.mark.parametrize("priority_max", [0, 3])
async def test_many_messages_are_gone_at_once_and_freed_in_turns(
    world: World, ends: str, priority_max: int
) -> None:
    queue = world.queue(priority_max=priority_max)
    many = 3 * SLICES * ITEMS
    world.publish(b"", b"q", *numbered(many))
    waiting = queue.ready
    count, _ = world.topology.purge_queue(queue) if ends == "purge" else world.topology.delete_queue(queue)
    assert (count, queue.depth, world.broker.memory.held_bytes) == (many, 0, 0)
    assert 0 < len(waiting) < many
    assert world.broker.long_work.busy
    world.advance(0)
    assert not waiting


def fan(world: World, count: int, *, durable: bool = False, name: bytes = b"q") -> list[Queue]:
    """So many queues that `amq.fanout` leads to."""
    queues = [world.queue(b"%s%d" % (name, number), durable=durable) for number in range(count)]
    for queue in queues:
        world.topology.bind(b"amq.fanout", queue)
    world.settle()
    return queues


async def confirming(world: World) -> Peer:
    peer = Peer(world).login()
    peer.ask(C.Confirm.Select())
    return peer


@pytest.mark.usefixtures("wide")
async def test_a_message_for_very_many_queues_comes_in_turns_in_order_and_is_confirmed_last(
    world: World,
) -> None:
    queues = fan(world, 2000)
    peer, other = await confirming(world), await confirming(world)
    peer.publish("amq.fanout", "", b"first", b"second")
    assert 0 < sum(queue.depth for queue in queues) < 2000
    other.publish("", "q1999", b"between")
    assert other.names() == ["Basic.Ack"]
    assert peer.frames_now() == []
    world.advance(0)
    assert peer.names() == ["Basic.Ack"]
    world.advance(0)
    assert peer.names() == ["Basic.Ack"]
    assert all(ready(queue) == [b"first", b"second"] for queue in queues[:-1])
    assert ready(queues[-1]) == [b"between", b"first", b"second"]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("durable", [False, True])
async def test_one_full_queue_of_very_many_refuses_and_the_others_have_the_message(
    world: World, durable: bool
) -> None:
    queues = fan(world, 1000)
    full = world.queue(b"full", durable=durable, rejects=True, messages_max=0)
    world.topology.bind(b"amq.fanout", full)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    world.advance(0)
    world.settle()
    assert peer.names() == ["Basic.Nack"]
    assert (full.depth, [queue.depth for queue in queues]) == (0, [1] * 1000)


@pytest.mark.usefixtures("wide")
async def test_of_very_many_queues_the_durable_ones_have_a_message_all_or_none(world: World) -> None:
    fan(world, 600)
    durable = fan(world, 300, durable=True, name=b"durable")
    peer = await confirming(world)
    (written,) = watch(world.disk, "write")
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    world.advance(0)
    assert peer.names() == [], "it waits for the disk"
    world.settle()
    world.advance(0)
    assert peer.names() == ["Basic.Ack"]
    assert len([path for path in written if "journal" in path]) == 1
    again = await world.again()
    assert [again.broker.queues[queue.name].depth for queue in durable] == [1] * 300


@pytest.mark.usefixtures("wide")
async def test_a_large_body_for_very_many_queues_is_theirs_until_all_have_it() -> None:
    world = await World.open(DmpSettings(message_bytes_max=10))
    queues = fan(world, 1000)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"0123456789abcdef")
    for _ in range(20):
        world.advance(0)
        world.settle()
    assert peer.names() == ["Basic.Ack"]
    assert {world.body(message) for queue in queues for message in queue.ready} == {b"0123456789abcdef"}
    assert [queue.depth for queue in queues] == [1] * 1000


def wide_and_durable(world: World) -> list[Queue]:
    queues = fan(world, 1000, durable=True)
    assert world.broker.memory.held_bytes == 0
    return queues


def depths(world: World, queues: list[Queue]) -> set[int]:
    return {world.broker.queues[queue.name].depth for queue in queues}


@pytest.mark.usefixtures("wide")
async def test_a_persistent_message_for_very_many_queues_keeps_its_place_in_each(world: World) -> None:
    queues = wide_and_durable(world)
    peer, other = await confirming(world), await confirming(world)
    peer.publish("amq.fanout", "", b"1", properties=PERSISTENT)
    assert 0 < sum(queue.unsynced for queue in queues) < 1000, "others have their turn"
    for queue, properties in (("q0", PERSISTENT), ("q1", b"\0\0")):
        other.publish("", queue, b"before", properties=properties)
    world.advance(0)
    for queue, properties in (("q2", PERSISTENT), ("q3", b"\0\0")):
        other.publish("", queue, b"behind", properties=properties)
    world.store.commit_pending()
    assert peer.frames_now() == [], "some queues have not heard of it"
    assert ready(queues[3]) == [], "what came behind it waits for it"
    world.advance(0)
    assert peer.names() == ["Basic.Ack"]
    rows = [[b"before", b"1"], [b"before", b"1"], [b"1", b"behind"], [b"1", b"behind"]]
    assert [ready(queue) for queue in queues[:5]] == [*rows, [b"1"]]
    for queue in queues[:3]:
        assert [message.number for message in queue.ready] == list(range(len(queue.ready)))
    assert {queue.unsynced for queue in queues} == {queue.unsynced_bytes for queue in queues} == {0}
    again = await world.again()
    rows = [[b"before", b"1"], [b"1"], [b"1", b"behind"], [b"1"]]
    assert [ready(again.broker.queues[queue.name]) for queue in queues[:4]] == rows
    assert {again.broker.queues[queue.name].depth for queue in queues[4:]} == {1}


def amid_the_appends(world: World, queues: list[Queue]) -> None:
    """Some of very many queues have their record, and the others do not."""
    while not queues[-1].numbered and not queues[0].numbered:
        world.broker.timers.run_due()
    assert 0 < sum(queue.numbered for queue in queues) < len(queues)


@pytest.mark.usefixtures("wide")
async def test_what_comes_amid_the_appends_of_very_many_queues_is_before_or_behind(world: World) -> None:
    queues = wide_and_durable(world)
    peer, other = await confirming(world), await confirming(world)
    peer.publish("amq.fanout", "", b"1", properties=PERSISTENT)
    amid_the_appends(world, queues)
    had = {queue.name: queue.numbered for queue in queues}
    for queue in (queues[0], queues[-1]):
        other.publish("", queue.name.decode(), b"2", properties=PERSISTENT)
    world.store.commit_pending()
    assert (peer.frames_now(), other.frames_now()) == ([], []), "it is one entry of the journal"
    world.advance(0)
    world.settle()
    world.advance(0)
    assert set(peer.names()) == set(other.names()) == {"Basic.Ack"}
    again = await world.again()
    for queue in (queues[0], queues[-1]):
        expected = [b"1", b"2"] if had[queue.name] else [b"2", b"1"]
        assert ready(queue) == ready(again.broker.queues[queue.name]) == expected
    assert {had[queues[0].name], had[queues[-1].name]} == {0, 1}
    assert depths(again, queues[1:-1]) == {1}


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    "moment", ["amid the slices", "amid the appends", "appended", "written", "amid those that hear of it"]
)
async def test_a_crash_leaves_a_persistent_message_in_all_of_very_many_queues_or_in_none(
    world: World, moment: str
) -> None:
    queues = wide_and_durable(world)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    there = 0
    if moment == "amid the slices":
        world.store.commit_pending()
        assert depths(world, queues) == {0}
    elif moment == "amid the appends":
        amid_the_appends(world, queues)
        world.store.commit_pending()
    else:
        world.advance(0)
    if moment in ("written", "amid those that hear of it"):
        world.store.commit_pending()
        there = 1
    if moment == "amid those that hear of it":
        world.broker.timers.run_due()
        world.broker.timers.run_due()
        assert depths(world, queues) == {0, 1}
    assert peer.frames_now() == []
    assert depths(await world.again(), queues) == {there}


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    "when", ["before the append", "amid the appends", "before it is written", "before they hear of it"]
)
async def test_a_queue_that_goes_before_it_has_what_very_many_get_costs_the_others_nothing(
    world: World, when: str
) -> None:
    queues = wide_and_durable(world)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    if when == "amid the appends":
        amid_the_appends(world, queues)
    elif when != "before the append":
        world.advance(0)
    if when == "before they hear of it":
        world.store.commit_pending()
    for gone in (queues[0], queues[-1]):
        world.topology.delete_queue(gone)
    for _ in range(3):
        world.advance(0)
        world.settle()
    assert peer.names() == ["Basic.Ack"]
    assert {queue.depth for queue in queues[1:-1]} == {1}
    assert queues[0].unsynced == queues[-1].unsynced == 0
    assert world.broker.memory.held_bytes == sum(queue.ready[0].head.cost_bytes for queue in queues[1:-1])
    assert world.broker.counts.crashes == 0
    for queue in queues[1:-1]:
        queue.purge()
    assert world.broker.memory.held_bytes == 0


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("confirms", [False, True])
@pytest.mark.parametrize("when", ["append", "write"])
async def test_what_the_store_refuses_reaches_none_of_very_many_queues(
    world: World, confirms: bool, when: str
) -> None:
    queues = wide_and_durable(world)
    transient = world.queue(b"transient")
    world.topology.bind(b"amq.fanout", transient)
    peer = await confirming(world) if confirms else Peer(world).login()
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    fail(world.disk, errno.EIO, journal_write)
    if when == "append":  # something else finds that nothing can be written
        world.broker.logs.create("other")
        world.store.commit_pending()
        assert world.store.read_only
    world.advance(0)
    world.settle()
    world.advance(0)
    refused = ["Basic.Nack"] if confirms else ["Connection.Close"] if when == "append" else []
    assert peer.names() == refused
    assert {queue.depth for queue in queues} == {queue.unsynced for queue in queues} == {0}
    assert transient.depth == (when == "write")
    transient.purge()
    assert world.broker.memory.held_bytes == 0


@pytest.fixture
def quiet() -> Iterator[None]:
    """The log keeps what is told: to show the thousands of queues in a traceback takes seconds."""
    with capture_logs():
        yield


def amid_queues(function: Any, number: int) -> Any:
    """The function, but its call of this number raises, counted from 0."""
    calls = counting()
    return failing(function, lambda *_: next(calls) == number)


BUGS = [
    (Queue, "expect", 300, False),
    (HeldBatch, "append", 0, False),
    (HeldBatch, "append", 3, False),
    (Queue, "place", 0, False),
    (Queue, "place", 600, False),
    (HeldBatch, "append", 6, True),
    (Queue, "place", 600, True),
]
"""What fails, and at which call; whether the store has the rest appended at once."""


@pytest.mark.usefixtures("wide", "quiet")
@pytest.mark.parametrize("confirms", [False, True])
@pytest.mark.parametrize(("of", "name", "number", "hurried"), BUGS)
async def test_what_a_bug_keeps_from_very_many_queues_is_refused_and_none_of_them_counts_it(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    of: Any,
    name: str,
    number: int,
    hurried: bool,
    confirms: bool,
) -> None:
    queues = wide_and_durable(world)
    peer = await confirming(world) if confirms else Peer(world).login()
    monkeypatch.setattr(of, name, amid_queues(getattr(of, name), number))
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    if hurried:
        amid_the_appends(world, queues)
        world.store.hold(0, 1, {world.broker.settings.durability}, lambda: None).release()
    for _ in range(2):
        world.advance(0)
        world.settle()
    world.advance(0)
    assert peer.names() == (["Basic.Nack"] if confirms else [] if hurried else ["Connection.Close"])
    assert bool(world.store.read_only) == (name != "expect")
    assert {queue.depth for queue in queues} == {queue.unsynced for queue in queues} == {0}
    assert {queue.unsynced_bytes for queue in queues} == {0}
    assert world.broker.memory.held_bytes == 0
    monkeypatch.undo()
    assert depths(await world.again(), queues) == {0}


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("number", [0, 3])
async def test_a_dead_letter_that_a_bug_keeps_from_very_many_queues_is_there_again(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    targets = fan(world, VERY_MANY_QUEUES, durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"amq.fanout")
    taker = world.holder(queue, b"1", b"2", properties=PERSISTENT)
    monkeypatch.setattr(HeldBatch, "append", amid_queues(HeldBatch.append, number))
    queue.reject(taker.messages)
    for _ in range(3):
        world.advance(0)
        world.settle()
    assert {target.depth for target in targets} == {target.unsynced for target in targets} == {0}
    counts = world.broker.counts
    assert (counts.dead_letters_lost, counts.crashes) == (1, 1)
    assert world.broker.memory.held_bytes == 0
    monkeypatch.undo()
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == [b"1", b"2"]
    assert depths(after, targets) == {0}


async def test_the_collector_pauses_while_a_dead_letter_goes_to_very_many_queues_and_its_record_is_made_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = fan(world, max(MANY, QUEUES_AT_ONCE) + 104, durable=True)
    queue = world.queue(b"q", durable=True, dead_letter_exchange=b"amq.fanout")
    taker = world.holder(queue, b"1", properties=PERSISTENT)
    packed: list[QueueLog] = []
    leaving = QueueLog.leaving

    def counted(log: QueueLog, messages: Sequence[Message]) -> bytes:
        packed.append(log)
        return leaving(log, messages)

    monkeypatch.setattr(QueueLog, "leaving", counted)
    assert not PAUSES.count
    queue.reject(taker.messages)
    while world.broker.long_work.busy:
        assert PAUSES.count
        world.broker.timers.run_due()
    assert packed == [queue.log]
    world.settle()
    world.advance(0)
    assert (depths(world, targets), PAUSES.count) == ({1}, 0)


@pytest.mark.usefixtures("wide")
async def test_very_many_queues_have_what_was_published_though_its_channel_is_gone(world: World) -> None:
    queues = wide_and_durable(world)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"x", properties=PERSISTENT)
    peer.lose()
    world.advance(0)
    world.settle()
    world.advance(0)
    assert depths(world, queues) == {1}


RETURNED = ["Basic.Return", "ContentHeader", "ContentBody"]


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("properties", [b"\0\0", PERSISTENT], ids=["memory", "disk"])
@pytest.mark.parametrize("takers", [0, 3])
async def test_an_immediate_message_for_very_many_queues_goes_to_those_that_deliver_it_or_back(
    world: World, properties: bytes, takers: int
) -> None:
    queues = wide_and_durable(world)
    given = [Taker() for _ in range(takers)]
    for taker, queue in zip(given, queues[::400], strict=False):
        queue.add_consumer(taker)
    peer = await confirming(world)
    peer.publish("amq.fanout", "", b"x", properties=properties, immediate=True)
    world.advance(0)
    world.settle()
    world.advance(0)
    assert peer.names() == (["Basic.Ack"] if takers else [*RETURNED, "Basic.Ack"])
    assert [taker.bodies for taker in given] == [[b"x"]] * takers
    assert depths(world, queues) == {0}


@pytest.fixture
def looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue whose headers bindings take a message of `EIGHTEEN` several turns to look through."""
    monkeypatch.setattr(exchanges, "COMPARED_AT_ONCE", 64)
    queue = world.queue(b"q")
    bind_to_be_looked_at(world, b"amq.headers", queue, 500)
    return queue


async def test_a_message_whose_route_takes_long_keeps_its_place_on_its_channel_and_no_other(
    world: World, looked_at: Queue
) -> None:
    peer, other = await confirming(world), await confirming(world)
    before = world.broker.counts.published
    slow = publish("amq.headers", "", b"slow", properties=EIGHTEEN)
    peer.send(slow + publish("", "q", b"behind") + slow)
    other.publish("", "q", b"between")
    assert other.names() == ["Basic.Ack"]
    assert (peer.frames_now(), looked_at.depth) == ([], 1)
    for _ in range(100):
        world.advance(0)
        peer.pump()
    assert ready(looked_at) == [b"between", b"slow", b"behind", b"slow"]
    assert [ack.delivery_tag for _, ack in peer.frames()][-1] == 3
    assert world.broker.counts.published == before + 4
    assert peer.connection.reading


async def test_what_waits_for_its_route_comes_before_the_end_of_its_connection(
    world: World, looked_at: Queue
) -> None:
    peer, lost = Peer(world).login(), Peer(world).login()
    for each in (peer, lost):
        each.send(publish("amq.headers", "", b"x", properties=EIGHTEEN))
    peer.session.receive_eof()
    lost.session.connection_lost()
    for _ in range(100):
        world.advance(0)
        peer.pump()
    assert ready(looked_at) == [b"x"], "what is cut off was not taken"
    assert peer.session.ended


async def test_a_queue_that_goes_while_the_route_to_it_is_found_gets_nothing(
    world: World, looked_at: Queue
) -> None:
    peer = await confirming(world)
    peer.publish("amq.headers", "", b"x", properties=EIGHTEEN)
    world.topology.delete_queue(looked_at)
    for _ in range(100):
        world.advance(0)
        peer.pump()
    assert peer.names() == ["Basic.Ack"]
    assert world.broker.counts.unroutable == 1


async def test_a_route_that_is_refused_after_many_steps_closes_its_channel(
    world: World, looked_at: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "KEYS_STEPS_MAX", -1)
    world.topology.bind(b"amq.headers", world.topology.exchange(b"amq.topic"), b"", field_table({"h0": 1}))
    world.topology.bind(b"amq.topic", looked_at, b"#")
    headers = {f"h{number}": 1 for number in range(18)} | {"CC": ["other"]}
    peer = await confirming(world)
    peer.publish("amq.headers", "", b"x", properties=C.Basic.Properties(headers=headers).marshal())
    assert peer.names() == []
    for _ in range(100):
        world.advance(0)
        peer.pump()
    ((_, close),) = peer.frames()
    assert (close.name, close.reply_code) == ("Channel.Close", 406)
    assert looked_at.depth == 0


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_large_body_is_kept_while_its_route_is_found(
    monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    monkeypatch.setattr(exchanges, "COMPARED_AT_ONCE", 64)
    world = await World.open(DmpSettings(message_bytes_max=1000))
    queue = world.queue(b"q")
    bind_to_be_looked_at(world, b"amq.headers", queue, 500)
    peer = Peer(world).login()
    peer.send(publish("amq.headers", "", b"y" * 2000, properties=EIGHTEEN))
    assert queue.depth + queue.unsynced == 0
    if cut_off:
        peer.session.connection_lost()
    for _ in range(100):
        world.advance(0)
        peer.pump()
        world.settle()
    assert queue.depth == (not cut_off)
    assert len(world.body_logs) == (not cut_off)
    if not cut_off:
        assert world.body(queue.ready.popleft()) == b"y" * 2000


def looks_through(world: World, looked_at: Queue, *names: bytes) -> list[Queue]:
    """Queues whose dead letters take many turns to find their way to `looked_at`."""
    return [world.queue(name, dead_letter_exchange=b"amq.headers") for name in names]


async def test_dead_letters_whose_routes_take_long_are_found_in_turns_and_in_order(
    world: World, looked_at: Queue
) -> None:
    slow, other = looks_through(world, looked_at, b"slow", b"other")
    sent = numbered(3)
    rejected(world, slow, sent, EIGHTEEN)
    assert looked_at.depth == 0
    rejected(world, other, [b"behind"], EIGHTEEN)
    for _ in range(200):
        world.advance(0)
    assert sorted(ready(looked_at)) == sorted([*sent, b"behind"])
    assert [body for body in ready(looked_at) if body != b"behind"] == sent
    assert world.broker.counts.dead_lettered == 4


@pytest.mark.parametrize("gone", ["the queue", "where to"])
async def test_what_goes_while_a_dead_letters_route_is_found(
    world: World, looked_at: Queue, gone: str
) -> None:
    (queue,) = looks_through(world, looked_at, b"slow")
    rejected(world, queue, [b"x"], EIGHTEEN)
    assert looked_at.depth == 0
    world.topology.delete_queue(queue if gone == "the queue" else looked_at)
    for _ in range(100):
        world.advance(0)
    counts = world.broker.counts
    assert (counts.dead_lettered, counts.dead_letters_lost) == ((1, 0) if gone == "the queue" else (0, 1))
    assert looked_at.depth == (gone == "the queue")


async def test_a_transaction_whose_dead_letters_take_long_to_route_lets_others_in(
    world: World, looked_at: Queue
) -> None:
    (queue,) = looks_through(world, looked_at, b"slow")
    world.publish(b"", b"slow", b"x", properties=EIGHTEEN)
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    peer.send(encode(C.Basic.Get(queue="slow"), 1))
    peer.frames()
    peer.send(encode(C.Basic.Reject(1, requeue=False), 1))
    peer.send(encode(C.Tx.Commit(), 1))
    assert (peer.names(), looked_at.depth) == ([], 0)
    for _ in range(100):
        world.advance(0)
        peer.pump()
    assert peer.names() == ["Tx.CommitOk"]
    assert (ready(looked_at), queue.depth, queue.unacked) == ([b"x"], 0, 0)
    assert world.broker.counts.dead_lettered == 1


@pytest.mark.parametrize("crash", ["amid it", "behind it"])
async def test_very_many_durable_messages_are_purged_in_turns_and_whole(
    world: World, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    monkeypatch.setattr(queues, "PURGED_AT_ONCE", 50)
    short_turns(monkeypatch, items=10)
    queue = world.queue(durable=True)
    taker = Taker(no_ack=False, room=2)
    queue.add_consumer(taker)
    world.publish(b"", b"q", *numbered(200), properties=PERSISTENT)
    world.settle()
    assert (queue.depth, queue.unacked) == (198, 2)
    peer = Peer(world).login()
    peer.send(encode(C.Queue.Purge(queue="q"), 1) + publish("", "q", b"behind", properties=PERSISTENT))
    other = Peer(world).login()
    other.send(publish("", "q", b"meanwhile", properties=PERSISTENT))
    world.settle()
    assert (peer.names(), ready(queue)) == ([], [b"behind", b"meanwhile"])
    if crash == "amid it":
        world = await world.again()
        assert set(ready(world.broker.queues[b"q"])) == {*numbered(200), b"behind", b"meanwhile"}
        return
    for _ in range(40):
        world.advance(0)
        peer.pump()
        world.settle()
    ((_, answer), *_) = peer.frames()
    assert (answer.name, answer.message_count) == ("Queue.PurgeOk", 198)
    assert ready(queue) == [b"behind", b"meanwhile"]
    world = await world.again()
    assert set(ready(world.broker.queues[b"q"])) == {*numbered(2), b"meanwhile", b"behind"}

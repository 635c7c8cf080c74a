"""Long work goes in turns that end by the clock: others are served in between, and nothing is lost."""

import errno
import math
import struct
from collections.abc import Callable

import pytest
from pamqp import base, commands

from dmp.amqp.wire import encode
from dmp.data_types import short
from dmp.listener import DmpService
from dmp.queues import Queue
from tests.dmp.amqp_peer import Peer, bodies, closed, publish
from tests.dmp.world import PERSISTENT, Taker, World, head, ready, singles
from tests.support.commits import fail, journal_write

C = commands
EXPIRES_SOON = struct.pack(">H", 0x0100) + short(b"1")
EXPIRES_LATER = struct.pack(">H", 0x0100) + short(b"60000")


@pytest.fixture
def hurried(world: World) -> World:
    """Its clock moves on with each look at it, so every turn is over at the first."""
    world.clock.step = 1.0
    return world


def dying(world: World, name: bytes, **arguments: object) -> Queue:
    return world.queue(name, dead_letter_exchange=b"", dead_letter_key=b"dead", **arguments)


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def rejected(world: World, queue: Queue, sent: list[bytes]) -> None:
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    while queue.held < len(sent):
        world.publish(b"", queue.name, sent[queue.held])
    queue.remove_consumers(taker)
    queue.reject(taker.messages)


async def test_many_dead_letters_are_buried_in_turns_and_in_order(hurried: World) -> None:
    dead = hurried.queue(b"dead")
    sent = numbered(200)
    rejected(hurried, dying(hurried, b"q"), sent)
    first = len(ready(dead))
    hurried.broker.timers.run_due()
    assert 0 < first < len(ready(dead)) < len(sent)
    hurried.finish_work()
    assert ready(dead) == sent
    assert hurried.broker.memory.total_bytes == sum(message.head.cost_bytes for message in singles(dead))


async def test_a_dead_letter_that_goes_to_many_queues_has_a_turn_of_its_own(hurried: World) -> None:
    many = [hurried.queue(b"dead%d" % number) for number in range(100)]
    for queue in many:
        hurried.topology.bind(b"amq.fanout", queue)
    rejected(hurried, hurried.queue(b"q", dead_letter_exchange=b"amq.fanout"), numbered(3))
    for letters in (1, 2, 3):
        assert {queue.depth for queue in many} == {letters}
        hurried.broker.timers.run_due()


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
    world.broker.publish(head(b"q", 1, EXPIRES_SOON), [queue], [b"x"] * 100)
    world.publish(b"", b"q", b"alive")
    world.clock.now += 1
    world.clock.step = 0.01
    late = Taker(room=1)
    queue.add_consumer(late)
    queue.dispatch()
    assert late.bodies == [b"long"]
    late.count = 100
    queue.dispatch()
    assert late.bodies == [b"long"], "behind it stands what is to go in several turns"
    assert queue.depth > 5
    world.finish_work()
    assert late.bodies == [b"long", b"alive"]
    assert world.broker.counts.expired == 100
    assert world.broker.memory.total_bytes == 0


async def test_a_get_behind_what_expires_waits_until_that_is_gone(world: World) -> None:
    peer = Peer(world).login()
    peer.method(C.Queue.Declare(0, "q"))
    queue = world.broker.queues[b"q"]
    world.broker.publish(head(b"q", 1, EXPIRES_SOON), [queue], [b"x"] * 100)
    world.publish(b"", b"q", b"alive")
    peer.frames()
    world.clock.now += 1
    world.clock.step = 0.01
    peer.connection.now = world.clock.now
    peer.method(C.Basic.Get(0, "q", True))
    assert peer.names() == []
    world.finish_work()
    assert bodies(peer.frames()) == [b"alive"]


@pytest.mark.parametrize(
    "request_",
    [publish("", "q", b"x") + publish("", "q", b"xx"), encode(C.Queue.Declare(0, "q"), 1)],
    ids=["messages that differ", "methods"],
)
async def test_a_connection_leaves_others_their_turn(hurried: World, request_: bytes) -> None:
    peer = Peer(hurried).login()
    hurried.queue()
    count = 500
    peer.session.receive(request_ * count)
    turns = 1
    while not peer.connection.reading:
        turns += 1
        peer.wake()
    assert turns > 5
    assert hurried.broker.counts.published + len(peer.frames_now()) in (count, 2 * count)


async def test_very_many_messages_are_given_to_who_has_room_in_turns_and_in_order(hurried: World) -> None:
    queue, sent = hurried.queue(), numbered(5000)
    hurried.publish(b"", b"q", *sent)
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    first = len(taker.bodies)
    assert 0 < first < 1000
    hurried.publish(b"", b"q", b"last")
    queue.dispatch()
    assert len(taker.bodies) == first, "neither what comes nor who asks hurries it"
    hurried.finish_work()
    assert taker.bodies == [*sent, b"last"]
    assert queue.deadline == math.inf


@pytest.mark.parametrize("stops", [Queue.purge, Queue.pause, Queue.delete])
async def test_nothing_goes_on_where_a_queue_stops_amid_what_it_gives_in_turns(
    hurried: World, stops: Callable[[Queue], object]
) -> None:
    queue = hurried.queue()
    hurried.publish(b"", b"q", *numbered(5000))
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    stops(queue)
    hurried.finish_work()
    assert len(taker.bodies) < 1000
    assert queue.deadline == math.inf


async def test_who_comes_when_a_queue_is_resumed_amid_what_it_gives_gets_the_rest(hurried: World) -> None:
    queue, sent = hurried.queue(), numbered(5000)
    hurried.publish(b"", b"q", *sent)
    first, second = Taker(), Taker()
    queue.add_consumer(first)
    queue.dispatch()
    queue.pause()
    queue.remove_consumers(first)
    queue.add_consumer(second)
    queue.resume()
    hurried.finish_work()
    assert [*first.bodies, *second.bodies] == sent


@pytest.mark.parametrize(
    "method", [C.Basic.Ack(0, True), C.Basic.Nack(0, True, True), C.Basic.Nack(0, True, False)]
)
async def test_all_that_a_channel_holds_is_settled_by_one_word(world: World, method: base.Frame) -> None:
    queues = [world.queue(b"q%d" % number, durable=True) for number in range(30)]
    peer = Peer(world).login()
    for queue in queues:
        peer.method(C.Basic.Consume(0, queue.name.decode()))
        world.publish(b"", queue.name, *numbered(20), properties=PERSISTENT)
    world.settle()
    peer.method(C.Channel.Flow(False))
    assert {queue.held for queue in queues} == {20}
    peer.method(method)
    comes_back = isinstance(method, C.Basic.Nack) and method.requeue
    assert {(queue.held, queue.depth) for queue in queues} == {(0, 20 * comes_back)}
    world.settle()
    after = await world.again()
    assert {queue.depth for queue in after.broker.queues.values()} == {20 * comes_back}


def holding(world: World, count: int) -> tuple[Peer, Queue]:
    """A client that holds so many messages of a durable queue."""
    queue = world.queue(b"q", durable=True)
    peer = Peer(world).login()
    peer.method(C.Basic.Consume(0, "q", "tag"))
    world.publish(b"", b"q", *numbered(count), properties=PERSISTENT)
    world.settle()
    world.finish_work()
    peer.frames_now()
    assert queue.held == count
    world.clock.step = 1.0
    return peer, queue


async def test_very_many_are_acknowledged_in_turns_and_input_waits_for_them(world: World) -> None:
    peer, queue = holding(world, 300)
    peer.send(encode(C.Basic.Ack(200, True), 1) + encode(C.Basic.Qos(0, 1), 1))
    assert 100 < queue.held < 300
    assert peer.frames_now() == [], "what comes behind waits"
    world.finish_work()
    assert queue.held == 100
    assert peer.names() == ["Basic.QosOk"]
    peer.method(C.Basic.Ack(200, True))
    assert closed(peer) == ("Channel.Close", 406), "they are settled once"
    world.finish_work()
    assert (queue.held, ready(queue)) == (0, numbered(300)[200:])
    world.settle()
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == numbered(300)[200:]


async def test_what_is_acknowledged_stays_so_where_the_connection_is_lost_amid_it(world: World) -> None:
    peer, queue = holding(world, 300)
    peer.method(C.Basic.Ack(200, True))
    peer.lose()
    assert 0 < queue.held < 300
    assert ready(queue) != numbered(300)[200:], "not all is back yet"
    world.finish_work()
    assert (queue.held, ready(queue)) == (0, numbered(300)[200:])
    assert world.broker.counts.acknowledged == 200


async def test_very_many_come_back_in_turns_and_nobody_is_given_some_before_all_are_there(
    world: World,
) -> None:
    peer, queue = holding(world, 300)
    other = Taker(no_ack=False)
    queue.add_consumer(other)
    peer.lose()
    queue.dispatch()
    assert 0 < queue.depth < 300
    assert other.bodies == []
    world.finish_work()
    assert other.bodies == numbered(300)


@pytest.mark.parametrize(
    "method", [C.Basic.Ack(300, True), C.Basic.Nack(300, True, True), C.Basic.Nack(300, True, False)]
)
async def test_a_queue_may_be_deleted_amid_what_is_settled_in_turns(world: World, method: base.Frame) -> None:
    peer, queue = holding(world, 300)
    peer.method(method)
    assert 0 < queue.held < 300
    world.topology.delete_queue(queue)
    world.finish_work()
    assert world.broker.memory.total_bytes == 0
    assert "Basic.QosOk" in [value.name for _, value in peer.say(C.Basic.Qos(0, 1))]


async def test_what_is_acknowledged_is_written_before_the_server_has_stopped(world: World) -> None:
    peer, queue = holding(world, 300)
    peer.method(C.Basic.Ack(300, True))
    assert queue.held > 0
    DmpService(world.broker).drain()
    world.store.commit_pending()
    after = await world.again()
    assert ready(after.broker.queues[b"q"]) == []


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
async def test_what_is_deleted_goes_with_its_bindings(world: World, deletes: base.Frame) -> None:
    broker = world.broker
    peer = await many_bindings(world, "x", 20)
    assert peer.say(deletes) == []
    left = 0 if isinstance(deletes, C.Queue.Delete) else 1
    assert (broker.bindings, b"other" in broker.exchanges) == (left, bool(left)), (
        "it goes with its last binding"
    )
    world.settle()
    assert peer.names() == [f"{deletes.name}Ok"]
    after = await world.again()
    assert after.broker.bindings == left


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_deletion_that_did_not_reach_the_disk_is_not_said_to_be_done(world: World, code: int) -> None:
    peer = await many_bindings(world, "x", 20)
    peer.session.receive(encode(C.Queue.Delete(0, "q"), 1))
    fail(world.disk, code, journal_write, times=1)
    world.settle()
    assert peer.names() == ["Connection.Close"]
    assert world.broker.bindings == 0


@pytest.mark.parametrize("ends", ["purge", "delete"])
@pytest.mark.parametrize("priority_max", [0, 3])
async def test_many_messages_are_gone_at_once_and_freed_in_turns(
    hurried: World, ends: str, priority_max: int
) -> None:
    queue, world = hurried.queue(priority_max=priority_max), hurried
    many = 1000
    world.publish(b"", b"q", *numbered(many))
    whole_bytes = world.broker.memory.total_bytes
    count, _ = world.topology.purge_queue(queue) if ends == "purge" else world.topology.delete_queue(queue)
    assert (count, queue.depth) == (many, 0)
    assert 0 < world.broker.memory.total_bytes <= whole_bytes, "as long as they are there"
    world.finish_work()
    assert world.broker.memory.total_bytes == 0


@pytest.mark.parametrize("crash", ["before it", "behind it"])
async def test_durable_messages_are_purged_whole(world: World, crash: str) -> None:
    queue = world.queue(durable=True)
    taker = Taker(no_ack=False, room=2)
    queue.add_consumer(taker)
    world.publish(b"", b"q", *numbered(200), properties=PERSISTENT)
    world.settle()
    assert (queue.depth, queue.held) == (198, 2)
    peer = Peer(world).login()
    peer.send(encode(C.Queue.Purge(queue="q"), 1) + publish("", "q", b"behind", properties=PERSISTENT))
    assert (peer.names(), queue.depth) == ([], 0), "it is answered once it is on the disk"
    if crash == "before it":
        world = await world.again()
        assert set(ready(world.broker.queues[b"q"])) == set(numbered(200))
        return
    world.settle()
    ((_, answer), *_) = peer.frames()
    assert (answer.name, answer.message_count) == ("Queue.PurgeOk", 198)
    assert ready(queue) == [b"behind"]
    world = await world.again()
    assert set(ready(world.broker.queues[b"q"])) == {*numbered(2), b"behind"}


async def test_what_the_store_refuses_reaches_none_of_several_queues(world: World) -> None:
    queues = [world.queue(b"q%d" % number, durable=number > 0) for number in range(3)]
    for queue in queues:
        world.topology.bind(b"amq.fanout", queue)
    world.settle()
    world.break_disk()
    world.settle()
    world.publish(b"amq.fanout", b"", b"x", properties=PERSISTENT)
    world.settle()
    assert [queue.depth for queue in queues] == [1, 0, 0], "what needs no disk is there"
    assert world.broker.memory.total_bytes == sum(message.head.cost_bytes for message in queues[0].row.ready)

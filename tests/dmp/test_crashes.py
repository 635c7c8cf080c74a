"""A bug in what a connection, or a queue, does on somebody else's time costs nobody else."""

from operator import attrgetter

import pytest
from pamqp import commands

from dmp.amqp import channel
from dmp.feed import Feed
from dmp.queue_log import QueueLog
from dmp.queues import Queue
from shared.queues.runs import Ready, Run
from tests.dmp.amqp_peer import Peer, bodies
from tests.dmp.peers import Application, packed
from tests.dmp.peers import bodies as feed_bodies
from tests.dmp.world import PERSISTENT, World
from tests.support.connections import MemoryConnection
from tests.support.crashing import BugError, failing, failing_once


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What `dmp.amqp.channel` calls by that name: its first call raises."""
    function = attrgetter(name)(channel)
    monkeypatch.setattr(f"{channel.__name__}.{name}", failing_once(function))


async def consumers(world: World, *, no_ack: bool = False) -> tuple[Peer, Peer, Peer]:
    """A publisher with confirms, and two that consume the durable queue that it has declared."""
    publisher, one, other = (Peer(world).login() for _ in range(3))
    publisher.ask(commands.Queue.Declare(queue="q", durable=True))
    publisher.ask(commands.Confirm.Select())
    for peer in (one, other):
        peer.ask(commands.Basic.Consume(queue="q", no_ack=no_ack))
    return publisher, one, other


@pytest.mark.parametrize("properties", [b"\0\0", PERSISTENT], ids=["memory", "disk"])
@pytest.mark.parametrize("amid", ["Consumer.room", "deliver_before"])
async def test_a_consumer_that_fails_leaves_its_messages_to_the_others(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    crashed: list[MemoryConnection],
    amid: str,
    properties: bytes,
) -> None:
    publisher, one, other = await consumers(world)
    fail_once(monkeypatch, amid)
    publisher.publish("", "q", b"a", b"b", b"c", properties=properties)
    world.settle()
    assert crashed == [one.connection]
    one.lose()
    assert sorted(bodies(other.frames())) == [b"a", b"b", b"c"]
    assert publisher.names() == ["Basic.Ack"]
    assert publisher.ask(commands.Queue.Declare(queue="q", passive=True)).consumer_count == 1


async def test_a_channel_whose_confirms_fail_leaves_the_others_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch, crashed: list[MemoryConnection]
) -> None:
    one, other = Peer(world).login(), Peer(world).login()
    one.ask(commands.Queue.Declare(queue="q", durable=True))
    for peer in (one, other):
        peer.ask(commands.Confirm.Select())
    for peer in (one, other):
        peer.publish("", "q", b"x", properties=PERSISTENT)
    fail_once(monkeypatch, "Confirms.advance")
    world.settle()
    assert crashed == [one.connection]
    assert other.names() == ["Basic.Ack"]


@pytest.mark.parametrize("name", ["room", "deliver_run", "deliver_whole"])
async def test_a_feed_that_fails_leaves_the_other_feeds_and_the_sink_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, crashed: list[MemoryConnection], name: str
) -> None:
    application = Application(world)
    queues = [application.queue(queue, b"amq.topic") for queue in (b"a", b"b")]
    leases = [application.feed_lease(queue.name) for queue in queues]
    monkeypatch.setattr(Feed, name, failing_once(getattr(Feed, name)))
    one, other = (application.open(lease) for lease in leases)
    if name == "deliver_run":
        world.publish(b"amq.topic", b"k", b"x")
    sink = application.sink(b"amq.topic")
    assert sink.say(packed(b"y")) == b""
    assert crashed == [one.connection]
    one.close()
    expected = [b"x", b"y"] if name == "deliver_run" else [b"y"]
    assert feed_bodies(other.read + other.connection.taken()) == expected
    assert not sink.connection.finished


class Unfillable(Ready):
    def add(self, run: Run, priority: int = 0) -> None:
        raise BugError


@pytest.mark.parametrize("properties", [b"\0\0", PERSISTENT], ids=["memory", "disk"])
async def test_a_queue_that_fails_leaves_the_other_queues_their_messages(
    world: World, properties: bytes
) -> None:
    publisher = Peer(world).login()
    publisher.ask(commands.Confirm.Select())
    for name in ("bad", "good"):
        publisher.ask(commands.Queue.Declare(queue=name, durable=True))
        publisher.ask(commands.Queue.Bind(queue=name, exchange="amq.fanout"))
    bad = world.broker.queues[b"bad"]
    bad.row.ready = Unfillable()
    publisher.publish("amq.fanout", "", b"1", properties=properties)
    world.settle()
    assert publisher.names() == ["Basic.Ack"]
    assert publisher.ask_get("good") == b"1"
    assert world.broker.counts.crashes == 1
    bad.row.ready = bad.ready
    publisher.publish("", "bad", b"3")
    publisher.frames()
    assert publisher.ask_get("bad") == b"3"


async def test_a_queue_that_fails_as_time_passes_leaves_the_others_theirs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(world).login()
    for name in ("bad", "good"):
        peer.ask(commands.Queue.Declare(queue=name, arguments={"x-message-ttl": 1000}))
        peer.publish("", name, b"x")
    monkeypatch.setattr(Queue, "expire", failing(Queue.expire, lambda queue, *_: queue.name == b"bad"))
    world.advance(2)
    assert world.broker.counts.crashes == 1
    assert world.broker.counts.expired == 1


async def test_a_log_that_fails_leaves_the_others_what_they_have_to_write(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = Peer(world).login()
    for name in ("bad", "good"):
        peer.ask(commands.Queue.Declare(queue=name, durable=True))
        peer.publish("", name, b"x", properties=PERSISTENT)
    world.settle()
    monkeypatch.setattr(QueueLog, "flush", failing_once(QueueLog.flush))
    for name in (b"bad", b"good"):
        world.broker.queues[name].get(no_ack=True)
    world.settle()
    assert world.broker.counts.crashes == 1
    world = await world.again()
    assert [len(world.broker.queues[name].row.ready) for name in (b"bad", b"good")] == [1, 0]

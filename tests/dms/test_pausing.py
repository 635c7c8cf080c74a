"""A queue that is paused: it takes messages and delivers none, over a restart too, until it is resumed."""

import pytest
import structlog

from dms.engine import Queue
from dms.settings import DmsSettings
from dms.wire import Status
from tests.dms.world import MEMORY, World, deliveries, statuses, with_queue
from tests.support.fake_disk import Operation


def fail(operation: Operation) -> None:
    raise OSError(5, "disk")


def paused(world: World, name: str = "orders", *, yes: bool = True) -> Queue:
    queue = world.engine.queues[name.encode()]
    world.engine.set_paused(queue, yes)
    world.settle()
    return queue


@pytest.mark.parametrize("settings", [MEMORY, DmsSettings()], ids=["memory", "disk"])
def test_a_paused_queue_takes_messages_and_delivers_them_once_it_is_resumed(settings: DmsSettings) -> None:
    world = World(settings)
    peer = with_queue(world)
    paused(world)
    paused(world)
    assert statuses(peer.produce("orders", b"1", b"2")) == [Status.OK, Status.OK]
    assert peer.consume("orders") == []
    paused(world, yes=False)
    ((held, body),) = deliveries(peer.take())
    assert body == b"1"
    assert statuses(peer.ack(held)) == [Status.OK]
    assert [body for _, body in peer.consume("orders")] == [b"2"]


def test_what_is_held_of_a_paused_queue_comes_back_to_it_and_waits() -> None:
    world = World()
    peer = with_queue(world)
    peer.produce("orders", b"1", b"2")
    ((held, _),) = peer.consume("orders")
    queue = paused(world)
    peer.nack(held)
    peer.lose()
    other = world.connect()
    assert other.consume("orders", 2) == []
    assert queue.depth == 2
    paused(world, yes=False)
    assert [body for _, body in deliveries(other.take())] == [b"1", b"2"]


def test_a_durable_queue_stays_paused_over_crashes_and_snapshots_until_it_is_resumed() -> None:
    world = World()
    with_queue(world).produce("orders", b"1")
    queue = paused(world)
    assert queue.log is not None
    queue.log.snapshot()
    world.settle()
    with structlog.testing.capture_logs():
        world.kill()
    assert world.connect().consume("orders") == []
    queue = paused(world, yes=False)
    world.kill()
    assert [body for _, body in world.connect().consume("orders")] == [b"1"]


def test_messages_of_a_paused_queue_expire() -> None:
    world = World()
    peer = with_queue(world, options=b'{"ttl_ms": 1000}')
    queue = paused(world)
    peer.produce("orders", b"1")
    world.advance(2)
    assert queue.depth == 0


def test_a_pause_that_the_disk_does_not_take_is_none() -> None:
    world = World()
    peer = with_queue(world)
    peer.produce("orders", b"1")
    world.disk.before = fail
    queue = paused(world)
    assert not queue.paused
    assert [body for _, body in peer.consume("orders")] == [b"1"]

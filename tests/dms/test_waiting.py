"""A CONSUME that waits: whose turn it is, how long, and what it holds up."""

from dms import wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import NAME, World, deliveries, statuses, with_queue


def test_a_consume_waits_thirty_seconds_and_no_message_is_lost_to_it(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.ask(Type.CONSUME, NAME, 11)
    world.advance(20)
    peer.ask(Type.CONSUME, NAME, 12)
    other.consume("orders")
    world.advance(9.9)
    assert peer.take() == []
    world.advance(0.1)
    assert [(f[0], f[2], f[3]) for f in peer.take()] == [(Type.ERROR, Status.TIMEOUT, 11)]
    peer.produce("orders", b"a")
    peer.produce("orders", b"b")
    assert [body for _, body in deliveries(other.take())] == [b"b"]
    world.advance(100)
    assert peer.take() == []


def test_consumes_that_end_in_vain_leave_nothing_behind(world: World) -> None:
    peer = with_queue(world)
    for _ in range(5):
        assert peer.consume("orders") == []
        world.advance(30)
        assert statuses(peer.take()) == [Status.TIMEOUT]
    assert len(world.engine.queues[b"orders"].line) <= 1
    assert world.engine.counts.timeouts == 5


def test_too_many_credits_are_refused() -> None:
    world = World(DmsSettings(persist=False, credits_max=5))
    peer = with_queue(world)
    peer.send(wire.pack(Type.CONSUME, 3, NAME) * 8)
    assert statuses(peer.take()) == [Status.INTERNAL] * 3

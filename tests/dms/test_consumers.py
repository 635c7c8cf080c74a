"""The consumers of a queue are the connections that consume it, whether they wait or are busy."""

from dms import wire
from dms.wire import Type
from tests.dms.world import World, with_queue


def consumers(world: World, name: str = "orders") -> int:
    row = world.call("queues", queue=name)[0]
    assert isinstance(row["consumers"], int)
    return row["consumers"]


def test_a_connection_counts_once_while_it_waits_and_while_it_is_busy(world: World) -> None:
    peer = with_queue(world)
    assert consumers(world) == 0
    peer.consume("orders", 8)
    assert consumers(world) == 1
    world.connect().produce("orders", *[b"x"] * 8)
    assert len(peer.take()) == 8
    assert consumers(world) == 1, "all its CONSUMEs are answered"
    other = world.connect()
    other.consume("orders")
    assert consumers(world) == 2


def test_a_queue_that_is_made_anew_has_the_consumers_that_came_since(world: World) -> None:
    peer = with_queue(world)
    peer.consume("orders")
    peer.delete("orders")
    peer.create("orders")
    assert consumers(world) == 0
    peer.send(wire.pack(Type.CONSUME, 7, wire.pack_name("orders")))
    assert consumers(world) == 1

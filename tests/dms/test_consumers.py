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


def test_a_connection_that_leaves_or_turns_to_another_queue_counts_no_longer(world: World) -> None:
    first, second, third = (with_queue(world) if not n else world.connect() for n in range(3))
    first.create("bills")
    first.produce("orders", b"1", b"2", b"3")
    for peer in (first, second, third):
        assert peer.consume("orders")
    assert consumers(world) == 3
    first.consume("bills")
    assert (consumers(world), consumers(world, "bills")) == (2, 1)
    second.ask(Type.DISCONNECT)
    third.lose()
    assert consumers(world) == 0


def test_a_queue_that_is_made_anew_has_the_consumers_that_came_since(world: World) -> None:
    peer = with_queue(world)
    peer.consume("orders")
    peer.delete("orders")
    peer.create("orders")
    assert consumers(world) == 0
    peer.send(wire.pack(Type.CONSUME, 7, wire.pack_name("orders")))
    assert consumers(world) == 1

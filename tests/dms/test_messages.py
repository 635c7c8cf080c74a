"""Messages: produced, delivered, acknowledged, given back."""

import attrs
import pytest

from dms import wire
from dms.wire import DELIVERY_ID_BIT, Status, Type
from tests.dms.world import NAME, World, statuses, with_queue


def test_an_ack_may_name_its_queue_and_no_other(world: World) -> None:
    peer = with_queue(world)
    peer.create("other")
    peer.produce("orders", b"a", b"b")
    (one, _), (two, _) = peer.consume("orders", 2)
    assert statuses(peer.ask(Type.ACK, wire.pack_name("other"), one)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.ACK, NAME, one)) == [Status.OK]
    assert statuses(peer.ask(Type.NACK, wire.pack_name("other"), two)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.NACK, NAME, two)) == [Status.OK]


def test_another_connections_delivery_cannot_be_acknowledged(world: World) -> None:
    peer, other = with_queue(world), world.connect()
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    assert statuses(other.ack(held)) == [Status.PROTOCOL_ERROR]
    assert statuses(other.nack(held)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ack(held)) == [Status.OK]


def test_acks_of_what_is_not_held_are_refused_in_their_places(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    assert [(f[0], f[3]) for f in peer.ack(1, held, 2)] == [
        (Type.ERROR, 1),
        (Type.ACK_OK, held),
        (Type.ERROR, 2),
    ]


def test_produces_to_several_queues_are_answered_in_their_order(world: World) -> None:
    peer = with_queue(world, "a")
    peer.create("small", b'{"depth":1}')
    asked = ["a", "small", "a", "none", "small", "a", "small", "a", "small"]
    names = [wire.pack_name(name) for name in asked]
    peer.send(
        b"".join(wire.pack(Type.PRODUCE, 70 + n, name + b"%d" % n) for n, name in enumerate(names, start=1))
    )
    full, none, fine = Status.QUEUE_FULL, Status.QUEUE_NOT_FOUND, Status.OK
    assert [(frame[3] - 70, frame[2]) for frame in peer.take()] == list(
        enumerate((fine, fine, fine, none, full, fine, full, fine, full), start=1)
    )
    assert [body for _, body in peer.consume("a", 4)] == [b"1", b"3", b"6", b"8"]
    assert [body for _, body in world.connect().consume("small")] == [b"2"]


def test_produces_go_to_the_queue_that_has_the_name_now(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"a", b"b")
    other = world.connect()
    assert statuses(other.ask(Type.DELETE_QUEUE, NAME)) == [Status.OK]
    assert statuses(peer.produce("orders", b"c", b"d")) == [Status.QUEUE_NOT_FOUND] * 2
    other.create("orders")
    assert statuses(peer.produce("orders", b"e", b"f")) == [Status.OK] * 2
    assert [body for _, body in other.consume("orders", 3)] == [b"e", b"f"]


@pytest.mark.parametrize("count", [12, 4], ids=["one each", "three each"])
def test_a_queue_above_its_depth_refuses_its_part_of_a_run_to_many(world: World, count: int) -> None:
    peer = world.connect()
    names = "abcdefghijkl"[:count]
    for name in names:
        peer.create(name)
    peer.produce("a", b"1", b"2", b"3")
    queue = world.engine.queues[b"a"]
    queue.options = attrs.evolve(queue.options, depth=1)
    turns = [names[number % count] for number in range(12)]
    peer.send(b"".join(wire.pack(Type.PRODUCE, 1, wire.pack_name(name) + b"x") for name in turns))
    expected = [Status.QUEUE_FULL if name == "a" else Status.OK for name in turns]
    assert statuses(peer.take()) == expected
    assert world.depths() == {name: 3 if name == "a" else 12 // count for name in names}
    assert world.engine.counts.produced == 3 + expected.count(Status.OK)


def test_delivery_ids_begin_again_past_those_in_use(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", *[b"x"] * 3)
    ((held, _),) = peer.consume("orders")
    assert held == DELIVERY_ID_BIT
    world.engine.delivery_ids.next = (1 << 32) - 1
    given = [number for _ in range(2) for number, _ in peer.consume("orders")]
    assert given == [(1 << 32) - 1, DELIVERY_ID_BIT + 1]

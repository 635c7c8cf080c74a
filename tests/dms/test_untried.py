"""What counts as a delivery where a consumer leaves: only what it could have tried."""

import pytest

from dms import wire
from dms.wire import Type
from tests.dms.world import NAME, Peer, World, with_queue

BODIES = [b"%d" % number for number in range(8)]


def tries(world: World) -> list[int]:
    return [row["properties"]["deliveries"] for row in world.call("peek", queue="orders")]


def deliver(world: World, *, read: int, counts: str = "all") -> Peer:
    """A consumer to which 8 messages are written, of which it was sent `read`."""
    peer, other = with_queue(world, options=b'{"loss_counts":"%b"}' % counts.encode()), world.connect()
    peer.consume("orders", len(BODIES))
    for body in BODIES[:read]:
        other.produce("orders", body)
    assert len(peer.take()) == read
    for body in BODIES[read:]:
        other.produce("orders", body)
    return peer


@pytest.mark.parametrize("read", [0, 3, 8])
@pytest.mark.parametrize("how", ["ends its input", "is lost"])
def test_a_message_that_was_not_sent_counts_no_delivery(world: World, read: int, how: str) -> None:
    peer = deliver(world, read=read)
    if how == "is lost":
        peer.lose()
    else:
        peer.close_input()
    assert tries(world) == [1] * read + [0] * (8 - read)


@pytest.mark.parametrize("read", [0, 3, 8])
@pytest.mark.parametrize("how", ["ends its input", "is lost", "DISCONNECT"])
@pytest.mark.parametrize("counts", ["oldest", "none"])
def test_of_what_was_held_the_oldest_counts_or_none(world: World, read: int, how: str, counts: str) -> None:
    peer = deliver(world, read=read, counts=counts)
    if how == "is lost":
        peer.lose()
    elif how == "DISCONNECT":
        peer.ask(Type.DISCONNECT)
        read = 8  # all was sent
    else:
        peer.close_input()
    assert tries(world) == [int(read > 0 and counts == "oldest")] + [0] * 7


def test_a_message_that_crashes_its_workers_takes_no_other_along(world: World) -> None:
    maker = with_queue(world, options=b'{"max_deliveries":3,"dead_letter":"dead"}')
    maker.create("dead")
    maker.produce("orders", b"poison", *BODIES)
    for _ in range(5):
        worker = world.connect()
        held = worker.consume("orders", 9)
        if held and held[0][1] == b"poison":
            worker.lose()
    assert world.depths() == {"dead": 1, "orders": 8}


def test_a_message_that_was_sent_in_part_counts_no_delivery(world: World) -> None:
    peer = deliver(world, read=0)
    frame = len(wire.pack(Type.DELIVER, 0, BODIES[0]))
    peer.connection.outbox.advance(3 * frame + 5)
    peer.lose()
    assert tries(world) == [1] * 3 + [0] * 5


def test_after_disconnect_only_the_oldest_delivery_counts(world: World) -> None:
    peer = deliver(world, read=8)
    peer.ask(Type.DISCONNECT)
    assert tries(world) == [1] + [0] * 7


def test_after_disconnect_a_message_that_never_succeeds_dies_at_last(world: World) -> None:
    maker = with_queue(world, options=b'{"max_deliveries":3}')
    maker.produce("orders", b"poison")
    for _ in range(3):
        peer = world.connect()
        assert peer.consume("orders", 4)
        peer.ask(Type.DISCONNECT)
    assert world.depths() == {"orders": 0}


@pytest.mark.parametrize("how", ["DISCONNECT", "ends its input", "is lost"])
def test_a_worker_that_has_left_takes_nothing_and_burns_no_try(world: World, how: str) -> None:
    worker = with_queue(world, options=b'{"max_deliveries":1}')
    worker.consume("orders", 8)
    if how == "DISCONNECT":
        worker.ask(Type.DISCONNECT)
    elif how == "is lost":
        worker.lose()
    else:
        worker.close_input()
    other = world.connect()
    other.produce("orders", *BODIES)
    assert tries(world) == [0] * 8
    assert [body for _, body in other.consume("orders", 8)] == BODIES


@pytest.mark.parametrize("count", [0, 5])
def test_what_was_not_tried_is_so_after_a_restart_too(count: int) -> None:
    world = World()
    peer = deliver(world, read=count)
    peer.lose()
    world.advance(5)
    world.kill()
    assert tries(world) == [1] * count + [0] * (8 - count)


def test_a_run_that_was_not_sent_counts_no_delivery(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", *BODIES)
    peer.send(wire.pack(Type.CONSUME, 7, NAME) * 8)
    peer.lose()
    assert tries(world) == [0] * 8

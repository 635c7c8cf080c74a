"""What lists and metrics say of deliveries: those after the first, who holds what, and which keys wait."""

from typing import Any

import pytest

from dms.admin import Admin
from dms.wire import DELIVERY_ID_BIT
from tests.dms.world import World, with_queue


def held(world: World) -> dict[str, int]:
    """The number of the oldest held delivery, by queue."""
    _, consumers = Admin(world.engine).objects
    assert consumers.holders is not None
    queues = world.engine.queues.values()
    found = [(given, oldest) for _, given, oldest in consumers.holders()]
    assert all(given == world.engine.counts.delivered for given, _ in found)
    return {
        queue.text: min(oldest[queue] for _, oldest in found if queue in oldest)
        for queue in queues
        if any(queue in oldest for _, oldest in found)
    }


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_oldest_held_delivery_is_known_by_queue_also_when_ids_begin_anew(
    world: World, wrapped: bool
) -> None:
    peer = with_queue(world)
    if wrapped:
        world.engine.delivery_ids.next = 2 * DELIVERY_ID_BIT - 5
    peer.create("others")
    peer.produce("orders", *(b"%d" % number for number in range(5)))
    peer.produce("others", b"1")
    ids = [number for number, _ in peer.consume("orders", 5)]
    assert held(world) == {"orders": 0}
    ((other, _),) = peer.consume("others")
    assert held(world) == {"orders": 0, "others": 5}
    peer.ack(ids[1])
    peer.ack(ids[0])
    assert held(world) == {"orders": 2, "others": 5}
    peer.ack(other, *ids[2:])
    assert held(world) == {}


def test_deliveries_after_the_first_are_counted_by_number_and_ready_keys_where_keys_count(
    world: World,
) -> None:
    peer = with_queue(world, options=b'{"per_key":1}')
    peer.create("plain")
    for key in "aab":
        peer.produce_with("orders", b"job", key=key)
    peer.produce("orders", b"row")
    for _ in range(11):
        for delivery, _ in peer.consume("orders", 3):
            peer.nack(delivery)
    rows: dict[str, Any] = {row["name"]: row for row in world.call("queues")}
    assert (rows["orders"]["ready_keys"], rows["plain"]["ready_keys"]) == (2, None)
    by_number = rows["orders"]["redelivered"]
    assert (by_number["2"], by_number["9"], rows["plain"]["redelivered"]) == (3, 3, {})
    assert dict(world.engine.counts.redelivered) == by_number
    assert world.engine.counts.delivered - by_number.total() == 3, "the rest were first ones"


def test_jobs_count_among_what_comes_and_goes_and_have_an_age_since_they_are_ready(world: World) -> None:
    peer = with_queue(world)
    (queue,) = world.engine.queues.values()
    queues, _ = Admin(world.engine).objects
    assert queues.totals is not None
    came, left, _ = queues.totals(queue)
    peer.produce_with("orders", b"late", delay_ms=3000)
    peer.produce("orders", b"row")
    assert queues.totals(queue)[:2] == (came + 2, left)
    assert queues.values["oldest_seconds"](queue) is None
    world.advance(5)
    assert queues.values["oldest_seconds"](queue) == pytest.approx(2, abs=0.1)
    for number, _ in peer.consume("orders", 2):
        peer.ack(number)
    assert queues.values["oldest_seconds"](queue) is None
    assert queues.totals(queue)[:2] == (came + 2, left + 2)


def test_a_job_that_is_on_disk_alone_has_an_age() -> None:
    world = World()
    with_queue(world).produce_with("orders", b"job")
    world.advance(4)
    world.unix_ms += int(1000 * world.now)  # the world's clock begins at the start
    world.kill()
    queues, _ = Admin(world.engine).objects
    (queue,) = world.engine.queues.values()
    assert queues.values["oldest_seconds"](queue) == 4

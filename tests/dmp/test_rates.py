"""A queue's rate (`x-rate`): so many deliveries a second, whoever takes."""

import pytest
from pamqp import commands

from shared.rates import Rate
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import row
from tests.dmp.world import PERSISTENT, Taker, World


@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("no_ack", [True, False])
async def test_a_queue_gives_out_so_many_a_second_and_a_second_of_them_at_once(
    world: World, consumers: int, no_ack: bool
) -> None:
    queue = world.queue(rate=Rate(10))
    takers = [Taker(no_ack=no_ack) for _ in range(consumers)]
    for taker in takers:
        queue.add_consumer(taker)
    world.publish(b"", b"q", *[b"%02d" % number for number in range(40)])
    world.advance(0)

    def given() -> int:
        return sum(len(taker.bodies) for taker in takers)

    assert given() == 10, "the bucket starts full"
    for tenth in range(1, 11):
        world.advance(0.1)
        assert given() == pytest.approx(10 + tenth, abs=1)
    for _ in range(25):
        world.advance(0.1)
    assert given() == 40
    world.advance(10)
    assert sorted(body for taker in takers for body in taker.bodies) == [b"%02d" % n for n in range(40)]
    world.publish(b"", b"q", *[b"x"] * 30)
    world.advance(0)
    assert given() == 50, "no more than a second of it was saved"


async def test_the_next_comes_in_time_also_where_there_is_one_in_some_seconds(world: World) -> None:
    queue = world.queue(rate=Rate(0.5))
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    world.publish(b"", b"q", b"1", b"2", b"3")
    assert taker.bodies == [b"1"]
    world.advance(1.9)
    assert taker.bodies == [b"1"]
    world.advance(0.2)
    assert taker.bodies == [b"1", b"2"]


async def test_a_consumer_that_has_no_room_is_not_waited_for_by_the_clock(world: World) -> None:
    queue = world.queue(rate=Rate(10))
    taker = Taker(no_ack=False, room=0)
    queue.add_consumer(taker)
    world.publish(b"", b"q", *[b"x"] * 5)
    world.advance(5)
    assert world.broker.timers.next > world.clock.now
    taker.count = 5
    queue.dispatch()
    assert len(taker.bodies) == 5


async def test_a_get_is_a_delivery_and_the_rate_is_there_after_a_restart(world: World) -> None:
    peer = Peer(world).login()
    peer.ask(commands.Queue.Declare(queue="q", durable=True, arguments={"x-rate": "1/s"}))
    world.publish(b"", b"q", b"1", b"2", properties=PERSISTENT)
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert row(world, queue)["settings"]["x-rate"] == "1/s"
    peer = Peer(world).login()
    assert peer.ask_get("q") == b"1"
    assert [value.name for _, value in peer.say(commands.Basic.Get(0, "q", True))] == ["Basic.GetEmpty"]
    world.advance(1.1)
    assert peer.ask_get("q") == b"2"

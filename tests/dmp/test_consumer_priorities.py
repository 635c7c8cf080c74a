"""`x-priority` of consumers: who is served first."""

from collections.abc import Sequence

import pytest
from pamqp import commands

from dmp.queues import Queue
from tests.dmp.amqp_peer import Peer, bodies, closed, opened
from tests.dmp.world import Taker, World

C = commands


def consuming(queue: Queue, *priorities: int, room: int = 2) -> Sequence[Taker]:
    takers = [Taker(no_ack=False, room=room, priority=priority) for priority in priorities]
    for taker in takers:
        queue.add_consumer(taker)
    return takers


async def test_the_highest_is_served_while_it_has_credit_and_equals_take_turns(world: World) -> None:
    queue = world.queue()
    low, high, other, lowest = consuming(queue, 0, 7, 7, -3)
    world.publish(b"", b"q", *[b"%d" % number for number in range(8)])
    assert [taker.bodies for taker in (high, other)] == [[b"0", b"2"], [b"1", b"3"]]
    assert [taker.bodies for taker in (low, lowest)] == [[b"4", b"5"], [b"6", b"7"]]
    low.count = other.count = 1
    queue.dispatch()
    world.publish(b"", b"q", b"8", b"9", b"10")
    assert (other.bodies[2:], low.bodies[2:], len(queue.row.ready)) == ([b"8"], [b"9"], 1)
    high.count = 5
    queue.dispatch()
    world.publish(b"", b"q", b"11")
    assert high.bodies[2:] == [b"10", b"11"]


async def test_one_that_comes_or_goes_changes_who_is_first(world: World) -> None:
    queue = world.queue()
    (low,) = consuming(queue, 1)
    world.publish(b"", b"q", b"a")
    (high,) = consuming(queue, 2)
    world.publish(b"", b"q", b"b")
    queue.remove_consumers(high)
    world.publish(b"", b"q", b"c")
    assert (low.bodies, high.bodies) == ([b"a", b"c"], [b"b"])


async def test_a_single_active_consumer_stays_until_it_goes_and_the_highest_is_next(world: World) -> None:
    queue = world.queue(single_active=True)
    first, low, high = consuming(queue, 1, 2, 3, room=9)
    for body in (b"a", b"b"):
        world.publish(b"", b"q", body)
    queue.remove_consumers(first)
    world.publish(b"", b"q", b"c")
    assert (first.bodies, low.bodies, high.bodies) == ([b"a", b"b"], [], [b"c"])


async def test_an_immediate_message_goes_to_a_lower_priority_where_the_higher_has_no_room() -> None:
    world, low = await opened()
    high = Peer(world).login()
    low.ask(C.Queue.Declare(0, "q"))
    high.ask(C.Basic.Qos(0, 1))
    high.ask(C.Basic.Consume(0, "q", arguments={"x-priority": 10}))
    low.ask(C.Basic.Consume(0, "q"))
    publisher = Peer(world).login()
    publisher.publish("", "q", b"1", b"2", b"3", immediate=True)
    assert publisher.frames() == []
    assert (bodies(high.frames()), bodies(low.frames())) == ([b"1"], [b"2", b"3"])


@pytest.mark.parametrize("priority", ["1", 1.5, True, None, [1]])
async def test_a_priority_that_is_no_whole_number_costs_the_channel(peer: Peer, priority: object) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.method(C.Basic.Consume(0, "q", arguments={"x-priority": priority}))
    assert closed(peer) == ("Channel.Close", 406)

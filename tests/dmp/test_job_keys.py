"""Keys of messages: so many of a key at a time (`x-per-key`), and keys by turns (`x-fair`)."""

from typing import Any

import pytest
from pamqp import commands

from dmp.queues import Queue
from dmp.shown_properties import read
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.world import Taker, World, ready


def properties(key: Any, header: str = "x-key", priority: int = 0) -> bytes:
    headers = {} if key is None else {header: key}
    return read({"properties": {"headers": headers, "priority": priority}}, persistent=True)


def publish(world: World, *messages: tuple[Any, bytes], **options: Any) -> None:
    for key, body in messages:
        world.publish(b"", b"q", body, properties=properties(key, **options))
    world.settle()


def taken_by(queue: Queue, room: int = 100) -> Taker:
    taker = Taker(no_ack=False, room=room)
    queue.add_consumer(taker)
    queue.dispatch()
    return taker


@pytest.mark.parametrize("durable", [False, True])
async def test_one_of_a_key_at_a_time_is_order_for_each_key(world: World, durable: bool) -> None:
    queue = world.queue(durable=durable, per_key=1)
    publish(world, ("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("a", b"a3"), (None, b"n1"), (None, b"n2"))
    takers = [taken_by(queue), taken_by(queue)]
    held = {run.bodies[0]: run for taker in takers for run in taker.messages}
    assert sorted(held) == [b"a1", b"b1", b"n1", b"n2"]
    queue.settle([held[b"a1"]])
    world.advance(0)
    assert sorted(body for taker in takers for body in taker.bodies)[:2] == [b"a1", b"a2"]
    a2 = next(run for taker in takers for run in taker.messages if run.bodies == [b"a2"])
    queue.requeue([a2])
    queue.dispatch()
    bodies = [body for taker in takers for body in taker.bodies]
    assert (bodies.count(b"a2"), bodies.count(b"a3")) == (2, 0)


async def test_so_many_of_a_key_are_unacknowledged_and_what_dies_or_is_not_acknowledged_counts_no_more(
    world: World,
) -> None:
    queue = world.queue(per_key=2, dead_letter_exchange=b"", dead_letter_key=b"dead")
    world.queue(b"dead")
    publish(world, *[("a", b"%d" % number) for number in range(6)])
    taker = taken_by(queue)
    assert taker.bodies == [b"0", b"1"]
    queue.reject([taker.messages[0]])
    world.advance(0)
    assert taker.bodies == [b"0", b"1", b"2"]
    queue.remove_consumers(taker)
    free = Taker(no_ack=True)
    queue.add_consumer(free)
    queue.requeue(taker.messages[1:])
    for _ in range(10):
        queue.dispatch()
        world.advance(0)
    assert free.bodies == [b"1", b"2", b"3", b"4", b"5"]
    assert world.broker.memory.total_bytes == sum(
        run.head.cost_bytes for run in world.broker.queues[b"dead"].ready
    )


@pytest.mark.parametrize("per_key", [None, 1])
@pytest.mark.parametrize("by_get", [False, True])
async def test_what_expires_takes_no_turn_of_its_key(world: World, per_key: int | None, by_get: bool) -> None:
    queue = world.queue(fair=True, per_key=per_key, dead_letter_exchange=b"", dead_letter_key=b"dead")
    world.queue(b"dead")
    for key, body in (("a", b"a1"), ("a", b"a2"), ("a", b"a3"), ("a", b"a4"), ("b", b"b1"), ("b", b"b2")):
        ttl_ms = 1000 if body in (b"a1", b"a3") else 5000
        said = {"headers": {"x-key": key}, "expiration": str(ttl_ms)}
        world.publish(b"", b"q", body, properties=read({"properties": said}, persistent=True))
    world.clock.now += 1.1
    if by_get:
        taken = list[bytes]()
        while (run := queue.get(no_ack=True)) is not None:
            taken += run.bodies
            world.settle()
            world.advance(0)
    else:
        taker = Taker(no_ack=True)
        queue.add_consumer(taker)
        queue.dispatch()
        for _ in range(10):
            world.settle()
            world.advance(0)
        taken = taker.bodies
    assert taken == [b"a2", b"b1", b"a4", b"b2"]
    assert sorted(ready(world.broker.queues[b"dead"])) == [b"a1", b"a3"]


@pytest.mark.parametrize(("value", "key"), [("k", "k"), (5, "5"), (True, ""), ("x" * 129, ""), ([1], "")])
async def test_a_key_is_a_text_and_anything_else_is_none(world: World, value: Any, key: str) -> None:
    queue = world.queue(per_key=1, key_header=b"tenant")
    publish(world, (value, b"1"), header="tenant")
    assert queue.ready.first().head.text_in(b"tenant") == key


async def test_keys_hold_over_a_restart_a_purge_and_a_get(world: World) -> None:
    peer = Peer(world).login()
    peer.ask(commands.Queue.Declare(queue="q", durable=True, arguments={"x-per-key": 1, "x-max-priority": 3}))
    publish(world, ("a", b"1"), ("a", b"2"), ("b", b"3"))
    taken_by(world.broker.queues[b"q"])
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert ready(queue) == [b"1", b"2", b"3"], "nobody holds any now"
    peer = Peer(world).login()
    for _ in range(2):
        peer.say(commands.Basic.Get(0, "q", False))
    assert (queue.held, queue.depth) == (2, 1)
    assert [value.name for _, value in peer.say(commands.Basic.Get(0, "q", False))] == ["Basic.GetEmpty"]
    assert (await call(world, queue, "purge"))["purged"] == 1
    publish(world, ("a", b"4"))
    assert [value.name for _, value in peer.say(commands.Basic.Get(0, "q", False))] == ["Basic.GetEmpty"]
    peer.method(commands.Basic.Ack(1))
    assert peer.ask_get("q") == b"4"


@pytest.mark.parametrize("fair", [False, True])
async def test_a_full_queue_drops_its_oldest_also_where_all_wait_for_their_keys(
    world: World, fair: bool
) -> None:
    queue = world.queue(per_key=1, fair=fair, messages_max=3)
    taker = taken_by(queue, room=9)
    for number in range(9):
        publish(world, (f"k{number % 2}", b"%d" % number))
    assert [run.bodies for run in taker.messages] == [[b"0"], [b"1"]]
    assert sorted(ready(queue)) == [b"6", b"7", b"8"]
    for run in taker.messages[:2]:
        queue.settle([run])
    queue.dispatch()
    assert sorted(taker.bodies[2:]) == [b"6", b"7"]
    for run in taker.messages[2:4]:
        queue.settle([run])
    world.advance(0.01)
    assert taker.messages[4].bodies == [b"8"]

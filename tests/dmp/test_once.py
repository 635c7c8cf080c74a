"""A queue that takes no message which it has (`x-message-deduplication`)."""

from typing import Any

import pytest
from pamqp import commands

from dmp.queues import Queue
from dmp.shown_properties import read
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.world import World, ready


def properties(key: Any, **more: Any) -> bytes:
    return read({"properties": {"headers": {"x-deduplication-header": key, **more}}}, persistent=True)


def declared(world: World) -> Queue:
    """The durable queue `q`, by AMQP."""
    arguments = {"x-message-deduplication": True}
    Peer(world).login().ask(commands.Queue.Declare(queue="q", durable=True, arguments=arguments))
    return world.broker.queues[b"q"]


def publish(world: World, key: Any, body: bytes, **more: Any) -> Any:
    return world.publish(b"", b"q", body, properties=properties(key, **more))


async def test_a_key_is_known_while_its_message_is_in_the_queue_wherever_there(world: World) -> None:
    queue = declared(world)
    for key, body in (("a", b"1"), ("b", b"2"), ("a", b"3"), (None, b"4"), (None, b"5")):
        publish(world, key, body)
    world.settle()
    publish(world, "a", b"6")
    assert (ready(queue), world.broker.counts.known) == ([b"1", b"2", b"4", b"5"], 2)
    held = queue.get(no_ack=False)
    assert held is not None
    publish(world, "a", b"held")
    queue.requeue([held])
    publish(world, "a", b"back")
    held = queue.get(no_ack=False)
    assert held is not None
    queue.settle([held])
    publish(world, "a", b"new")
    publish(world, "late", b"waits", **{"x-delay": 1000})
    publish(world, "late", b"is there")
    world.settle()
    assert ready(queue) == [b"2", b"4", b"5", b"new"]
    world.advance(2)
    assert sorted(ready(queue)) == [b"2", b"4", b"5", b"new", b"waits"]


async def test_a_purge_a_death_and_a_move_make_a_key_new(world: World) -> None:
    queue = declared(world)
    world.queue(b"other")
    publish(world, "a", b"1")
    world.settle()
    world.topology.purge_queue(queue)
    publish(world, "a", b"2")
    world.settle()
    world.finish_work()
    publish(world, "a", b"is there")
    assert ready(queue) == [b"2"]
    await call(world, queue, "move", to="other")
    publish(world, "a", b"3")
    world.settle()
    held = queue.get(no_ack=False)
    assert held is not None
    queue.reject([held])
    publish(world, "a", b"4")
    world.settle()
    assert ready(queue) == [b"4"]


async def test_keys_are_known_after_a_restart(world: World) -> None:
    declared(world)
    publish(world, "a", b"1")
    publish(world, "gone", b"2")
    world.settle()
    queue = world.broker.queues[b"q"]
    first, second = queue.take_front(2)
    queue.leave([second])
    queue.return_front([first])
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    for key in ("a", "gone"):
        publish(world, key, b"new")
    world.settle()
    assert ready(queue) == [b"1", b"new"]


async def test_who_sends_it_again_hears_no_sooner_than_who_sent_it_first(world: World) -> None:
    queue = declared(world)
    first = publish(world, "a", b"1")
    again = publish(world, "a", b"2")
    assert again is first
    world.refuse_a_write()
    world.settle()
    assert (again.error is not None, ready(queue)) == (True, [])
    third = publish(world, "a", b"3")
    world.settle()
    assert (third.error, ready(queue)) == (None, [b"3"])
    assert publish(world, "a", b"4") is None


async def test_several_of_a_key_in_one_run_are_one(world: World) -> None:
    queue = declared(world)
    peer = Peer(world).login()
    peer.ask(commands.Confirm.Select())
    peer.publish("", "q", b"1", b"2", b"3", properties=properties("a"))
    world.settle()
    frames = [value for _, value in peer.frames()]
    assert [value.name for value in frames] == ["Basic.Ack"]
    assert frames[0].delivery_tag == 3
    assert ready(queue) == [b"1"]
    assert world.broker.memory.total_bytes == queue.loaded_bytes


@pytest.mark.parametrize("value", [1, "true", [True]])
async def test_an_argument_that_cannot_be_is_refused(world: World, value: Any) -> None:
    arguments = {"x-message-deduplication": value}
    answer = Peer(world).login().ask(commands.Queue.Declare(queue="q", arguments=arguments))
    assert (answer.name, answer.reply_code) == ("Channel.Close", 406)

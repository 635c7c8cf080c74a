"""Consumers that do not acknowledge in time (`x-consumer-timeout`)."""

import pytest
from pamqp import commands

from dmp.queues import Queue
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import admin_of
from tests.dmp.world import World, ready


def given(world: World, *, queue_ms: int | None, consumer_ms: int | None = None) -> tuple[Queue, Peer]:
    """A consumer that holds `1` and `2`."""
    queue = world.queue(consumer_timeout_ms=queue_ms)
    world.publish(b"", b"q", b"1", b"2")
    peer = Peer(world).login()
    arguments = {} if consumer_ms is None else {"x-consumer-timeout": consumer_ms}
    peer.say(commands.Basic.Consume(queue="q", consumer_tag="c", arguments=arguments))
    assert queue.held == 2
    return queue, peer


@pytest.mark.parametrize(
    ("queue_ms", "consumer_ms", "seconds"), [(1000, None, 1), (None, 500, 0.5), (1000, 3000, 3)]
)
async def test_a_channel_that_is_too_late_is_closed_and_its_messages_go_back(
    world: World, queue_ms: int | None, consumer_ms: int | None, seconds: float
) -> None:
    queue, peer = given(world, queue_ms=queue_ms, consumer_ms=consumer_ms)
    world.advance(seconds * 0.9)
    peer.method(commands.Basic.Ack(1))
    assert peer.names() == []
    world.advance(seconds * 0.2)
    ((_, closed),) = peer.frames()
    assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
    assert "timed out" in closed.reply_text
    assert (ready(queue), queue.held, queue.takers.count) == ([b"2"], 0, 0)
    assert queue.ready.first().tries
    assert world.broker.counts.too_late_acks == 1
    assert peer.say(commands.Channel.CloseOk()) == []
    assert [value.name for _, value in peer.say(commands.Channel.Open(), 2)] == ["Channel.OpenOk"]


async def test_who_acknowledges_in_time_is_not_closed(world: World) -> None:
    queue, peer = given(world, queue_ms=1000)
    for number in range(20):
        world.advance(0.9)
        peer.method(commands.Basic.Ack(number + 2, True))
        world.publish(b"", b"q", b"x")
    assert (peer.names().count("Channel.Close"), queue.held) == (0, 1)
    peer.method(commands.Basic.Ack(0, True))
    world.advance(10)
    assert peer.names() == []


async def test_what_a_get_took_has_the_time_of_its_queue(world: World) -> None:
    queue = world.queue(consumer_timeout_ms=100)
    world.publish(b"", b"q", b"1")
    peer = Peer(world).login()
    peer.say(commands.Basic.Get(0, "q", False))
    world.advance(0.09)
    assert peer.names() == []
    world.advance(0.03)
    assert peer.names() == ["Channel.Close"]
    assert ready(queue) == [b"1"]


async def test_a_touch_begins_the_time_anew(world: World) -> None:
    queue, peer = given(world, queue_ms=1000)
    consumers = admin_of(world).objects[1]
    (found,) = consumers.items()
    (touch,) = consumers.actions
    for _ in range(3):
        world.advance(0.8)
        assert await touch.call(found, {}, True) == {"touched": 1}
        assert await touch.call(found, {}, False) == {"touched": 1}
    assert (peer.names(), queue.held) == ([], 2)
    world.advance(1.1)
    assert peer.names() == ["Channel.Close"]
    assert await touch.call(found, {}, False) == {"touched": 0}


async def test_a_consumers_time_that_cannot_be_is_refused_by_name(world: World) -> None:
    world.queue()
    peer = Peer(world).login()
    answer = peer.ask(commands.Basic.Consume(queue="q", arguments={"x-consumer-timeout": 99}))
    assert (answer.name, answer.reply_code) == ("Channel.Close", 406)
    assert "invalid arg 'x-consumer-timeout' for consumer" in answer.reply_text

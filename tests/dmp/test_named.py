"""One message by its name or position: looked at, taken out, put off, wherever it waits."""

from typing import Any

import pytest
from pamqp import commands

from dmp import row
from dmp.queues import Queue
from dmp.shown_properties import read
from shared.objects import BadArgument, ObjectMissing, time_text
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.world import WALL_MS, World, ready

NAME = "x-deduplication-header"


def declared(world: World, **arguments: Any) -> Queue:
    table = {"x-message-deduplication": True, "x-retry-ms": 1000} | {
        f"x-{name.replace('_', '-')}": value for name, value in arguments.items()
    }
    Peer(world).login().ask(commands.Queue.Declare(queue="q", durable=True, arguments=table))
    return world.broker.queues[b"q"]


def publish(world: World, body: bytes, **headers: Any) -> None:
    said = {NAME: body.decode(), **{name.replace("_", "-"): value for name, value in headers.items()}}
    world.publish(b"", b"q", body, properties=read({"properties": {"headers": said}}, persistent=True))
    world.settle()


async def state(world: World, queue: Queue, dedup: str) -> str:
    (shown,) = (await call(world, queue, "job", dedup=dedup))["items"]
    assert shown["text"] == dedup
    assert (await call(world, queue, "job", position=shown["position"]))["items"] == [shown]
    return str(shown["state"])


@pytest.mark.parametrize("arguments", [{}, {"per_key": 1}, {"max_priority": 3}])
async def test_a_message_is_found_put_off_and_cancelled_wherever_it_waits(
    world: World, arguments: dict[str, int]
) -> None:
    queue = declared(world, **arguments)
    publish(world, b"late", x_delay=5000)
    for body in (b"a", b"b", b"c"):
        publish(world, body, x_key="k")
    assert [await state(world, queue, name) for name in ("late", "b")] == ["waiting", "ready"]
    for dry_run in (True, False):
        answer = await call(world, queue, "reschedule", dedup="b", at=f"{WALL_MS + 10_000}", dry_run=dry_run)
        assert answer == {"rescheduled": 1}
    (shown,) = (await call(world, queue, "job", dedup="b"))["items"]
    assert (shown["state"], shown["due"]) == ("waiting", time_text(WALL_MS + 10_000))
    assert await call(world, queue, "requeue", dedup="late", dry_run=True) == {"requeued": 1}
    assert await call(world, queue, "requeue", dedup="late") == {"requeued": 1}
    world.advance(0)
    assert await call(world, queue, "cancel", dedup="a", dry_run=True) == {"cancelled": 1}
    assert await call(world, queue, "cancel", dedup="a") == {"cancelled": 1}
    assert (ready(queue), queue.later.count) == ([b"late", b"c"], 1)
    for name in ("a", "none"):
        with pytest.raises(ObjectMissing, match=f"no message '{name}'"):
            await call(world, queue, "job", dedup=name)
    publish(world, b"a")
    assert queue.depth == 3, "its name is free"
    world = await world.again(later_seconds=1)
    queue = world.broker.queues[b"q"]
    assert (sorted(ready(queue)), queue.later.count) == ([b"a", b"c", b"late"], 1)
    world.advance(10)
    assert ready(queue) == [b"late", b"b", b"c", b"a"], "each at its old place"
    assert not any("x-delivery-count" in run.head.headers for run in queue.ready)
    for name in ("late", "b", "c", "a"):
        await call(world, queue, "cancel", dedup=name)
    assert world.broker.memory.total_bytes == 0
    assert world.broker.counts.cancelled == 4
    world = await world.again()
    assert world.broker.queues[b"q"].depth == 0


async def test_what_a_consumer_holds_is_seen_and_stays(world: World) -> None:
    queue = declared(world, per_key=1)
    publish(world, b"a", x_key="k")
    publish(world, b"b", x_key="k")
    peer = Peer(world).login()
    peer.say(commands.Basic.Consume(queue="q", consumer_tag="t"))
    assert [await state(world, queue, name) for name in ("a", "b")] == ["held", "ready"]
    for action, said in (("cancel", {}), ("reschedule", {"delay": "1s"})):
        for dry_run in (True, False):
            with pytest.raises(BadArgument, match="held by a client"):
                await call(world, queue, action, dry_run=dry_run, dedup="a", **said)
    for name, why in (("a", "kick its connection"), ("b", "is ready")):
        with pytest.raises(BadArgument, match=why):
            await call(world, queue, "requeue", dedup=name)
    peer.method(commands.Basic.Nack(1, requeue=True))
    world.settle()
    assert await state(world, queue, "a") == "waiting"
    assert queue.held == 0, "the next of a key does not overtake one that waits for its next try"
    await call(world, queue, "cancel", dedup="a")
    world.advance(0.01)
    assert (await state(world, queue, "b"), queue.held) == ("held", 1)


def with_cold(world: World, monkeypatch: pytest.MonkeyPatch, messages: int) -> Queue:
    """A queue of so many messages, `00` and on, all but the first of them on disk alone."""
    monkeypatch.setattr(row, "HOT_LEAST_BYTES", 100)
    world.broker.memory.take_bounds(1 << 30, 0)
    queue = world.queue(durable=True)
    for number in range(messages):
        publish(world, b"%02d" % number)
    assert queue.row.has_cold
    return queue


async def test_a_message_on_disk_alone_is_shown_and_taken_out_of_the_middle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_cold(world, monkeypatch, 30)
    (shown,) = (await call(world, queue, "job", position=20))["items"]
    assert (shown["text"], shown["state"]) == ("20", "ready")
    assert await call(world, queue, "cancel", position=20) == {"cancelled": 1}
    assert await call(world, queue, "reschedule", position=25, delay="5s") == {"rescheduled": 1}
    for position in (20, 30):
        with pytest.raises(ObjectMissing, match=f"no message {position}"):
            await call(world, queue, "cancel", position=position)
    assert (queue.depth, queue.later.count, queue.row.has_cold) == (28, 1, True)
    (shown,) = (await call(world, queue, "job", position=25))["items"]
    assert (shown["text"], shown["state"]) == ("25", "waiting")
    await call(world, queue, "cancel", position=0)
    assert (await call(world, queue, "peek", limit=3))["items"][0]["text"] == "01"
    with pytest.raises(BadArgument, match="knows no names"):
        await call(world, queue, "job", dedup="20")
    for said in ({}, {"dedup": "a", "position": 1}, {"dedup": ""}, {"position": -1}):
        with pytest.raises(BadArgument):
            await call(world, queue, "job", **said)
    for said in ({}, {"delay": "1s", "at": "1"}, {"delay": "x"}, {"at": "x"}, {"delay": "4000d"}):
        with pytest.raises(BadArgument):
            await call(world, queue, "reschedule", position=0, **said)
    world.settle()
    assert queue.purge() == 28
    world.settle()
    assert (world.broker.memory.total_bytes, queue.depth) == (0, 0)


async def test_what_came_out_of_the_midst_of_the_disk_outlives_a_purge_of_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_cold(world, monkeypatch, 30)
    await call(world, queue, "reschedule", position=20, delay="1s")
    world.advance(1.1)
    assert ready(queue)[-1] == b"20"
    held = queue.row.take_out(20)
    assert held is not None
    queue.hold(held)
    assert queue.purge() == 29
    world.settle()
    world = await world.again()
    assert ready(world.broker.queues[b"q"]) == [b"20"]

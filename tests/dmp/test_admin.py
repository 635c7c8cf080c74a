"""What the API does with queues: peek takes nothing, messages go in with properties, dead letters go back."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from dmp.admin import Admin
from dmp.definitions import definitions_of
from dmp.metrics import GAUGES
from dmp.queues import Queue
from dmp.settings import DmpSettings
from dmp.shown_properties import read as properties_of
from shared.errors import BrokerError, StoreError
from shared.objects import SHOWN_BYTES_MAX, BadArgument
from tests.dmp.world import PERSISTENT, Taker, World, ready

DEAD = {"dead_letter_exchange": b"", "dead_letter_key": b"dead"}


async def call(world: World, queue: Queue, name: str, *, dry_run: bool = False, **arguments: Any) -> Any:
    queues = admin_of(world).objects[0]
    action = next(action for action in queues.actions if action.name == name)
    answers: list[Any] = []

    async def ask() -> None:
        try:
            answers.append(await action.call(queue, arguments, dry_run))
        except BrokerError as error:
            answers.append(error)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while not answers:
                world.settle()
                await trio.sleep(0)  # noqa: ASYNC115 - the world's disk works when it is told to
    if isinstance(answers[0], BrokerError):
        raise answers[0]
    return answers[0]


def admin_of(world: World) -> Admin:
    return Admin(world.broker, definitions_of(world.broker))


def row(world: World, queue: Queue) -> Mapping[str, Any]:
    found = admin_of(world).objects[0].row(queue)
    assert found is not None
    return found


async def test_a_peek_takes_nothing_and_is_no_delivery(world: World) -> None:
    queue = world.queue(durable=True)
    await call(
        world,
        queue,
        "messages",
        text="one",
        properties={"content_type": "text/plain", "headers": {"a": [1, {"b": None}]}, "priority": 3},
    )
    await call(world, queue, "messages", base64="/w==", properties={"delivery_mode": 1})
    one, two = (await call(world, queue, "peek", limit=5))["items"]
    assert (one["text"], one["bytes"], one["position"], two["base64"]) == ("one", 3, 0, "/w==")
    assert one["properties"] == {
        "content_type": "text/plain",
        "headers": {"a": [1, {"b": None}]},
        "priority": 3,
        "delivery_mode": 2,
    }
    assert (one["exchange"], one["key"], one["redelivered"]) == ("amq.default", "q", False)
    assert one["time"].endswith("Z")
    assert two["time"] is None, "it is in memory alone"
    assert len((await call(world, queue, "peek", limit=1))["items"]) == 1
    assert (queue.depth, queue.held, world.broker.counts.delivered) == (2, 0, 0)
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    queue.dispatch()
    assert [message.tries for message in taker.messages] == [0, 0]


async def test_what_is_cold_is_peeked_where_it_stands() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = world.queue(durable=True)
    bodies = [b"%04d" % number + bytes(1000) for number in range(100)]
    for body in bodies:
        world.publish(b"", b"q", body, properties=PERSISTENT)
        world.settle()
    assert queue.row.cold is not None
    cold = queue.row.cold.count
    assert 0 < cold < 100
    rows = (await call(world, queue, "peek", limit=200))["items"]
    assert [each["text"][:4] for each in rows] == [f"{number:04d}" for number in range(100)]
    assert (queue.row.cold.count, queue.depth) == (cold, 100)
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    assert taker.bodies == bodies


async def test_of_a_large_body_the_beginning_is_shown() -> None:
    world = await World.open(DmpSettings(message_bytes_max=4096))
    queue = world.queue()
    world.publish(b"", b"q", b"x" * 10_000)
    world.settle()
    (found,) = (await call(world, queue, "peek"))["items"]
    assert (found["bytes"], found["text"]) == (10_000, "x" * 10_000)
    world.publish(b"", b"q", b"\xc3\xa4" * SHOWN_BYTES_MAX)
    world.settle()
    found = (await call(world, queue, "peek"))["items"][1]
    assert (found["bytes"], found["truncated"]) == (2 * SHOWN_BYTES_MAX, True)
    assert found["text"] == "ä" * (SHOWN_BYTES_MAX // 2)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": "a", "base64": ""},
        {"text": "a", "properties": []},
        {"text": "a", "properties": {"user_id": "root"}},
        {"text": "a", "properties": {"priority": 300}},
        {"text": "a", "properties": {"priority": True}},
        {"text": "a", "properties": {"expiration": "soon"}},
        {"text": "a", "properties": {"content_type": 5}},
        {"text": "a", "properties": {"timestamp": "yesterday"}},
        {"text": "a", "properties": {"headers": {"a": 1 << 70}}},
        {"text": "a", "properties": {"headers": ["a"]}},
        {"text": "a", "properties": {"headers": {"a" * 256: 1}}},
    ],
)
async def test_a_message_that_cannot_be_is_refused_in_words(world: World, arguments: Any) -> None:
    queue = world.queue()
    with pytest.raises(BadArgument):
        await call(world, queue, "messages", **arguments)
    assert queue.depth == 0


async def test_a_name_or_table_that_no_row_can_hold_is_refused_in_words(world: World) -> None:
    queue = world.queue(durable=True)
    _, _, exchanges, bindings, _ = admin_of(world).objects
    for asked in ({"name": "n" * 256}, {"name": "e", "durable": True, "alternate": "a" * 256}):
        with pytest.raises(BadArgument, match="255 bytes"):
            await exchanges.makes[0].call(None, asked, False)
    row = {"name": "big", "exchange": "amq.headers", "queue": "q", "arguments": {"a": "x" * 4096}}
    with pytest.raises(BadArgument, match="at most 4096"):
        await bindings.makes[0].call(None, row, False)
    for section in definitions_of(world.broker)[1:]:
        with pytest.raises(BadArgument, match="at most 4096"):
            await section.make(row, False, lambda *_: False)
    assert (len(world.broker.exchanges), len(world.broker.queues), len(queue.bound)) == (6, 1, 0)


async def test_dead_letters_go_back_to_where_they_died_and_all_else_stays_in_order(world: World) -> None:
    dead = world.queue(b"dead", durable=True)
    one = world.queue(b"one", durable=True, ttl_ms=1000, **DEAD)
    world.queue(b"gone", ttl_ms=1000, **DEAD)
    world.publish(b"", b"dead", b"0", properties=PERSISTENT)
    world.publish(b"", b"one", b"1", properties=PERSISTENT)
    world.publish(b"", b"gone", b"2")
    world.settle()
    world.advance(2)
    world.settle()
    world.publish(b"", b"dead", b"3", properties=PERSISTENT)
    world.settle()
    world.topology.delete_queue(world.broker.queues[b"gone"])
    assert ready(dead) == [b"0", b"2", b"1", b"3"]
    assert await call(world, dead, "redrive", dry_run=True) == {"moved": 1, "left": 3}
    assert dead.depth == 4
    assert await call(world, dead, "redrive") == {"moved": 1, "left": 3}
    assert (ready(dead), ready(one)) == ([b"0", b"2", b"3"], [b"1"])
    again = await world.again()
    queues = again.broker.queues
    assert (ready(queues[b"dead"]), ready(queues[b"one"])) == ([b"0", b"3"], [b"1"])


async def test_cold_dead_letters_go_back_too() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    dead = world.queue(b"dead", durable=True)
    queue = world.queue(durable=True, **DEAD)
    taker = Taker(no_ack=False, room=1000)
    queue.add_consumer(taker)
    bodies = [b"%04d" % number + bytes(1000) for number in range(200)]
    for body in bodies:
        world.publish(b"", b"q", body, properties=PERSISTENT)
        world.settle()
    queue.remove_consumers(taker)
    for start in range(0, 200, 50):
        queue.reject(taker.messages[start : start + 50])
        world.advance(1)
        world.settle()
    assert dead.row.has_cold
    assert await call(world, dead, "redrive") == {"moved": 200, "left": 0}
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    assert taker.bodies == bodies


def two_dead(world: World) -> tuple[Queue, Queue]:
    """A durable queue whose two messages have died, and the one that has them."""
    dead = world.queue(b"dead", durable=True)
    queue = world.queue(durable=True, ttl_ms=1000, **DEAD)
    world.publish(b"", b"q", b"1", b"2", properties=PERSISTENT)
    world.settle()
    world.advance(2)
    world.settle()
    return queue, dead


async def test_a_redrive_that_the_disk_refuses_is_not_answered_and_leaves_all_where_it_was(
    world: World,
) -> None:
    queue, dead = two_dead(world)
    world.refuse_a_write()
    with pytest.raises(StoreError):
        await call(world, dead, "redrive")
    assert (ready(dead), queue.depth) == ([b"1", b"2"], 0)
    assert await call(world, dead, "redrive") == {"moved": 2, "left": 0}
    assert ready((await world.again()).broker.queues[b"q"]) == [b"1", b"2"]


async def test_a_redrive_that_the_disk_stops_loses_nothing(world: World) -> None:
    queue, dead = two_dead(world)
    world.break_disk()
    world.publish(b"", b"q", b"3", properties=PERSISTENT)
    world.settle()
    with pytest.raises(StoreError):
        await call(world, dead, "redrive")
    assert ready(dead) == [b"1", b"2"]
    assert (queue.stops, dead.stops) == (0, 0)


@pytest.mark.parametrize("source_durable", [False, True])
async def test_a_move_answers_once_the_other_queue_shows_it_and_takes_nothing_that_the_disk_refuses(
    world: World, source_durable: bool
) -> None:
    source, target = world.queue(b"from", durable=source_durable), world.queue(b"to", durable=True)
    world.publish(b"", b"from", b"1", b"2", properties=PERSISTENT)
    world.settle()
    assert await call(world, source, "move", to="to") == {"moved": 2, "left": 0}
    assert (ready(source), ready(target)) == ([], [b"1", b"2"]), "with no turn in between"
    world.publish(b"", b"from", b"3", properties=PERSISTENT)
    world.settle()
    world.refuse_a_write()
    with pytest.raises(StoreError):
        await call(world, source, "move", to="to")
    assert (ready(source), ready(target)) == ([b"3"], [b"1", b"2"])


async def test_every_gauge_is_read_where_there_are_queues(world: World) -> None:
    queue = world.queue()
    delayed = properties_of({"properties": {"headers": {"x-delay": 1000}}}, persistent=False)
    world.publish(b"", b"q", b"later", properties=delayed)
    world.publish(b"", b"q", b"1", b"2")
    assert queue.get(no_ack=False) is not None
    found = {gauge.name: gauge.read(world.broker) for gauge in GAUGES}
    names = ("messages_ready", "messages_unacked", "messages_delayed")
    assert [found[name] for name in names] == [1, 1, 1]

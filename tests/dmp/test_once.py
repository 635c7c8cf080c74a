"""A queue that takes no message which it has (`x-message-deduplication`)."""

from typing import Any

import pytest
from pamqp import commands

from dmp.declarations import QueueArguments, QueueKind
from dmp.queues import Queue
from dmp.shown_properties import read
from shared.errors import StoreError, StoreFull
from shared.storage.inventory import Namespace
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.world import World, ready


def properties(key: Any, **more: Any) -> bytes:
    return read({"properties": {"headers": {"x-deduplication-header": key, **more}}}, persistent=True)


def declared(world: World, **more: Any) -> Queue:
    """The durable queue `q`, by AMQP."""
    arguments = {"x-message-deduplication": True, **more}
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


async def test_what_comes_from_another_queue_is_taken_though_its_key_is_known(world: World) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queue, dead = windowed(world, **arguments), world.queue(b"dead")
    publish(world, "a", b"dies")
    world.settle()

    def die() -> None:
        held = queue.get(no_ack=False)
        assert held is not None
        queue.reject([held])
        world.settle()

    die()
    publish(world, "a", b"known")
    assert await call(world, dead, "redrive") == {"moved": 1, "left": 0}
    assert ready(queue) == [b"dies"]
    world.advance(61)  # the first window has ended; the message is there, and has its name again
    publish(world, "a", b"known")
    (row,) = (await call(world, queue, "job", dedup="a"))["items"]
    assert row["text"] == "dies"
    die()
    world.advance(61)
    publish(world, "a", b"another")
    world.publish(b"", b"dead", b"moved", properties=properties("a"))
    world.settle()
    assert await call(world, dead, "redrive") == {"moved": 1, "left": 1}
    assert await call(world, dead, "move", to="q") == {"moved": 1, "left": 0}
    world.settle()
    assert ready(queue) == [b"another", b"dies", b"moved"]


async def test_keys_are_known_after_a_restart(world: World) -> None:
    declared(world)
    assert world.broker.known_keys.table is None, "nothing asks for one"
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


async def test_a_full_queue_that_rejects_confirms_what_it_has(world: World) -> None:
    queue = declared(world, **{"x-max-length": 1, "x-overflow": "reject-publish"})
    peer = Peer(world).login()
    peer.ask(commands.Confirm.Select())
    for key, body in (("a", b"1"), ("a", b"again"), ("b", b"2")):
        peer.publish("", "q", body, properties=properties(key))
        world.settle()
    assert [value.name for _, value in peer.frames()] == ["Basic.Ack", "Basic.Ack", "Basic.Nack"]
    assert (ready(queue), world.broker.counts.known) == ([b"1"], 1)


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


def windowed(world: World, **arguments: Any) -> Queue:
    table = {"x-message-deduplication": True, "x-cache-ttl": 60_000, **arguments}
    Peer(world).login().ask(commands.Queue.Declare(queue="q", durable=True, arguments=table))
    return world.broker.queues[b"q"]


def rows(world: World) -> int:
    table = world.broker.known_keys.table
    assert table is not None
    return len(table)


def taken(world: World) -> list[bytes]:
    """What is in the queue, which leaves."""
    queue, bodies = world.broker.queues[b"q"], list[bytes]()
    while (run := queue.get(no_ack=True)) is not None:
        bodies += run.bodies
    world.settle()
    return bodies


async def test_a_key_is_known_for_its_window_whoever_has_taken_its_message_also_over_kills() -> None:
    world = await World.open()
    windowed(world)
    publish(world, "a", b"1")
    publish(world, "stays", b"2")
    world.settle()
    assert taken(world) == [b"1", b"2"]
    publish(world, "a", b"known")
    publish(world, "there", b"3")
    world.settle()
    for _ in range(2):
        world = await world.again(later_seconds=10)
        publish(world, "a", b"known")
        publish(world, "there", b"known")
        world.settle()
    assert world.broker.memory.total_bytes > 3 * 600
    world.advance(42)
    publish(world, "a", b"4")
    publish(world, "there", b"inside")
    world.settle()
    assert taken(world) == [b"3", b"4"]
    world.advance(61)
    world.settle()
    assert (world.broker.memory.total_bytes, rows(world)) == (0, 1)


async def test_what_another_queue_of_the_name_knew_is_not_known(world: World) -> None:
    queue = windowed(world)
    publish(world, "a", b"1")
    world.settle()
    taken(world)
    world.topology.delete_queue(queue)
    assert world.broker.memory.total_bytes == 0
    windowed(world)
    world.settle()
    publish(world, "a", b"2")
    world.settle()
    world = await world.again()
    assert taken(world) == [b"2"]
    assert rows(world) == 2, "those of the other are dropped"


@pytest.mark.parametrize("window", [0, 60_000])
async def test_a_key_whose_message_the_disk_refused_was_never_seen(world: World, window: int) -> None:
    if window:
        windowed(world)
    else:
        declared(world)
    world.refuse_a_write()
    ticket = publish(world, "a", b"refused")
    world.settle()
    assert ticket.error is not None

    publish(world, "a", b"1")
    world.settle()
    assert taken(world) == [b"1"]
    world = await world.again()
    publish(world, "a", b"again")
    world.settle()
    assert taken(world) == ([] if window else [b"again"])


async def test_a_key_whose_message_the_store_does_not_take_was_never_seen(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = windowed(world)

    def full(*_: object) -> None:
        raise StoreFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "append_all", full)
        with pytest.raises(StoreFull):
            publish(world, "a", b"refused")
    publish(world, "a", b"1")
    world.settle()
    assert ready(queue) == [b"1"]


async def test_a_queue_that_the_store_does_not_delete_knows_its_keys_as_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = windowed(world)

    def full(*_: Any) -> Any:
        raise StoreFull("full")

    with monkeypatch.context() as patch:
        patch.setattr(Namespace, "delete", full)
        with pytest.raises(StoreFull):
            world.topology.delete_queue(queue)
    publish(world, "a", b"1")
    assert rows(world) == 2, "what stands for the queue, and the key"


async def test_a_queue_that_cannot_be_made_leaves_no_row_of_its_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Namespace.create

    def refuse(namespace: Namespace, *arguments: Any, **more: Any) -> Any:
        if namespace is world.broker.logs:
            raise StoreError("no space")
        return create(namespace, *arguments, **more)

    kind = QueueKind(durable=True, arguments=QueueArguments(once=True, once_ms=60_000))
    with monkeypatch.context() as patch:
        patch.setattr(Namespace, "create", refuse)
        with pytest.raises(StoreError):
            world.topology.declare_queue(b"q", kind, world.owner)
    assert rows(world) == 0
    assert b"q" not in world.broker.known_keys
    world.topology.declare_queue(b"q", kind, world.owner)
    world.settle()
    assert (rows(world), b"q" in (await world.again()).broker.known_keys) == (1, True)

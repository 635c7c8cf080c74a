"""queue.purge takes what was published before it on its connection, also what waits for the disk; a passive
declare counts that, and basic.get finds it."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pamqp import commands

from dmp import queues
from dmp.amqp.wire import encode
from dmp.properties import NO_PROPERTIES
from dmp.queue_log import QueueLog
from dmp.shown_properties import read
from shared.queues.runs import Run
from tests.dmp.amqp_peer import Peer, bodies, publish
from tests.dmp.world import PERSISTENT, World

C = commands
PURGE = encode(C.Queue.Purge(0, "q"), 1)


def go_on(world: World, peer: Peer) -> list[tuple[int, Any]]:
    """Until the disk and what goes in turns are through; what the peer has heard."""
    said: list[tuple[int, Any]] = []
    for _ in range(4):
        world.settle()
        world.advance(0)
        said += peer.frames()
    return said


def ready(world: World) -> int:
    return world.broker.queues[b"q"].depth


@pytest.fixture
def heard(world: World, peer: Peer) -> Peer:
    world.queue(b"q", durable=True)
    peer.ask(C.Confirm.Select())
    return peer


@pytest.mark.parametrize("properties", [NO_PROPERTIES, PERSISTENT])
async def test_a_purge_counts_and_takes_what_was_published_before_it(
    world: World, heard: Peer, properties: bytes
) -> None:
    for count in (1, 3):
        data = publish("", "q", *[b"x"] * count, properties=properties)
        heard.send(data + PURGE + publish("", "q", b"stays", properties=properties))
        answers = {value.name: value for _, value in go_on(world, heard)}
        assert answers["Queue.PurgeOk"].message_count == count
        assert ready(world) == 1
        world.broker.queues[b"q"].purge()


async def test_a_purge_takes_what_was_committed_before_it(world: World) -> None:
    world.queue(b"q", durable=True)
    peer = Peer(world).login()
    peer.ask(C.Tx.Select())
    peer.send(publish("", "q", b"x", properties=PERSISTENT) + encode(C.Tx.Commit(), 1) + PURGE)
    commit, purged = [value for _, value in go_on(world, peer)]
    assert (commit.name, purged.message_count, ready(world)) == ("Tx.CommitOk", 1, 0)


async def test_a_purge_waits_for_what_came_before_it_and_not_for_more(world: World, heard: Peer) -> None:
    """Somebody else publishes all the time."""
    other = Peer(world).login()
    heard.send(publish("", "q", b"x", properties=PERSISTENT) + PURGE)
    assert heard.frames() == []
    world.settle()
    other.publish("", "q", b"y", properties=PERSISTENT)
    names = heard.names()
    world.settle()
    names += heard.names()
    assert names == ["Basic.Ack", "Queue.PurgeOk"]
    world.settle()
    assert ready(world) == 1


async def test_others_take_what_is_ready_until_the_purge_has_its_turn(world: World, heard: Peer) -> None:
    other, taker = Peer(world).login(), Peer(world).login()
    heard.send(publish("", "q", b"seen", properties=NO_PROPERTIES))
    heard.send(publish("", "q", b"before", properties=PERSISTENT) + PURGE + encode(C.Basic.Get(0, "q"), 1))
    assert bodies(other.say(C.Basic.Get(0, "q", True))) == [b"seen"]
    said = go_on(world, heard)
    assert [value.name for _, value in said][-2:] == ["Queue.PurgeOk", "Basic.GetEmpty"]
    taker.method(C.Basic.Consume(0, "q", no_ack=True))
    heard.send(publish("", "q", b"given", properties=PERSISTENT) + PURGE)
    said = go_on(world, heard)
    assert [value.message_count for _, value in said if value.name == "Queue.PurgeOk"] == [0]
    assert bodies(taker.frames()) == [b"given"]


async def test_a_purge_is_answered_when_the_disk_fails_and_when_the_queue_is_deleted(
    world: World, heard: Peer
) -> None:
    other = Peer(world).login()
    heard.send(publish("", "q", b"x", properties=PERSISTENT) + PURGE)
    other.method(C.Queue.Delete(0, "q"))
    said = [value.name for _, value in go_on(world, heard)]
    assert said == ["Basic.Ack", "Channel.Close"]
    world.queue(b"q", durable=True)
    go_on(world, other)
    again = Peer(world).login()
    again.ask(C.Confirm.Select())
    world.break_disk()
    again.send(publish("", "q", b"x", properties=PERSISTENT) + PURGE)
    names = [value.name for _, value in go_on(world, again)]
    assert names == ["Basic.Nack", "Queue.PurgeOk"]


@pytest.mark.parametrize("cold", [0, 3])
async def test_a_purge_is_answered_when_a_crash_does_not_take_it_back(world: World, cold: int) -> None:
    queue = world.queue(b"q", durable=True)
    heard = Peer(world).login()
    world.broker.memory.take_bounds(1 << 30, 0)
    world.publish(b"", b"q", b"x" * 20_000, properties=PERSISTENT)
    world.settle()
    world.publish(b"", b"q", *[b"x"] * cold, properties=PERSISTENT)
    world.settle()
    assert queue.row.has_cold == bool(cold)
    heard.send(PURGE)
    assert heard.names() == []
    world.settle()
    assert heard.names() == ["Queue.PurgeOk"]
    after = await world.again()
    assert after.broker.queues[b"q"].depth == 0


GET = encode(C.Basic.Get(0, "q", True), 1)
COUNT = encode(C.Queue.Declare(0, "q", passive=True), 1)


@pytest.mark.parametrize("properties", [NO_PROPERTIES, PERSISTENT])
async def test_a_get_finds_what_was_published_before_it(world: World, heard: Peer, properties: bytes) -> None:
    for body in (b"a", b"b"):
        heard.send(publish("", "q", body, properties=properties) + GET)
        assert bodies(go_on(world, heard)) == [body]
    heard.send(GET + publish("", "q", b"c", properties=properties))
    assert "Basic.GetEmpty" in [value.name for _, value in go_on(world, heard)]


async def test_what_is_purged_in_no_order_is_put_in_order_some_in_each_turn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once took 42 ms with 200,000 messages."""
    together: list[int] = []
    leaving: list[int] = []
    take_all = QueueLog.take_all

    def recorded(log: QueueLog, runs: Sequence[Run], *others: Any) -> Iterator[None]:
        leaving.extend(run.first for run in runs)
        return take_all(log, runs, *others)

    def counted(items: Any, **how: Any) -> list[Any]:
        together.append(len(items))
        return sorted(items, **how)

    monkeypatch.setattr(queues, "SORTED_MOST", 10)
    monkeypatch.setattr(queues, "sorted", counted, raising=False)
    monkeypatch.setattr(QueueLog, "take_all", recorded)
    queue = world.queue(durable=True)
    for number in range(200):
        said = {"properties": {"priority": number % 7}}
        world.publish(b"", b"q", b"%d" % number, properties=read(said, persistent=True))
        world.settle()
    runs = queue.take_front(100)
    queue.return_front(runs[::2])
    queue.return_front(runs[1::2])
    queue.purge()
    world.finish_work()
    assert leaving == [*range(200)]
    assert (together.pop(0), max(together)) == (20, 10)

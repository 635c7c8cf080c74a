"""Deep durable queues are in memory with their front alone; nobody who uses them can tell."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands, encode

from dmp import queue_log, row
from dmp.declarations import QueueArguments, QueueKind
from dmp.message import Head
from dmp.queues import Queue
from dmp.settings import DmpSettings
from dmp.shown_properties import read
from shared.errors import CorruptRecord, StoreError
from shared.storage.log import Log
from tests.dmp.amqp_peer import Peer, bodies
from tests.dmp.test_admin import call
from tests.dmp.world import PERSISTENT, Taker, World, ready

C = commands
LIMIT = 20_000
PAGING = DmpSettings(hot_bytes=LIMIT)


@pytest.fixture(autouse=True, scope="module")
def small() -> Iterator[None]:
    """Little is read back at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_log, "READ_BYTES", 4096)
        patch.setattr(row, "HOT_LEAST_BYTES", 2048)
        yield


async def deep(count: int = 400, arguments: dict[str, Any] | None = None) -> tuple[World, Queue]:
    """A durable queue with so many messages of half a KiB."""
    world = await World.open(PAGING)
    table = encode.field_table(arguments or {})
    kind = QueueKind(durable=True, table=table, arguments=QueueArguments.read(arguments or {}))
    queue = world.topology.declare_queue(b"q", kind, world.owner)[0]
    fill(world, 0, count)
    return world, queue


def fill(world: World, start: int, stop: int, properties: bytes = PERSISTENT) -> None:
    for number in range(start, stop):
        world.publish(b"", b"q", body(number), properties=properties)
        if number % 10 == 9:
            world.settle()
    world.settle()


def body(number: int) -> bytes:
    return b"%04d" % number + bytes(508)


def numbers(found: list[bytes]) -> list[int]:
    return [int(each[:4]) for each in found]


def drained(queue: Queue) -> list[int]:
    found = []
    while (message := queue.get(no_ack=True)) is not None:
        found.append(int(message.bodies[0][:4]))
    return found


async def test_what_is_deep_takes_little_memory_and_comes_in_order() -> None:
    world, queue = await deep()
    assert queue.depth == 400
    assert queue.row.all_body_bytes == 400 * 512
    assert world.broker.memory.total_bytes < LIMIT + 20_000
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    queue.dispatch()
    assert numbers(taker.bodies) == list(range(400))
    queue.settle(taker.messages)
    world.settle()
    assert world.broker.memory.total_bytes == 0
    fill(world, 400, 410)
    assert numbers(taker.bodies)[400:] == list(range(400, 410))


async def test_a_start_leaves_it_where_it_is() -> None:
    world, queue = await deep()
    held = [queue.get(no_ack=False) for _ in range(30)]
    queue.settle([message for message in held[5:20] if message is not None])
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert queue.depth == 385
    assert world.broker.counts.recovered == 385
    assert world.broker.memory.total_bytes < 2 * LIMIT
    fill(world, 400, 500)
    assert drained(queue) == [*range(5), *range(20, 500)]


async def test_an_old_message_that_is_copied_past_what_is_cold_comes_once() -> None:
    world, queue = await deep(100)
    oldest = queue.get(no_ack=False)
    assert oldest is not None
    assert queue.log is not None
    queue.log.copy_oldest()  # as when much of the log is dead
    world.settle()
    fill(world, 100, 200)
    queue.requeue([oldest])
    assert drained(queue) == list(range(200))
    world.settle()
    assert queue.log.log.end - queue.log.log.first < 1 << 20


@pytest.mark.parametrize("ends", ["acknowledged", "held"])
async def test_what_leaves_while_its_record_is_read_to_be_copied_gets_no_copy(
    slow: list[Callable[[], None]], ends: str
) -> None:
    world, queue = await deep(8)
    assert queue.log is not None
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    queue.dispatch()
    queue.log.copy_oldest()
    if ends == "acknowledged":
        queue.settle(taker.messages)
        world.settle()
    end = queue.log.log.end
    slow.pop()()
    assert (queue.log.log.end == end) == (ends == "acknowledged")
    world.settle()
    assert [queue.log.is_copy(message.first) for message in taker.messages] == [ends == "held"] * 8


async def test_a_record_that_cannot_be_read_is_not_copied_and_holds_the_log_until_it_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 2048)
    world, queue = await deep(30)
    assert queue.log is not None
    log = queue.log.log
    held = [queue.get(no_ack=False) for _ in range(30)]
    with monkeypatch.context() as damage:
        damage.setattr(Log, "read", lambda log, offset, most, done: done(CorruptRecord("q.log", offset)))
        for message in held[1:29]:
            assert message is not None
            queue.settle([message])
            world.settle()
    assert log.first == 0
    assert held[0] is not None
    queue.settle([held[0]])
    world.settle()
    world.settle()
    assert log.first > 0
    assert ready((await world.again()).broker.queues[b"q"]) == [body(29)]


async def test_what_is_read_back_from_before_copies_is_not_dropped_with_what_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 4096)
    world, queue = await deep()
    assert queue.log is not None
    queue.log.copy_oldest()  # the first of the queue, behind all that is cold
    world.settle()
    world = await world.again()
    queue = world.broker.queues[b"q"]
    held = [message for _ in range(200) if (message := queue.get(no_ack=False)) is not None]
    queue.settle(held[1:100])  # what was copied, but for one that somebody still has
    world.settle()
    assert queue.log is not None
    assert queue.log.log.first > 0
    world = await world.again()
    assert drained(world.broker.queues[b"q"]) == [0, *range(100, 400)]


async def test_messages_expire_at_their_time_wherever_they_are() -> None:
    world, queue = await deep(50, {"x-message-ttl": 10_000})
    world.advance(5)
    fill(world, 50, 100)
    assert queue.row.cold is not None
    assert queue.row.cold.count
    world.advance(5.02)
    assert queue.depth == 50
    assert drained(queue)[0] == 50
    world, queue = await deep(100, {"x-message-ttl": 10_000})
    world.advance(5)
    world = await world.again()
    world.advance(4.5)
    assert world.broker.queues[b"q"].depth == 100
    world.advance(0.7)
    assert world.broker.queues[b"q"].depth == 0
    assert world.broker.memory.total_bytes == 0


async def test_restarts_prolong_no_life_be_it_the_queues_the_messages_own_or_one_behind_a_delay() -> None:
    world, _ = await deep(0, {"x-message-ttl": 10_000})
    delayed = commands.Basic.Properties(delivery_mode=2, headers={"x-delay": 4000}).marshal()
    fill(world, 0, 1, commands.Basic.Properties(delivery_mode=2, expiration="6000").marshal())
    fill(world, 1, 2)
    fill(world, 2, 3, delayed)
    left = []
    for _ in range(7):
        world.advance(0.3)
        world = await world.again(later_seconds=1.8)
        world.advance(0)
        left.append(world.broker.queues[b"q"].depth + world.broker.queues[b"q"].later.count)
    assert left == [3, 3, 2, 2, 1, 1, 0]


def test_no_message_is_written_to_have_come_before_it_did_as_clocks_say_whole_milliseconds() -> None:
    came = [Head(b"", b"q", 1).dated(now_ms).came_ms for now_ms in (1000, 1099, 1100)]
    assert came == [1100, 1100, 1200]


async def test_what_is_cold_expires_in_its_time_though_the_last_before_it_is_got() -> None:
    world, queue = await deep(60)
    fill(world, 60, 70, commands.Basic.Properties(delivery_mode=2, expiration="1000").marshal())
    assert queue.row.cold is not None
    assert queue.row.cold.count > 10
    for number in range(60):
        message = queue.get(no_ack=True)
        assert message is not None
        assert int(message.bodies[0][:4]) == number
    world.advance(1.1)
    assert queue.depth == 0


async def test_the_oldest_go_where_a_queue_is_full() -> None:
    world, queue = await deep(400, {"x-max-length": 300})
    assert world.broker.counts.overflowed == 100
    assert drained(queue) == list(range(100, 400))


Read = Callable[[bytes | StoreError], None]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Reads that wait until they are called."""
    waiting: list[Callable[[], None]] = []
    read = Log.read

    def later(log: Log, offset: int, most: int, done: Read) -> None:
        waiting.append(lambda: read(log, offset, most, done))

    monkeypatch.setattr(Log, "read", later)
    return waiting


def at_the_cold(world: World, queue: Queue) -> Peer:
    """One who has got all that is in memory."""
    peer = Peer(world).login()
    for number in range(len(queue.row.ready)):
        assert int(peer.ask_get("q")[:4]) == number
    return peer


async def test_a_get_waits_for_the_disk_and_what_stands_behind_it_too(slow: list[Callable[[], None]]) -> None:
    world, queue = await deep(60)
    hot = len(queue.row.ready)
    peer = at_the_cold(world, queue)
    peer.method(C.Basic.Get(0, "q", True))
    peer.method(C.Basic.Get(0, "q", True))
    assert peer.say(C.Channel.Flow(True)) == []
    slow.pop()()
    found = peer.frames()
    assert numbers(bodies(found)) == [hot, hot + 1]
    assert found[-1][1].name == "Channel.FlowOk"


async def test_consumers_get_what_comes_late_and_a_purge_meanwhile_is_a_purge(
    slow: list[Callable[[], None]],
) -> None:
    world, queue = await deep(60)
    taker = Taker()
    queue.add_consumer(taker)
    queue.dispatch()
    before = len(taker.bodies)
    assert before < 60
    slow.pop()()
    assert len(taker.bodies) > before
    assert queue.purge() == 60 - len(taker.bodies)
    seen = len(taker.bodies)
    slow.pop()()
    assert len(taker.bodies) == seen
    peer = Peer(world).login()
    peer.method(C.Basic.Get(0, "q", True))
    assert peer.names() == ["Basic.GetEmpty"]


async def test_a_get_that_waits_is_answered_when_the_queue_goes(slow: list[Callable[[], None]]) -> None:
    world, queue = await deep(60)
    peer = at_the_cold(world, queue)
    assert peer.say(C.Basic.Get(0, "q", True)) == []
    world.topology.delete_queue(queue)
    assert peer.frames()[0][1].reply_code == 404
    slow.pop()()


async def test_what_cannot_be_read_is_an_error_and_no_empty_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    world, queue = await deep(60)
    peer = at_the_cold(world, queue)

    def damaged(log: Log, offset: int, _: int, done: Callable[[bytes | StoreError], None]) -> None:
        done(CorruptRecord("q.log", offset) if offset < log.visible else b"")

    monkeypatch.setattr(Log, "read", damaged)
    assert peer.say(C.Basic.Get(0, "q", True))[0][1].reply_code == 541
    other = Peer(world).login()
    other.ask(C.Queue.Declare(0, "fine"))
    other.publish("", "fine", b"x")
    assert other.ask_get("fine") == b"x"


async def test_a_read_that_fails_is_tried_again_in_a_second_and_logged_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world, queue = await deep(60)
    hot = len(queue.row.ready)
    peer = at_the_cold(world, queue)
    counts = world.broker.counts
    reads: list[int] = []

    def unreadable(log: Log, offset: int, _: int, done: Callable[[StoreError], None]) -> None:
        reads.append(offset)
        done(StoreError("the disk fails"))

    with monkeypatch.context() as failing:
        failing.setattr(Log, "read", unreadable)
        taker = Taker(no_ack=False, room=100)
        queue.add_consumer(taker)
        for seconds in range(1, 4):
            for _ in range(3):
                queue.dispatch()
            assert (len(reads), counts.failed_reads, queue.damaged, queue.lost) == (
                seconds,
                seconds,
                True,
                False,
            )
            if seconds < 3:
                world.advance(1.1)
        refused = peer.say(C.Basic.Get(0, "q", True))[0][1]
        assert (refused.reply_code, "the disk fails" in refused.reply_text) == (541, True)
    assert not taker.messages
    world.advance(1.1)
    assert (len(taker.messages) + hot, queue.damaged) == (60, False)
    logged = capsys.readouterr().out
    assert logged.count("a queue's messages cannot be read") == 1
    assert logged.count("a queue's messages can be read again") == 1


async def test_a_purge_of_what_is_cold_leaves_the_log_no_longer_than_what_lives() -> None:
    world, queue = await deep(2000)
    taker = Taker(no_ack=False, room=30)
    queue.add_consumer(taker)
    queue.dispatch()
    world.settle()
    assert queue.row.has_cold
    assert queue.log is not None
    log = queue.log.log
    queue.purge()
    for _ in range(5):
        world.broker.log_changed(queue.log)
        world.settle()
    assert log.visible - log.first < 2 * queue_log.SLACK_BYTES
    again = await world.again()
    assert ready(again.broker.queues[b"q"]) == taker.bodies


async def test_lives_of_their_own_are_remembered() -> None:
    world, queue = await deep(60)
    for seconds in (3, 2, 100):
        text = b"%d" % (1000 * seconds)
        properties = b"\x11\x00\x02" + bytes((len(text),)) + text
        world.publish(b"", b"q", body(60 + seconds), properties=properties)
    world.settle()
    world.advance(10)
    assert drained(queue) == [*range(60), 160]


@pytest.mark.parametrize("count", [400, 20])
@pytest.mark.parametrize(
    "limits", [{"x-max-length": 15}, {"x-max-length-bytes": 5 * 512 + 100}, {"x-max-length": 1000}]
)
async def test_what_a_lower_limit_would_drop_is_said_before(count: int, limits: dict[str, int]) -> None:
    world, queue = await deep(count)
    said = await call(world, queue, "change", dry_run=True, **limits)
    assert (queue.depth, said["changed"]) == (count, 1)
    assert await call(world, queue, "change", **limits, **{"x-overflow": "reject-publish"}) == {
        "changed": 2,
        "dropped": 0,
    }
    assert (await call(world, queue, "change", **{"x-overflow": None}))["dropped"] == said["dropped"]
    world.settle()
    assert queue.depth == count - said["dropped"]


async def test_what_waits_in_the_midst_of_what_a_start_left_on_disk_does_not_come_with_that() -> None:
    world, queue = await deep(100)
    for number in (100, 101):
        delay = read({"properties": {"headers": {"x-delay": 60_000}}}, persistent=True)
        world.publish(b"", b"q", body(number), properties=delay)
        world.settle()
    fill(world, 102, 200)
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert (queue.row.has_cold, queue.depth, queue.later.count) == (True, 198, 2)
    assert await call(world, queue, "cancel", position=100) == {"cancelled": 1}
    assert drained(queue) == [number for number in range(200) if number not in (100, 101)]
    world.advance(61)
    assert drained(queue) == [101]

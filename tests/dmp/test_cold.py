"""Messages that wait for their time on disk alone: they come as they were and when they should."""

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from dmp import later, queue_log
from dmp.once import HEADER
from dmp.queue_records import MessageReader, number_in
from dmp.queues import Queue
from dmp.settings import DmpSettings
from dmp.shown_properties import read
from shared.errors import CorruptRecord, OutOfRange, StoreError
from shared.queues.runs import Run
from shared.queues.waiting import WAITING_BYTES
from shared.storage.log import Log
from shared.storage.lost import Lost
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call
from tests.dmp.test_times import properties
from tests.dmp.world import WALL_MS, Taker, World, in_memory, ready
from tests.support.stores import HandClock

Read = Callable[[bytes | StoreError], None]


def delayed(world: World, body: bytes, delay_ms: int = 60_000, **headers: Any) -> None:
    world.publish(b"", b"q", body, properties=properties(**{"x-delay": delay_ms}, **headers))
    world.settle()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Read]]:
    """Reads that wait for their answers: where, and to whom it goes."""
    waiting: list[tuple[int, Read]] = []
    monkeypatch.setattr(Log, "read", lambda log, offset, most, done: waiting.append((offset, done)))
    return waiting


async def test_bodies_that_wait_take_no_memory_and_come_as_they_were(world: World) -> None:
    queue = world.queue(durable=True)
    for number in range(300):
        delayed(world, b"%03d" % number + bytes(1000), 60_000 + 10 * number)
    for _ in range(2):
        assert (queue.depth, queue.later.count) == (0, 300)
        assert world.broker.memory.total_bytes < 300 * (WAITING_BYTES + 50)
        world = await world.again()
        queue = world.broker.queues[b"q"]
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)
    for _ in range(70):
        world.advance(1)
    assert [body[:3] for body in taker.bodies] == [b"%03d" % number for number in range(300)]
    assert all(len(body) == 1003 for body in taker.bodies)
    queue.settle(taker.messages)
    world.settle()
    assert world.broker.memory.total_bytes == 0


async def test_what_waits_does_not_hold_what_left_around_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 4096)
    queue = world.queue(durable=True)
    taker = Taker(no_ack=False)
    queue.add_consumer(taker)

    def pass_through(count: int) -> None:
        world.publish(b"", b"q", *[bytes(100)] * count, properties=properties())
        world.settle()
        queue.settle(taker.messages)
        taker.messages.clear()
        world.settle()

    for number in range(40):
        delayed(world, b"%02d" % number, 600_000)
        pass_through(10)
    for _ in range(60):
        pass_through(10)
    assert queue.log is not None
    log = queue.log.log
    assert log.first > 0
    assert log.end - log.first < 3 * 40 * 300 + 3 * 4096
    for _ in range(2):
        world = await world.again()
        queue = world.broker.queues[b"q"]
        assert (queue.depth, queue.later.count) == (0, 40)
    world.advance(601)
    assert ready(queue) == [b"%02d" % number for number in range(40)]


async def test_what_is_not_copied_since_it_was_leaving_is_not_dropped_when_it_waits_after_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 300)
    queue = world.queue(durable=True, retry_ms=60_000)
    delayed(world, b"waits", 600_000)
    world.publish(b"", b"q", b"tried", properties=properties())
    world.settle()
    held = queue.get(no_ack=False)
    assert held is not None
    assert queue.log is not None
    queue.log.part([held])
    queue.log.copy_oldest()
    queue.log.stay([held])
    queue.requeue([held])
    for _ in range(20):
        world.publish(b"", b"q", bytes(100), properties=properties())
        world.settle()
        assert queue.get(no_ack=True) is not None
        world.settle()
    assert queue.later.count == 2
    queue = (await world.again()).broker.queues[b"q"]
    assert (queue.later.count, queue.lost) == (2, False)


async def test_a_message_whose_record_was_moved_while_it_was_read_is_read_where_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(durable=True)
    delayed(world, b"stays")
    assert queue.log is not None
    records = list[Any]()
    queue.log.log.read(0, 1 << 20, records.append)
    asked: list[tuple[int, Read]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Log, "read", lambda log, offset, most, done: asked.append((offset, done)))
        world.advance(60.1)
        queue.log.copy_oldest()
        asked.pop()[1](records[-1])  # that of the copy
        world.settle()
        assert queue.log.is_copy(0) is False
        place = queue.log.waiting.place_of(0)
        assert place is not None
        assert place > 0
        asked.pop()[1](OutOfRange(place))
        assert [offset for offset, _ in asked] == [place]
        asked.pop()[1](records[-1])
    world.advance(1)
    assert ready(queue) == [b"stays"]
    assert not queue.lost


@pytest.mark.parametrize("how", ["cancel", "purge", "delete"])
async def test_what_leaves_while_it_is_read_has_left(
    world: World, how: str, reads: list[tuple[int, Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(durable=True)
    delayed(world, b"goes")
    world.advance(60.1)
    ((_, answer),) = reads
    monkeypatch.undo()
    data = list[Any]()
    assert queue.log is not None
    queue.log.log.read(0, 1 << 20, data.append)
    if how == "cancel":
        assert await call(world, queue, "cancel", position=0) == {"cancelled": 1}
    elif how == "purge":
        assert queue.purge() == 1
    else:
        world.topology.delete_queue(queue)
    answer(data[0])
    world.advance(1)
    world.settle()
    assert (queue.later.count, ready(queue), world.broker.memory.total_bytes) == (0, [], 0)
    assert (await world.again()).broker.counts.recovered == 0


async def test_damage_costs_what_stood_there_and_a_failing_disk_nothing(
    world: World, reads: list[tuple[int, Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(durable=True, once=True)
    for body in (b"a", b"b"):
        delayed(world, body, 60_000 if body == b"a" else 120_000, **{HEADER.decode(): body.decode()})
    world.advance(60.1)
    monkeypatch.setattr(Log, "lost_at", lambda log, offset: Lost(offset, 10, 1))
    reads.pop()[1](CorruptRecord("q.log", 0))
    assert (queue.lost, queue.later.count, queue.depth) == (True, 1, 0)
    delayed(world, b"a again", **{HEADER.decode(): "a"})
    assert queue.later.count == 2, "its name is free"
    world.advance(59.9)
    reads.pop()[1](StoreError("the disk fails"))
    world.advance(100)
    assert (len(reads), queue.later.count, queue.depth) == (1, 0, 2), "it is tried again"
    monkeypatch.undo()
    world = await world.again(later_seconds=1)
    assert sorted(ready(world.broker.queues[b"q"])) == [b"a", b"a again", b"b"]


async def test_while_memory_is_scarce_all_that_is_due_is_ready_and_only_some_of_it_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later, "HOT_LEAST_BYTES", 3000)
    queue = world.queue(durable=True)
    for number in range(50):
        delayed(world, b"%02d" % number + bytes(500))
    world.broker.memory.take_bounds(1 << 30, 0)
    world.publish(b"", b"q", b"in the way")
    world.settle()
    world.advance(61)
    assert (queue.depth, queue.later.count, queue.row.all_body_bytes) == (51, 0, 50 * 502 + 10)
    assert 1 < len(in_memory(queue)) < 20
    bodies = list[bytes]()
    while (run := queue.get(no_ack=True)) is not None:
        assert len(in_memory(queue)) < 20
        bodies += run.bodies
    assert [body[:2] for body in bodies] == [*[b"%02d" % number for number in range(50)], b"in"]


def set_clock(world: World, seconds: float) -> None:
    clock = world.store.clock
    assert isinstance(clock, HandClock)
    clock.wall += round(seconds * 1000)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_delay_is_as_long_as_it_was_when_the_clock_is_set_and_a_time_of_it_moves(
    world: World, durable: bool, seconds: float
) -> None:
    queue: Queue = world.queue(durable=durable, eta_header=b"eta")
    at = world.broker.wall_seconds() + 7200
    world.publish(
        b"", b"q", b"at", properties=read({"properties": {"headers": {"eta": at}}}, persistent=durable)
    )
    delayed(world, b"delayed", 7_200_000)
    set_clock(world, seconds)
    world.advance(61)
    for _ in range(10 if seconds > 0 else 0):
        world.advance(354)
    assert ready(queue) == ([b"at"] if seconds > 0 else [])
    world.advance(7200 - 61 - (3540 if seconds > 0 else 0) + 1)
    assert ready(queue) == ([b"at", b"delayed"] if seconds > 0 else [b"delayed"])
    if seconds < 0:
        world.advance(3600)
        assert ready(queue) == [b"at", b"delayed"]


async def test_a_time_of_the_clock_moves_with_it_after_a_restart_which_reads_no_message_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await World.open(DmpSettings(message_bytes_max=1000))
    table = {"x-eta-header": "eta"}
    Peer(world).login().ask(commands.Queue.Declare(queue="q", durable=True, arguments=table))
    at_ms = WALL_MS + 1_800_000
    for body, headers in (
        (b"eta", {"eta": at_ms // 1000}),
        (b"at", {"x-delay": 1}),
        (b"delay", {"x-delay": 1_800_000}),
        (b"later", {"x-delay": 900_000, "eta": at_ms // 1000 - 1000}),
        (b"large" * 500, {"eta": at_ms // 1000}),
    ):
        said = {"properties": {"headers": headers}}
        world.publish(b"", b"q", body, properties=read(said, persistent=True))
        world.settle()
    await call(world, world.broker.queues[b"q"], "reschedule", position=1, at=f"{at_ms}")
    heads = list[int]()
    look = MessageReader.read

    def looked(self: MessageReader, data: bytes, start: int, end: int, offset: int) -> Run:
        heads.append(number_in(data, start))
        return look(self, data, start, end, offset)

    monkeypatch.setattr(MessageReader, "read", looked)
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert (heads, queue.later.count) == ([4], 5), "the large one is in memory"
    set_clock(world, 3600)
    world.advance(61)
    world.advance(0)
    assert [run.first for run in queue.ready] == [0, 1, 4]

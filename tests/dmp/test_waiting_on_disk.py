"""What waits for its time on disk alone, while it is read, taken out, purged beside, or about to leave."""

from collections.abc import Callable

import pytest
import trio
from pamqp import commands

from dmp import queue_log
from dmp.cold_records import cold_message
from dmp.once import HEADER
from dmp.settings import DmpSettings
from dmp.shown_properties import read
from shared.errors import CorruptRecord, StoreError
from shared.objects import ObjectMissing
from shared.queues.cold import ColdMessages, due_of, place_of
from shared.queues.runs import Run
from shared.storage.log import Log
from shared.storage.lost import Lost
from tests.dmp.amqp_peer import Peer
from tests.dmp.test_admin import call, row
from tests.dmp.test_named import declared, publish, with_cold
from tests.dmp.test_times import deliver_and, nack, properties
from tests.dmp.world import Taker, World, in_memory, ready
from tests.support.turns import short_turns


def delayed(world: World, body: bytes, *, persistent: bool = True) -> None:
    world.publish(b"", b"q", body, properties=properties(persistent, **{"x-delay": 5000}))
    world.settle()


async def test_one_that_is_not_persistent_and_came_behind_cold_ones_is_delivered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_cold(world, monkeypatch, 10)
    delayed(world, b"late", persistent=False)
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    queue.dispatch()
    with trio.fail_after(10):
        (shown,) = (await call(world, queue, "job", position=10))["items"]
    assert (shown["text"], shown["state"]) == ("late", "waiting")
    world.advance(6)
    assert taker.bodies[-1] == b"late"


async def test_some_are_read_back_at_once_and_all_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    load = ColdMessages.load

    def loaded(self: ColdMessages, runs: list[Run], then: Callable[[], None]) -> None:
        read.append(len(runs))
        load(self, runs, then)

    monkeypatch.setattr(ColdMessages, "load", loaded)
    world = await World.open(DmpSettings())
    queue = world.queue(durable=True)
    taker = Taker(no_ack=True)
    for number in range(100):
        delayed(world, b"%d" % number)
    queue.add_consumer(taker)
    world.advance(4.9)
    assert read == []
    world.advance(0.2)
    assert (max(read), sum(read)) == (32, 100)
    assert taker.bodies == [b"%d" % number for number in range(100)]


async def test_what_was_purged_is_not_found_on_the_disk(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_cold(world, monkeypatch, 10)
    queue.purge()
    world.settle()
    with trio.fail_after(10):
        for action in ("job", "cancel"):
            with pytest.raises(ObjectMissing):
                await call(world, queue, action, position=9)


async def test_a_held_large_message_outlives_a_purge_of_the_cold_ones_around_it() -> None:
    world = await World.open(DmpSettings(hot_bytes=0, message_bytes_max=1000))
    world.queue(durable=True)
    for number in range(30):
        publish(world, b"%02d" % number * 400)
    delayed(world, b"x" * 2000)
    for number in range(31, 40):
        publish(world, b"%02d" % number * 400)
    world = await world.again()
    queue = world.broker.queues[b"q"]
    world.advance(6)
    assert queue.row.cold is not None
    assert queue.row.cold.first < 30 < queue.row.cold.end
    held = queue.row.take_out(30)
    assert held is not None
    queue.hold(held)
    queue.purge()
    world.settle()
    world = await world.again()
    assert [run.first for run in world.broker.queues[b"q"].row.ready] == [30]


async def test_a_dead_letter_that_the_disk_refuses_to_move_keeps_its_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "SLACK_BYTES", 1)
    queue = world.queue(durable=True, dead_letter_exchange=b"", dead_letter_key=b"dead")
    world.queue(b"dead", durable=True)
    delayed(world, b"x")
    world.advance(6)
    run = queue.get(no_ack=False)
    assert run is not None
    assert queue.log is not None
    queue.reject([run])
    queue.log.copy_oldest()  # all that is to be copied is, before the disk has answered
    world.refuse_a_write()
    world.settle()
    for number in range(5):
        publish(world, b"%d" % number)
        queue.get(no_ack=True)
        world.settle()
    world = await world.again()
    assert ready(world.broker.queues[b"q"]) == [b"x"]


def test_a_time_that_is_too_late_to_be_noted_leaves_the_place_as_it_is() -> None:
    message = cold_message(
        7, 1 << 50, 0, noted=False, seen=False, by_clock=False, body_bytes=0, priority=0, texts={}
    )
    assert (place_of(message), due_of(message)) == (7, (1 << 40) - 1)


async def test_who_waits_for_the_last_cold_message_is_told_that_it_was_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = with_cold(world, monkeypatch, 10)
    told: list[bool] = []
    while queue.ready.count:
        queue.leave(queue.row.take(1))
    cold = queue.row.cold
    assert cold is not None
    for position in range(cold.first, cold.end - 1):
        await call(world, queue, "cancel", position=position)
    queue.row.when_loaded(lambda: told.append(True))
    await call(world, queue, "cancel", position=cold.end - 1)
    assert told == [True]


async def test_while_memory_is_scarce_the_next_is_read_when_a_consumer_has_taken_what_was() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = world.queue(durable=True)
    world.queue(b"others")
    world.publish(b"", b"others", b"take what there is")
    for number in range(6):
        delayed(world, b"%d" % number * 20_000)
    taker = Taker(no_ack=True, room=1)
    queue.add_consumer(taker)
    world.advance(5.001)
    for _ in range(5):
        taker.count = 1
        queue.dispatch()
        world.advance(0)
    assert len(taker.bodies) == 6


@pytest.mark.parametrize("others", [False, True])
async def test_while_memory_is_scarce_a_failed_try_comes_again_before_what_its_key_holds_up(
    others: bool,
) -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = declared(world, per_key=1)
    for number in range(2):
        publish(world, b"%d" % number * 20_000, x_key="k")
    peer = Peer(world).login()
    deliver_and(peer, nack)
    if others:  # of other keys, which nobody takes
        for number in range(2, 4):
            publish(world, b"%d" % number * 20_000, x_key=f"{number}")
    world.advance(2)
    world.advance(0.2)
    run = queue.get(no_ack=False)
    assert run is not None
    assert run.first == 0


async def test_while_memory_is_scarce_of_a_queue_with_keys_that_nobody_takes_from_little_is_read() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = declared(world, per_key=1)
    many = 1000
    for number in range(many):
        message = properties(True, **{"x-delay": 1000, "x-key": str(number)})
        world.publish(b"", b"q", b"%04d" % number * 500, properties=message)
    world.settle()
    world.advance(1.1)
    for _ in range(100):
        world.advance(0.1)
        assert queue.depth == many
        assert len(in_memory(queue)) <= 32
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    queue.dispatch()
    world.finish_work()
    assert len(taker.bodies) == many


async def test_while_memory_is_full_a_queue_all_of_whose_keys_are_held_does_not_grow() -> None:
    most = 1 << 20
    world = await World.open(DmpSettings(hot_bytes=0, memory_bytes_max=most))
    queue, taker = declared(world, per_key=1), Taker(no_ack=False, room=2000)
    publish(world, b"first", x_key="k")
    queue.add_consumer(taker)
    queue.dispatch()
    many = 1000
    for number in range(many):
        message = properties(True, **{"x-delay": 1000, "x-key": "k"})
        world.publish(b"", b"q", b"%04d" % number * 500, properties=message)
    world.settle()
    for _ in range(100):
        world.advance(0.1)
    assert len(taker.bodies) == 1
    assert world.broker.memory.total_bytes < 1.1 * most
    for run in taker.messages:  # one after the other: it grows meanwhile
        queue.settle((run,))
        world.advance(0.1)
    assert len(taker.bodies) == many + 1


@pytest.mark.parametrize("crashes", [False, True])
async def test_very_many_that_are_purged_leave_in_turns_and_on_the_disk_all_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    monkeypatch.setattr(queue_log, "TAKEN_MOST", 10)
    queue, taker = world.queue(durable=True, once=True, per_key=1), Taker(no_ack=False, room=1)
    queue.add_consumer(taker)
    for number in range(300):
        headers: dict[str, object] = {HEADER.decode(): f"{number}", "x-key": f"{number}"}
        if number >= 100:
            headers["x-delay"] = 5000
        world.publish(b"", b"q", b"%d" % number, properties=properties(True, **headers))
        world.settle()
    assert (queue.held, queue.depth, queue.later.count) == (1, 99, 200)
    short_turns(monkeypatch, 3)
    count, whole = world.topology.purge_queue(queue)
    assert (count, queue.depth, queue.later.count) == (299, 0, 0)
    assert whole is not None
    turns = 0
    assert queue.log is not None
    while not (whole.done or (crashes and turns == 4)):
        queue.log.flush()  # as for what is acknowledged meanwhile
        world.settle()
        world.broker.timers.run_due()
        turns += 1
    assert turns >= 4
    assert queue.once is not None
    assert crashes or queue.once.number_of("250") is None
    left = (await world.again()).broker.queues[b"q"]
    assert left.depth + left.later.count == (300 if crashes else 1)


async def test_what_its_record_is_not_in_is_said_to_be_lost(world: World) -> None:
    queue = world.queue(durable=True)
    delayed(world, b"x")
    delayed(world, b"y")
    assert queue.log is not None
    elsewhere = queue.log.waiting.place_of(1)
    assert elsewhere is not None
    queue.log.waiting.move(0, elsewhere)
    world.advance(6)
    assert (ready(queue), queue.later.count, queue.lost) == ([b"y"], 0, True)


async def test_where_not_even_the_index_can_be_read_what_is_due_stays_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(durable=True)
    delayed(world, b"x")

    def damaged(log: Log, offset: int, _: int, done: Callable[[StoreError], None]) -> None:
        done(CorruptRecord(log.file.path, offset))

    def unreadable(log: Log, offset: int) -> Lost:
        raise StoreError("the index cannot be read")

    with monkeypatch.context() as failing:
        failing.setattr(Log, "read", damaged)
        failing.setattr(Log, "lost_at", unreadable)
        world.advance(6)
        assert (queue.depth, queue.lost, world.broker.counts.failed_reads) == (1, False, 1)
        world.advance(1.1)
        assert world.broker.counts.failed_reads == 2
    world.advance(1.1)
    assert (ready(queue), queue.later.count) == ([b"x"], 0)


def asked_depth(world: World) -> int:
    """The `message_count` of a passive `queue.declare`."""
    answer = Peer(world).login().ask(commands.Queue.Declare(queue="q", passive=True))
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count or 0


def taken(world: World) -> list[bytes]:
    """The first two bytes of the bodies of all that `basic.get` gives."""
    queue, bodies = world.broker.queues[b"q"], list[bytes]()
    while (run := queue.get(no_ack=True)) is not None:
        bodies += run.bodies
    world.settle()
    return [body[:2] for body in bodies]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("hot_bytes", [0, 20_000])
async def test_while_memory_is_scarce_what_is_due_counts_and_comes_in_its_place(
    hot_bytes: int, crashes: bool
) -> None:
    world = await World.open(DmpSettings(hot_bytes=hot_bytes))
    queue = world.queue(durable=True)
    for number in range(40):  # the later ones are due first
        headers = {"x-delay": 5000 - 100 * number} if number % 4 else {}
        world.publish(b"", b"q", b"%02d" % number * 1000, properties=properties(True, **headers))
        world.settle()
    assert (asked_depth(world), queue.later.count) == (10, 30)
    world.advance(3.05)
    assert (asked_depth(world), queue.later.count) == (25, 15)
    if crashes:
        world = await world.again()
        queue = world.broker.queues[b"q"]
    world.advance(2)
    assert (asked_depth(world), queue.later.count, queue.row.all_body_bytes) == (40, 0, 80_000)
    assert sum(len(run) for run in in_memory(queue)) < 30
    shown = (await call(world, queue, "peek", limit=100))["items"]
    assert [one["position"] for one in shown] == [*range(40)]
    assert not any("due" in one for one in shown)
    assert taken(world) == [b"%02d" % number for number in range(40)]
    assert world.broker.memory.total_bytes == 0
    world = await world.again()
    assert (asked_depth(world), world.broker.counts.recovered) == (0, 0)


@pytest.mark.parametrize("consumer", [False, True])
async def test_what_is_due_amid_others_that_are_on_disk_alone_comes_amid_them(
    world: World, monkeypatch: pytest.MonkeyPatch, consumer: bool
) -> None:
    monkeypatch.setattr(queue_log, "READ_BYTES", 300)
    queue = with_cold(world, monkeypatch, 30)
    for position in (12, 13, 20):
        await call(world, queue, "reschedule", position=position, delay="1s")
    world.advance(1.1)
    assert (asked_depth(world), queue.later.count) == (30, 0)
    taker = Taker(no_ack=True)
    if consumer:
        queue.add_consumer(taker)
        queue.dispatch()
        world.finish_work()
    assert (taker.bodies or taken(world)) == [b"%02d" % number for number in range(30)]


async def test_very_many_that_are_due_and_that_nobody_takes_take_little_memory() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue, many = world.queue(durable=True), 3000
    for number in range(many):
        world.publish(b"", b"q", b"%04d" % number * 500, properties=properties(True, **{"x-delay": 1000}))
    world.settle()
    for _ in range(20):
        world.advance(0.1)
    assert (queue.depth, queue.later.count) == (many, 0)
    assert len(in_memory(queue)) <= 32
    assert world.broker.memory.total_bytes < many * 500 + 100_000 < many * 2000 / 3
    while len(in_memory(queue)):
        queue.leave(queue.row.take(1))
    assert row(world, queue)["oldest_seconds"] == 2


@pytest.mark.parametrize("arguments", [{"per_key": 1}, {"per_key": 1, "fair": True}, {"max_priority": 3}, {}])
async def test_what_is_due_on_disk_alone_goes_by_its_key_and_its_priority(
    arguments: dict[str, int],
) -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    Peer(world).login().ask(commands.Queue.Declare(queue="q", durable=True, arguments=table))
    queue = world.broker.queues[b"q"]
    for number in range(12):
        said = {
            "headers": {"x-delay": 1000, "x-key": "ab"[number >= 6]},
            "priority": number % 4,
        }
        world.publish(b"", b"q", b"%02d" % number * 10_000, properties=read(said_of(said), persistent=True))
    world.settle()
    if "per_key" not in arguments:  # as a start finds it
        world = await world.again()
        queue = world.broker.queues[b"q"]
    world.advance(1.1)
    assert queue.depth == 12
    order = [int(body) for body in taken(world)]
    if "fair" in arguments:
        assert order == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    elif "max_priority" in arguments:
        assert order == [3, 7, 11, 2, 6, 10, 1, 5, 9, 0, 4, 8]
    else:
        assert order == [*range(12)]


def said_of(properties: dict[str, object]) -> dict[str, object]:
    return {"properties": properties}


async def test_of_a_key_no_more_is_given_of_what_is_due_on_disk_alone_than_may_be_held() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = world.queue(durable=True, per_key=1)
    for number in range(6):
        message = properties(True, **{"x-delay": 1000, "x-key": "ab"[number >= 3]})
        world.publish(b"", b"q", b"%d" % number * 20_000, properties=message)
    world.settle()
    taker = Taker(no_ack=False, room=10)
    queue.add_consumer(taker)
    world.advance(1.1)
    assert [run.first for run in taker.messages] == [0, 3]
    queue.settle(taker.messages[:1])
    world.advance(0)
    assert [run.first for run in taker.messages] == [0, 3, 1]


async def scarce_world() -> World:
    """One in which memory is scarce."""
    world = await World.open(DmpSettings(hot_bytes=0))
    world.queue(b"in the way")
    world.publish(b"", b"in the way", b"x")
    return world


async def test_what_is_due_on_disk_alone_expires_is_dropped_cancelled_put_off_and_purged() -> None:
    world = await scarce_world()
    queue = world.queue(durable=True, messages_max=20, dead_letter_exchange=b"", dead_letter_key=b"dead")
    dead = world.queue(b"dead", durable=True)
    for number in range(30):
        said = {"headers": {"x-delay": 1000}, **({"expiration": "2000"} if number in (11, 13) else {})}
        world.publish(b"", b"q", b"%02d" % number * 10_000, properties=read(said_of(said), persistent=True))
    world.settle()
    world.advance(1.1)
    world.settle()
    assert (queue.depth, dead.depth) == (20, 10)
    assert not any(run.first in (15, 20) for run in in_memory(queue))
    (shown,) = (await call(world, queue, "job", position=15))["items"]
    assert (shown["text"][:2], shown["state"]) == ("15", "ready")
    assert await call(world, queue, "cancel", position=15) == {"cancelled": 1}
    assert await call(world, queue, "reschedule", position=20, delay="5s") == {"rescheduled": 1}
    assert (queue.depth, queue.later.count) == (18, 1)
    shown = (await call(world, queue, "peek", limit=4))["items"]
    assert [one["text"][:2] for one in shown] == ["10", "11", "12", "13"]
    run = queue.get(no_ack=True)
    assert run is not None
    world.advance(2)
    world.settle()
    assert queue.depth == 16, "the next one has expired, and behind it one that was next then"
    world.advance(4)
    assert (queue.depth, queue.later.count) == (17, 0)
    world = await world.again()
    queue = world.broker.queues[b"q"]
    assert (queue.depth, queue.purge()) == (17, 17)
    world.settle()
    assert (queue.depth, (await world.again()).broker.queues[b"q"].depth) == (0, 0)


async def test_a_purge_takes_what_is_due_on_disk_alone_and_a_redrive_sees_it() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue, other = world.queue(durable=True), world.queue(b"other", durable=True)
    for number in range(40):
        world.publish(b"", b"q", b"%02d" % number * 10_000, properties=properties(True, **{"x-delay": 1000}))
    world.settle()
    world.advance(1.1)
    with trio.fail_after(10):
        assert (await call(world, queue, "move", to="other", limit=10))["moved"] == 10
    assert (queue.depth, other.depth) == (30, 10)
    assert queue.purge() == 30
    world.settle()
    world.finish_work()
    assert queue.loaded_bytes == 0
    again = (await world.again()).broker.queues
    assert (again[b"q"].depth, again[b"other"].depth) == (0, 10)


async def test_the_oldest_of_held_keys_is_dropped_from_the_disk_where_too_many_are_due() -> None:
    world = await World.open(DmpSettings(hot_bytes=0))
    queue = world.queue(durable=True, per_key=1, messages_max=3)
    publish(world, b"held", x_key="k")
    taker = Taker(no_ack=False, room=10)
    queue.add_consumer(taker)
    queue.dispatch()
    for number in range(6):
        message = properties(True, **{"x-delay": 1000, "x-key": "k"})
        world.publish(b"", b"q", b"%d" % number * 20_000, properties=message)
    world.settle()
    world.advance(1.1)
    world.advance(0.1)
    assert (queue.depth, [body[:1] for body in ready(queue)]) == (3, [b"3", b"4", b"5"])
    world.settle()
    assert (await world.again()).broker.counts.recovered == 4, "the one that is held, too"


@pytest.mark.parametrize("there", [False, True])
async def test_one_that_is_not_to_live_goes_to_who_has_room_however_long_the_disk_takes(
    world: World, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    asked: list[tuple[int, Callable[[object], None]]] = []
    queue, taker = world.queue(durable=True), Taker(no_ack=True)
    said = {"headers": {"x-delay": 1000}, "expiration": "0"}
    world.publish(b"", b"q", b"x", properties=read(said_of(said), persistent=True))
    world.settle()
    records = list[object]()
    assert queue.log is not None
    queue.log.log.read(0, 1 << 20, records.append)
    if there:
        queue.add_consumer(taker)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "read", lambda log, offset, most, done: asked.append((offset, done)))
        world.advance(1.001)
        world.advance(0.02)
        asked.pop()[1](records[0])
    world.advance(0.1)
    assert (taker.bodies, queue.depth) == ([b"x"] if there else [], 0)

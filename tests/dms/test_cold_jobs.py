"""Jobs whose bodies are on the disk alone: they come as they were, and do not hold the log."""

import json
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from dms import messages, queue_log, records, wire
from dms.cold_jobs import cold_job, cold_run, head_of, is_cold_job, read_back, said_of, timed
from dms.engine import Queue
from dms.job_copying import JobCopying
from dms.job_head import JOB_FIRST, JobHead, pack_job
from dms.opening import LogReplay
from dms.records import RecordKind
from dms.settings import DmsSettings
from dms.wire import Frame, Status, Type
from shared.budget import Account
from shared.errors import OutOfRange, StoreError
from shared.queues import core
from shared.queues.cold import ColdMessages, due_of, moved, place_of, tries_of
from shared.storage.log import Log
from tests.dms.world import World, deliveries, deliveries_with, statuses, with_queue
from tests.support.turns import short_turns

pytestmark = pytest.mark.usefixtures("few_are_many")
COLD = DmsSettings(hot_bytes=0)
OK = [Status.OK]


def queue_of(world: World) -> Queue:
    return world.engine.queues[b"orders"]


def bodies(world: World, count: int) -> list[bytes]:
    return [body for _, body in world.connect().consume("orders", count)]


def test_what_is_known_of_a_cold_job_is_what_was_said() -> None:
    head = JobHead(key="k", expires=9, dedup="d", priority=3, at_ms=7, text="why", produced_ms=1, behind=2)
    job = cold_job((1 << 47) + 5, (1 << 40) - 1, 3, head)
    assert is_cold_job(job)
    assert not is_cold_job(pack_job(0, head, b"\xff"))
    assert (place_of(job), due_of(job), tries_of(job)) == ((1 << 47) + 5, (1 << 40) - 1, 3)
    known = {name: value for name, value in head.about.items() if name not in ("produced", "behind")}
    assert head_of(job).about == known
    assert place_of(moved(job, 8)) == 8
    assert (tries_of(timed(job, 4, 5)), due_of(timed(job, 4, 5))) == (4, 5)
    assert head_of(said_of(moved(job, 8), "so")).about == {**known, "text": "so"}
    assert tries_of(cold_job(0, 0, 1 << 30, head)) == (1 << 24) - 1


@pytest.mark.parametrize("said", [{"delay_ms": 5000}, {}, {"key": "k"}], ids=["waiting", "ready", "keyed"])
def test_bodies_that_fill_memory_keep_no_job_out_and_jobs_themselves_do_at_last(said: dict[str, Any]) -> None:
    world = World(COLD, budget=Account("process", 300_000))
    peer = with_queue(world, options=b'{"per_key": 1}')
    if "key" in said:
        peer.produce_with("orders", b"held", **said)
        ((held, _),) = peer.consume("orders")
    found: list[Status] = []
    while len(found) < 3000 and found.count(Status.QUEUE_FULL) < 3:
        found += statuses(peer.produce_with("orders", b"x" * 1000, **said))
    assert 400 < found.count(Status.OK) < 3000  # 300 bodies would fill it
    assert Status.QUEUE_FULL in found
    assert world.engine.memory.loaded_bytes < 350_000
    if "key" in said:
        peer.ack(held)
    world.advance(5.1)
    for _ in range(found.count(Status.OK)):
        ((held, body),) = peer.consume("orders")
        assert body == b"x" * 1000
        peer.ack(held)
    memory = world.engine.memory
    assert (memory.jobs_bytes, memory.loaded_bytes) == (0, 0)


def test_a_cold_job_is_looked_at_and_keeps_what_a_nack_said(world: World) -> None:
    peer = with_queue(world)
    peer.produce_with("orders", b"one", dedup="a", headers={"h": 1})
    ((held, _, _),) = peer.consume_with("orders")
    assert statuses(peer.ask(Type.NACK, b"\0\0" + (5000).to_bytes(4) + b"why", held)) == OK
    (frame,) = peer.job(Type.GET_JOB, "orders", dedup="a")
    assert b'"why"' in frame[4]
    assert frame[4].endswith(b"one")
    (row,) = world.call("peek", queue="orders", limit=10)
    assert row["text"] == "one"
    world.advance(5.1)
    ((_, about, body),) = peer.consume_with("orders")
    assert (about["headers"], about["deliveries"], body) == ({"h": 1}, 2, b"one")


def test_many_cold_jobs_are_read_back_in_turns_and_all_come(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(COLD)
    peer = with_queue(world)
    sent = [b"%04d" % number * 1000 for number in range(40)]
    for body in sent:
        peer.produce_with("orders", body, delay_ms=1000)
    world.advance(1.1)
    reads: list[int] = []
    read = Log.read

    def counted(log: Log, offset: int, *rest: Any) -> None:
        reads.append(offset)
        read(log, offset, *rest)

    monkeypatch.setattr(Log, "read", counted)
    short_turns(monkeypatch, 1)
    came = [body for _, body in peer.consume("orders", 40)]
    assert (came, len(reads)) == (sent[: len(came)], 1), "one read is a turn"
    assert 0 < len(came) < 32
    world.advance(1)
    came += [body for _, body in deliveries(peer.take())]
    assert came == sent


def test_cold_jobs_with_a_dead_letter_queue_die_with_their_bodies() -> None:
    world = World(COLD)
    peer = with_queue(world, options=b'{"dead_letter": "dead"}')
    peer.create("dead")
    for number in range(5):
        peer.produce_with("orders", b"%d" % number, delay_ms=1000, ttl_ms=1000, key="k")
    world.advance(3)
    assert world.depths() == {"orders": 0, "dead": 5}
    found = peer.consume_with("dead", 5)
    assert sorted(body for _, _, body in found) == [b"0", b"1", b"2", b"3", b"4"]
    assert {about["key"] for _, about, _ in found} == {"k"}


def test_jobs_that_stay_do_not_hold_what_left_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(COLD)
    peer, worker = with_queue(world), world.connect()
    for number in range(40):
        peer.produce_with("orders", b"stays %d" % number, delay_ms=3_600_000, key=f"{number}")
        for _ in range(10):
            peer.produce("orders", b"." * 100)
        worker.ack(*[held for held, _ in worker.consume("orders", 10)])
    log = queue_of(world).log
    assert log is not None
    for _ in range(60):
        peer.produce("orders", *[b"." * 100] * 10)
        worker.ack(*[held for held, _ in worker.consume("orders", 10)])
        world.advance(1.1)
    live = 40 * 200
    assert log.log.first > 0
    assert log.log.end - log.log.first < 3 * live + 10 * queue_log.SNAPSHOT_BYTES
    for _ in range(2):
        world.kill()
        assert world.depths() == {"orders": 40}
    world.advance(3_600)
    found = world.connect().consume_with("orders", 41)
    assert [(about["key"], body) for _, about, body in found] == [
        (f"{number}", b"stays %d" % number) for number in range(40)
    ]


@pytest.mark.parametrize("killed_at", [100, 61, 64])
@pytest.mark.parametrize("seed", range(6))
def test_what_happens_while_a_snapshot_is_written_is_not_lost(
    seed: int, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot in many slices, and in each of them jobs come, go and change; or the server is killed."""
    short_turns(monkeypatch, 1, 2)
    pick = random.Random(seed)
    world = World(COLD)
    peer, worker = with_queue(world, options=b'{"dedup_ms": 60000}'), world.connect()
    jobs: dict[int, float] = {}

    def step(number: int) -> None:
        match pick.randrange(5):
            case 0 | 1:
                delay = pick.choice((0, 1000, 5000))
                peer.produce_with("orders", b"%d" % number, dedup=f"{number}", delay_ms=delay)
                jobs[number] = delay
            case 2 if jobs:
                name = pick.choice(sorted(jobs))
                if statuses(peer.job(Type.CANCEL, "orders", dedup=f"{name}")) == OK:
                    del jobs[name]
            case 3 if jobs:
                peer.job(Type.RESCHEDULE, "orders", dedup=f"{pick.choice(sorted(jobs))}", delay_ms=5000)
            case 4:
                for held, body in worker.consume("orders"):
                    if pick.random() < 0.5:
                        worker.ack(held)
                        del jobs[int(body)]
                    elif pick.random() < 0.5:
                        worker.nack(held)

    for number in range(60):
        step(number)
    log, queue = queue_of(world).log, queue_of(world)
    assert log is not None
    before = world.engine.counts.snapshots
    log.snapshot()
    number = slices = 60
    while world.engine.upkeep.busy and slices < killed_at:
        step(number := number + 1)
        slices += 1
        world.times.timers.run_due()
    if killed_at == 100:
        assert slices > 65
        assert world.engine.counts.snapshots > before
    world.settle()
    assert queue.depth == len(jobs)
    world.kill()
    assert world.depths() == {"orders": len(jobs)}
    world.advance(6)
    last = world.connect()
    found = last.consume("orders", 200)
    world.advance(1)  # turns are short
    assert sorted([int(body) for _, body in [*found, *deliveries(last.take())]]) == sorted(jobs)


def test_damage_costs_the_jobs_that_stood_there_and_says_so() -> None:
    world = World(COLD)
    peer = with_queue(world)
    for number in range(400):
        peer.produce_with("orders", b"%06d" % number + bytes(1000), delay_ms=1000)
    log = queue_of(world).log
    assert log is not None
    log.snapshot()
    world.settle()
    assert trio.run(world.store.flush)
    world.disk.flip("dms/orders.log", 200_000 * 8)
    trio.run(world.store.close)
    world.disk = world.disk.kill()
    world.peers.clear()
    world.open()
    assert world.depths() == {"orders": 400}, "nothing of them was read"
    peer = world.connect()
    world.advance(2)
    found: list[bytes] = []
    refused = 0

    def in_the_next_turn() -> list[Frame]:
        world.advance(0.01)
        return peer.take()

    while frames := peer.ask(Type.CONSUME, b"\0\6orders") or in_the_next_turn():
        refused += statuses(frames) == [Status.INTERNAL]
        found += [body for _, body in deliveries(frames)]
    assert refused == 1
    assert 300 < len(found) < 400
    assert found == sorted(found)
    assert world.depths() == {"orders": len(found)}
    assert world.engine.counts.damaged_ranges == 1


def of_an_earlier_version() -> Iterator[bytes]:
    """Jobs came two in a record; then a snapshot copied those that were left."""
    head = JobHead(produced_ms=1, behind=1, key="k", due=7)
    forms = [pack_job(0, head, b"%d" % number) for number in range(4)]
    for first in (0, 2):
        entries = b"".join((JOB_FIRST + seq).to_bytes(8) + forms[seq] for seq in range(first, first + 2))
        yield records.pack(RecordKind.JOBS, 2, JOB_FIRST + first, 5, 0, entries)
    kept = b"".join((JOB_FIRST + seq).to_bytes(8) + forms[seq] for seq in (1, 3))
    yield records.pack(RecordKind.KEPT, 2, 0, 5, 0, kept)
    state = {"head": 1, "tail": 1, "home": 0, "jobs": JOB_FIRST + 4}
    yield records.pack(RecordKind.SNAPSHOT, 1, 1, 5, 0, json.dumps(state).encode())


def test_a_snapshot_of_an_earlier_version_says_which_jobs_there_are_and_where() -> None:
    parts = [*of_an_earlier_version()]
    data = b"".join(parts)
    replay = LogReplay()
    replay.apply(data, 0)
    assert replay.jobs.keys() == {JOB_FIRST + 1, JOB_FIRST + 3}
    for seq, job in replay.jobs.items():
        assert place_of(job) == len(parts[0] + parts[1])
        form = records.form_at(data, place_of(job), seq)
        assert form is not None
        assert form.endswith(b"%d" % (seq - JOB_FIRST))
        assert head_of(job).key == "k"


def test_jobs_that_are_due_together_come_in_order_though_none_was_in_memory() -> None:
    world = World(COLD)
    peer = with_queue(world, options=b'{"priorities": 3}')
    for number in range(600):
        peer.produce_with("orders", b"%d" % number, delay_ms=1000 + number % 7, priority=number % 3)
    world.kill()
    worker = world.connect()
    assert worker.consume_with("orders", 600) == []
    world.advance(2)
    found = [int(body) for _, _, body in deliveries_with(worker.take())]
    assert sorted(found) == [*range(600)]
    late = [number for number in found if number % 7 == 6]
    assert late == sorted(late, key=lambda number: (-(number % 3), number))


class OddLog:
    """A log that answers each read with what is said beforehand."""

    end, deleted = 0, False

    def __init__(self) -> None:
        self.reads: list[tuple[int, Callable[[bytes | StoreError], None]]] = []

    def read(self, offset: int, size: int, done: Callable[[bytes | StoreError], None]) -> None:
        self.reads.append((offset, done))


def test_a_job_whose_record_was_moved_while_it_was_read_is_read_where_it_is() -> None:
    log: Any = OddLog()
    teller: Any = SimpleNamespace(error=None, can_read=lambda: None)
    head, done = JobHead(), list[bytes]()
    run = cold_run(JOB_FIRST, cold_job(100, 0, 0, head))
    ColdMessages(log, teller, read_back).load([run], lambda: done.extend(run.bodies))
    run.offset = 900
    log.reads[0][1](OutOfRange(500))
    assert [offset for offset, _ in log.reads] == [100, 900]
    log.reads[1][1](records.pack_jobs([pack_job(0, head, b"body")], JOB_FIRST, 0, 0))
    assert done == [b"body"]


def test_copying_that_was_stopped_by_the_disk_goes_on_at_the_next_snapshot() -> None:
    log: Any = OddLog()
    copied: list[int] = []
    jobs: Any = SimpleNamespace(work=lambda steps: [*steps], all_copied=copied.append)
    copying = JobCopying(log, jobs)
    copying.begin(100, 200)
    log.reads[0][1](StoreError("the disk fails"))
    assert not copied
    copying.begin(150, 300)
    assert [offset for offset, _ in log.reads] == [100, 150]


def test_dead_jobs_that_cannot_be_read_keep_nobody_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(COLD)
    peer = with_queue(world, options=b'{"dead_letter": "dead"}')
    peer.create("dead")
    peer.produce_with("orders", b"dies", ttl_ms=1000)
    with monkeypatch.context() as failing:
        failing.setattr(Log, "read", lambda log, offset, size, done: done(StoreError("the disk fails")))
        world.advance(1.1)
        assert world.depths() == {"orders": 1, "dead": 0}
        assert queue_of(world).deadline > world.times.now_ms() + 500
        world.advance(1.1)
        assert world.engine.counts.failed_reads == 2
    world.advance(1.1)
    assert world.depths() == {"orders": 0, "dead": 1}


@pytest.mark.parametrize("jobs", [False, True])
def test_who_asks_while_the_disk_fails_is_refused_and_a_second_later_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, jobs: bool
) -> None:
    monkeypatch.setattr(core, "HOT_LEAST_BYTES", 1000)
    world = World(COLD)
    peer = with_queue(world)
    big = bytes(2000)  # what comes behind it is on disk alone
    for body in (big, b"one"):
        if jobs:
            peer.produce_with("orders", body)
        else:
            peer.produce("orders", body)
    assert bodies(world, 1) == [big]
    with monkeypatch.context() as failing:
        failing.setattr(Log, "read", lambda log, offset, size, done: done(StoreError("the disk fails")))
        for seconds, failed in ((0, 1), (0, 1), (1.1, 2)):
            world.advance(seconds)
            assert statuses(peer.ask(Type.CONSUME, wire.pack_name("orders"))) == [Status.INTERNAL]
            assert world.engine.counts.failed_reads == failed
    world.advance(1.1)
    assert bodies(world, 1) == [b"one"]


def test_jobs_stand_as_they_did_where_options_say_nothing_of_their_order(world: World) -> None:
    with_queue(world).produce_with("orders", b"one", key="k")
    jobs = queue_of(world).jobs
    assert jobs is not None
    ready = jobs.ready
    world.call("change", queue="orders", depth=50)
    assert jobs.ready is ready
    world.call("change", queue="orders", per_key=1)
    assert jobs.ready.per_key == 1
    assert bodies(world, 1) == [b"one"]


def test_a_purge_of_very_many_jobs_lets_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 1, 2)
    monkeypatch.setattr(messages, "RUN_MOST", 10)
    world = World(COLD)
    peer = with_queue(world)
    peer.produce("orders", *[b"returned %d" % number for number in range(60)])
    for number, (held, _) in enumerate(peer.consume("orders", 60)):
        peer.ask(Type.NACK, b"" if number % 2 else wire.pack_nack(10_000, ""), held)
    for number in range(100):
        peer.produce_with("orders", b"%d" % number, delay_ms=number % 2 * 1000)
    peer.produce("orders", b"plain")
    purges: list[int] = []
    log_gone = Queue.log_gone

    def gone(queue: Queue, spans: Any, reason: Any) -> Any:
        purges.append(sum(count for _, count in spans))
        return log_gone(queue, spans, reason)

    monkeypatch.setattr(Queue, "log_gone", gone)
    assert world.call("purge", queue="orders") == {"purged": 161, "held": 0}
    assert purges == [*[10] * 16, 1]
    assert world.engine.counts.purged == 161
    world.kill()
    assert queue_of(world).depth == 0

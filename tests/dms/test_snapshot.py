"""What a snapshot says, and what stands beside it in the log, make the queue that it was."""

import json
from itertools import chain

import pytest
import trio

from dms import engine, queue_log, records
from dms.cold_jobs import head_of
from dms.opening import LogReplay
from dms.records import KeptMessage, RecordKind
from dms.settings import DmsSettings
from shared.queues.cold import due_of, place_of, tries_of
from shared.queues.runs import Run
from shared.storage.log import read_records
from tests.dms.busy import busy
from tests.dms.world import World
from tests.dms.world import deliveries as deliveries_of
from tests.support.turns import short_turns


@pytest.mark.parametrize("rest", [0, 3])
def test_what_was_acknowledged_before_a_delivery_that_is_noted_with_the_snapshot_stays_gone(
    rest: int,
) -> None:
    world = World(DmsSettings())
    peer = world.connect()
    peer.create("jobs")
    peer.produce("jobs", *(b"%d" % number for number in range(2 + rest)))
    ((gone, _),) = peer.consume("jobs")
    peer.ack(gone)
    ((_, body),) = peer.consume("jobs")
    assert body == b"1"
    log = world.engine.queues[b"jobs"].log
    assert log is not None
    log.snapshot()
    world.settle()
    for _ in range(2):
        world.kill()
        assert world.depths() == {"jobs": 1 + rest}
    peer = world.connect()
    found = [body for _ in range(1 + rest) for _, body in peer.consume("jobs")]
    assert found == [b"%d" % number for number in range(1, 2 + rest)]
    peer.produce("jobs", b"new")
    world.kill()
    assert world.depths() == {"jobs": 2 + rest}


def replayed(*some: bytes) -> LogReplay:
    """Three messages came, then this."""
    replay = LogReplay()
    came = records.pack(RecordKind.ENQUEUED, 3, 1, 5, 0, records.pack_bodies([b"a", b"b", b"c"]))
    replay.apply(b"".join((came, *some)), 0)
    return replay


def run(kind: RecordKind, first: int, length: int) -> bytes:
    return records.pack_run_record(kind, [(first, length)], 5, 0)


def returned(seq: int, deliveries: int, due: int) -> bytes:
    return records.pack(RecordKind.RETURNED, 1, 0, 5, 0, records.pack_returned([(seq, deliveries, due)]))


def test_a_note_behind_what_it_is_about_brings_nothing_back() -> None:
    replay = replayed(run(RecordKind.ACKED, 1, 1), run(RecordKind.DELIVERED, 1, 2), returned(1, 2, 0))
    assert (replay.head, replay.tail, replay.out) == (3, 4, {2: (1, 0)})


def test_what_went_without_a_note_says_that_those_before_it_were_delivered() -> None:
    replay = replayed(run(RecordKind.ACKED, 2, 1))
    assert (replay.head, replay.out) == (3, {1: (1, 0)})
    replay = replayed(returned(3, 2, 70))
    assert (replay.head, replay.out) == (4, {1: (1, 0), 2: (1, 0), 3: (2, 70)})


def test_what_a_snapshot_kept_goes_as_all_else_does() -> None:
    ((_, messages),) = records.pack_kept([(Run(None, [b"a"], 1, 4), 0)], 100)
    kept = records.pack(RecordKind.KEPT, 1, 0, 5, 0, messages)
    state = records.pack(
        RecordKind.SNAPSHOT, 1, 4, 5, 0, json.dumps({"head": 4, "tail": 4, "home": 9}).encode()
    )
    replay = replayed(kept, state)
    assert (replay.head, replay.out, replay.bodies, replay.produced) == (4, {1: (4, 0)}, {1: b"a"}, [])
    replay = replayed(kept, state, run(RecordKind.ACKED, 1, 1))
    assert (replay.head, replay.out, replay.bodies) == (4, {}, {})


def test_a_copy_brings_back_nothing_that_has_left_since_its_snapshot() -> None:
    ((_, messages),) = records.pack_kept([(Run(None, [b"a", b"b"], 1, 4), 0)], 1000)
    kept = records.pack(RecordKind.KEPT, 2, 0, 5, 0, messages)
    state = {"head": 4, "tail": 4, "home": 9, "out": [1, 2, 4, 0]}
    snapshot = records.pack(RecordKind.SNAPSHOT, 1, 4, 5, 0, json.dumps(state).encode())
    replay = replayed(snapshot, run(RecordKind.ACKED, 1, 1), returned(2, 5, 70), kept)
    assert (replay.head, replay.out, replay.bodies) == (4, {2: (5, 70)}, {2: b"b"})


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("turns", range(10))
def test_a_snapshot_in_turns_says_what_is_there_whatever_happens_between_them(
    turns: int, crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "KEPT_BYTES", 1000)
    monkeypatch.setattr(engine, "POSITION_BYTES", 100)
    world = World(DmsSettings())
    peer, lost = world.connect(), world.connect()
    peer.create("jobs")
    there = {bytes([number]) * 300 for number in range(40)}
    for body in there:
        peer.produce("jobs", body)
    lost.consume("jobs", 12)
    held = dict(peer.consume("jobs", 20))
    lost.lose()  # what comes back as one run is taken in parts
    world.advance(1)
    short_turns(monkeypatch, 1, 1)
    queue = world.engine.queues[b"jobs"]
    assert queue.log is not None
    queue.log.snapshot()
    made = world.engine.counts
    assert made.snapshots == 0, "it takes several turns"
    for turn in range(turns):
        last, first = max(held), min(held)
        peer.ack(last, first)
        there -= {held.pop(last), held.pop(first)}
        peer.nack(min(held))
        del held[min(held)]
        peer.produce("jobs", b"new%d" % turn)
        there.add(b"new%d" % turn)
        held |= dict(peer.consume("jobs", 3))
        world.advance(0)
    assert made.snapshots == (turns >= 8)
    if crash:
        world.kill()
    world.advance(1)  # what was noted is written
    deliveries = _deliveries(world)
    world.kill()
    assert world.depths() == {"jobs": len(there)}
    assert _deliveries(world) == deliveries
    peer = world.connect()
    came = peer.consume("jobs", len(there))
    world.advance(0.5)
    assert {body for _, body in came + deliveries_of(peer.take())} == there


def _deliveries(world: World) -> dict[int, int]:
    runs = [run for run, _ in world.engine.queues[b"jobs"].older_than_row()]
    return {seq: run.tries for run in runs for seq in run.numbers}


def test_a_row_of_the_table_is_its_own_logs_alone() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders", b'{"depth":7}')
    table = world.engine.table
    assert table is not None
    row = json.loads(table[b"orders"])
    table.put(
        b"orders",
        json.dumps(
            {
                **row,
                "log": row["log"] + 1,
            }
        ).encode(),
    )
    world.settle()
    world.kill()
    assert world.engine.queues[b"orders"].options.depth == DmsSettings().depth


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_the_records_behind_it_say_what_is_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_log, "KEPT_BYTES", 20)
    monkeypatch.setattr(queue_log, "SNAPSHOT_BYTES", 200)
    world = busy(seed)
    world.advance(1)
    now = world.engine.times.now_ms()
    snapshots = 0
    for queue in world.engine.queues.values():
        assert queue.log is not None
        log = queue.log.log
        start = max(json.loads(world.engine.table.get(queue.name) or b"{}").get("snapshot", 0), log.first)
        replay = LogReplay()
        replay.apply(trio.run(read_records, log, start, 1 << 20), start)
        snapshots += bool(replay.state)
        kept = {
            seq: KeptMessage(seq, run.tries, due, body)
            for run, due in queue.older_than_row()
            for seq, body in zip(run.numbers, run.bodies, strict=True)
        }
        for seq, each in kept.items():
            deliveries, due = replay.out.pop(seq, (0, 0))
            assert deliveries == each.deliveries or not each.deliveries  # no record says that
            assert each.due == due or due <= now
            assert replay.bodies.get(seq, each.body) == each.body
        assert replay.out == {}
        jobs = dict(chain.from_iterable(queue.jobs.places() if queue.jobs is not None else ()))
        assert replay.jobs.keys() == jobs.keys()
        for seq, job in jobs.items():
            found = replay.jobs[seq]
            assert place_of(found) == place_of(job)
            assert tries_of(found) == tries_of(job)
            assert head_of(found).about == head_of(job).about
            assert due_of(found) == due_of(job) or due_of(found) <= now
            record = trio.run(read_records, log, place_of(job), 1)
            ((number, _),) = records.forms_in(record, next(records.unpack(record)))
            assert number == seq
        assert replay.head <= queue.head
        assert kept.keys() >= set(range(replay.head, queue.head))
    assert snapshots

"""When the disk fails, what a power cut leaves, .dmsq files, and what no single old message may hold up."""

import errno
import struct
from pathlib import Path

import attrs
import pytest
import trio

from dms import keeper, logs, wire
from dms.dmsq_file import NotDmsq, import_files, parse
from dms.settings import DmsSettings, QueueSettings
from dms.wire import Status, Type
from shared.storage import rounds
from shared.storage.settings import Durability
from tests.dms.world import World, statuses
from tests.support.commits import fail, journal_write
from tests.support.explore import sampled_states
from tests.support.fake_disk import Crash, Operation
from tests.support.stores import ALWAYS, INTERVAL, MODES, NONE


def test_strict_answers_internal_and_leaves_the_queue_as_it_was() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a", b"b")
    ((held, _),) = peer.consume("orders")
    world.disk.before = _fail_syncs
    assert statuses(peer.produce("orders", b"c", b"d")) == [Status.INTERNAL] * 2
    assert world.depths() == {"orders": 2}
    assert [(f[2], f[3]) for f in peer.ack(held)] == [(Status.INTERNAL, held)]
    assert statuses(peer.create("other")) == [Status.INTERNAL]
    assert statuses(peer.ask(Type.DELETE_QUEUE, wire.pack_name("orders"))) == [Status.INTERNAL]
    assert [body for _, body in peer.consume("orders")] == [b"b"]
    assert statuses(peer.nack(held)) == [Status.OK]
    assert world.depths() == {"orders": 2}
    assert world.broker.counts.produced == 2


def test_an_ack_that_the_disk_does_not_take_gives_its_message_back_where_nobody_is_left_to_hold_it() -> None:
    world = World()
    peer, other = world.connect(), world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    peer.session.receive(wire.pack(Type.ACK, held))
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    peer.lose()
    assert world.depths() == {"orders": 1}
    assert [body for _, body in other.consume("orders")] == [b"a"]


def test_messages_that_the_disk_does_not_take_leave_their_places_to_the_next() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    queue = world.broker.queues[b"orders"]
    for body in (b"a", b"b"):
        peer.session.receive(wire.pack(Type.PRODUCE, 1, wire.pack_name("orders") + body))
        assert queue.keeper is not None
        queue.keeper.gathered.write()  # a record for each
    fail(world.disk, errno.ENOSPC, journal_write, times=1)
    world.settle()
    peer.take()
    assert (queue.tail, queue.depth) == (1, 0)
    assert statuses(peer.produce("orders", b"c")) == [Status.OK]
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"c"]


def test_best_effort_gives_what_it_goes_on_with_to_who_waits() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer, consumer = world.connect(), world.connect()
    peer.create("orders")
    assert consumer.consume("orders") == []
    world.disk.before = _fail_syncs
    assert statuses(peer.produce("orders", b"a")) == [Status.OK]
    assert [frame[4] for frame in consumer.take()] == [b"a"]


def test_best_effort_refuses_for_want_of_space_and_keeps_to_the_disk() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    peer.create("orders")
    world.store._committer.set_full(True)
    assert statuses(peer.produce("orders", b"a")) != [Status.OK]
    world.store._committer.set_full(False)
    assert statuses(peer.produce("orders", b"b")) == [Status.OK]
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"b"]


def test_an_ack_that_the_disk_does_not_take_holds_its_message_again() -> None:
    world = World()
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    ((held, _),) = peer.consume("orders")
    world.disk.before = _fail_syncs
    assert [(f[2], f[3]) for f in peer.ack(held)] == [(Status.INTERNAL, held)]
    assert world.depths() == {"orders": 1}
    assert world.broker.counts.acked == 0
    peer.lose()
    assert [body for _, body in world.connect().consume("orders")] == [b"a"]


def test_best_effort_goes_on_in_memory_and_counts() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", b"a")
    world.disk.before = _fail_syncs
    assert statuses(peer.produce("orders", b"b", b"c")) == [Status.OK] * 2
    assert statuses(peer.produce("orders", b"d")) == [Status.OK]
    taken = peer.consume("orders", 4)
    assert [body for _, body in taken] == [b"a", b"b", b"c", b"d"]
    assert statuses(peer.ack(*(held for held, _ in taken))) == [Status.OK] * 4
    assert world.depths() == {"orders": 0}
    assert statuses(peer.create("made-in-memory")) == [Status.OK]
    assert statuses(peer.produce("made-in-memory", b"x")) == [Status.OK]
    assert world.broker.counts.unkept == 2 + 1 + 4 + 1 + 1, "each answer, and the queue"


def test_best_effort_deletes_what_the_disk_still_has() -> None:
    world = World(DmsSettings(disk_failed="best-effort"))
    peer = world.connect()
    for name in ("orders", "untouched"):
        peer.create(name)
    world.disk.before = _fail_syncs
    peer.produce("orders", b"a")
    assert statuses(peer.ask(Type.DELETE_QUEUE, wire.pack_name("untouched"))) == [Status.OK]
    assert world.depths() == {"orders": 1}
    assert world.broker.counts.unkept == 2


def _fail_syncs(operation: object) -> None:
    if getattr(operation, "kind", "").startswith("sync"):
        raise OSError(5, "the disk has failed")


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_loses_nothing_that_was_answered(seed: int) -> None:
    world = World()
    peer = world.connect()
    peer.create("dead")
    peer.create("orders", b'{"max_deliveries":1,"dead_letter":"dead"}')
    peer.produce("orders", *(b"%03d" % n for n in range(40)))
    taken = peer.consume("orders", 20)
    peer.ack(*(held for held, _ in taken[::2]))
    peer.nack(*(held for held, _ in taken[1:8:2]))  # dead: 4
    for queue in world.broker.queues.values():
        assert queue.keeper is not None
        queue.keeper.snapshot()
    world.settle()
    peer.produce("orders", *(b"%03d" % n for n in range(40, 50)))
    peer.ack(taken[9][0])
    gone = {body for _, body in taken[::2]} | {taken[9][1]}
    dead = {body for _, body in taken[1:8:2]}
    for disk in sampled_states(world.disk.power_cut(), seed, 6):
        after = World(disk=disk)
        assert after.depths() == {"orders": 50 - len(gone) - 4 - 5, "dead": 4 + 5}, (
            "held: one delivery too many"
        )
        letters = {row["body"].encode() for row in after.call("peek", queue="dead", limit=100)}
        left = [row["body"].encode() for row in after.call("peek", queue="orders", limit=100)]
        assert dead <= letters
        assert left == sorted(left)
        assert letters.isdisjoint(left)
        assert len({*letters, *left}) == 50 - len(gone)
        assert gone.isdisjoint({*letters, *left})


def _worked(mode: Durability) -> tuple[World, list[list[str] | None]]:
    """A queue's life, a step at a time; and what was in it after each (None: no queue)."""
    world = World(DmsSettings(durability=mode))
    peer = world.connect()
    states: list[list[str] | None] = [None]
    peer.create("orders")
    there: list[str] = []
    states.append([])
    for step in range(12):
        bodies = [f"{step:02d}{n}" for n in range(3)]
        peer.produce("orders", *(body.encode() for body in bodies))
        there += bodies
        states.append(list(there))
        if step == 6:
            keeper_of = world.broker.queues[b"orders"].keeper
            assert keeper_of is not None
            keeper_of.snapshot()
        taken = peer.consume("orders", 2)
        peer.ack(*(held for held, _ in taken))
        there = [body for body in there if body.encode() not in {body for _, body in taken}]
        states.append(list(there))
    return world, states


def _found(world: World) -> list[str] | None:
    if b"orders" not in world.broker.queues:
        return None
    return [row["body"] for row in world.call("peek", queue="orders", limit=100)]


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_takes_nothing_in_any_mode(mode: Durability) -> None:
    world, states = _worked(mode)
    world.kill()
    assert _found(world) == states[-1]


@pytest.mark.parametrize("mode", [INTERVAL, NONE])
@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_takes_a_suffix_where_that_is_allowed(mode: Durability, seed: int) -> None:
    """What is there is what was there once: never a message without those before it, never an ACK undone
    that a later step presupposes."""
    world, states = _worked(mode)
    seen = []
    for disk in sampled_states(world.disk.power_cut(), seed, 8):
        found = _found(World(DmsSettings(durability=mode), disk=disk))
        assert found in states
        seen.append(found)
    assert any(found != states[-1] for found in seen), "something may be lost, else this proves nothing"


@pytest.mark.parametrize("mode", [INTERVAL, NONE])
@pytest.mark.parametrize("seed", range(3))
def test_no_queue_outlives_its_options(mode: Durability, seed: int) -> None:
    """A power cut may take a queue where its mode allows that, but not the delay that it was made with."""
    settings = DmsSettings(durability=mode)
    world = World(settings)
    peer = world.connect()
    for name in ("late", "short-lived"):
        peer.create(name, b'{"delay_ms":1000}')
    peer.ask(Type.DELETE_QUEUE, wire.pack_name("short-lived"))
    for disk in sampled_states(world.disk.power_cut(), seed, 8):
        after = World(settings, disk=disk)
        for queue in after.broker.queues.values():
            assert queue.options.delay_ms == 1000


def test_a_queue_and_its_options_come_and_go_as_one_however_full_a_batch_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "BATCH_PAYLOAD_MAX", 1000)
    crashes: list[Crash] = []
    apart = 0

    def note(operation: Operation) -> None:
        if operation.kind.startswith("sync"):
            crashes.append(world.disk.power_cut())

    for filled in range(760, 920, 12):  # in some of them a batch is full between the two
        filler = filled.to_bytes(4, "big") + bytes(filled)
        world = World()
        other, _ = world.store.namespace("other", ALWAYS).create("other")
        world.settle()
        batches = world.store.statistics().journal_batches
        other.append(filler, 1)
        queue, _ = world.broker.create("late", {"delay_ms": 1000})
        world.disk.before = note
        world.settle()
        apart += world.store.statistics().journal_batches - batches - 1
        other.append(filler, 1)
        world.broker.delete(queue)
        world.settle()
    assert apart
    options = [
        queue.options.delay_ms
        for seed, crash in enumerate(crashes)
        for disk in sampled_states(crash, seed, 8)
        for queue in World(disk=disk).broker.queues.values()
    ]
    assert set(options) == {1000}


def test_a_queue_is_as_durable_as_it_says_with_its_options() -> None:
    """Where most queues may lose something."""
    settings = DmsSettings(durability=NONE, queues={"safe": QueueSettings(durability=ALWAYS)})
    world = World(settings)
    assert statuses(world.connect().create("safe", b'{"delay_ms":1000}')) == [Status.OK]
    for disk in sampled_states(world.disk.power_cut(), 0, 8):
        assert World(settings, disk=disk).broker.queues[b"safe"].options.delay_ms == 1000


@pytest.mark.parametrize("mode", [INTERVAL, NONE])
def test_rows_of_an_earlier_version_are_made_safe(mode: Durability) -> None:
    """Its table had the mode of most queues, and keeps what it holds."""
    world = World(DmsSettings(durability=mode))
    world.store.namespace(logs.TABLES_NAMESPACE, mode).change_mode(logs.QUEUES, mode)
    world.connect().create("late", b'{"delay_ms":1000}')
    world.kill()
    world.connect().create("later", b'{"delay_ms":1000}')
    for disk in sampled_states(world.disk.power_cut(), 0, 8):
        after = World(world.settings, disk=disk)
        assert {queue.text: queue.options.delay_ms for queue in after.broker.queues.values()} == {
            "late": 1000,
            "later": 1000,
        }


def test_one_old_message_does_not_pin_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "SNAPSHOT_BYTES", 20_000)
    monkeypatch.setattr(keeper, "HOME_BYTES", 1000)
    world = World()
    holder, peer = world.connect(), world.connect()
    peer.create("orders")
    peer.produce("orders", b"old")
    holder.consume("orders")
    for _ in range(40):
        peer.produce("orders", *[bytes(1000)] * 5)
        peer.ack(*(held for held, _ in peer.consume("orders", 5)))
    log = world.broker.queues[b"orders"].keeper.log  # type: ignore[union-attr]
    assert log.end > 200_000
    assert log.end - log.first < 60_000
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"old"]


def test_a_deep_queue_is_not_in_memory_and_opens_without_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "HOT_LEAST_BYTES", 0)
    monkeypatch.setattr(keeper, "SNAPSHOT_BYTES", 100_000)
    world = World(DmsSettings(hot_bytes=10_000, depth=100_000))
    peer = world.connect()
    peer.create("deep")
    for batch in range(50):
        peer.produce("deep", *(b"%05d" % (batch * 20 + n) + bytes(1000) for n in range(20)))
    queue = world.broker.queues[b"deep"]
    assert queue.cold
    assert world.broker.hot_bytes < 60_000
    world.kill()
    queue = world.broker.queues[b"deep"]
    assert (queue.depth, len(queue.bodies)) == (1000, 0)
    peer = world.connect()
    found: list[int] = []
    while taken := peer.consume("deep", 30):
        found += [int(body[:5]) for _, body in taken]
        peer.ack(*(held for held, _ in taken))
        if len(taken) < 30:
            break
    assert found == list(range(1000))
    assert queue.keeper is not None
    assert queue.keeper.log.first > 500_000, "the disk shrinks while it drains"


# -- .dmsq


def dmsq(*bodies: bytes) -> bytes:
    return struct.pack(">I", len(bodies)) + b"".join(
        struct.pack(">II", number, len(body)) + body for number, body in enumerate(bodies, 77)
    )


def test_a_dmsq_file_is_whole_or_refused() -> None:
    data = dmsq(b"a", b"", b"c" * 4096)
    assert parse(data) == [b"a", b"", b"c" * 4096]
    for wrong in (b"", data[:-1], data + b"x", data[:3], dmsq(b"x" * 4097)):
        with pytest.raises(NotDmsq):
            parse(wrong)


def test_a_dmsq_file_is_imported_once_and_again_only_when_it_is_another(tmp_path: Path) -> None:
    world = World()

    def start() -> None:
        world.store.folder = tmp_path
        trio.run(import_files, world.broker)
        world.settle()

    (tmp_path / "orders.dmsq").write_bytes(dmsq(b"a", b"b"))
    (tmp_path / "broken.dmsq").write_bytes(dmsq(b"a", b"b")[:-1])
    for _ in range(2):
        start()
        assert world.depths() == {"orders": 2}
        world.kill()
    (tmp_path / "orders.dmsq").write_bytes(dmsq(b"c"))
    start()
    assert [body for _, body in world.connect().consume("orders", 3)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("settings", [DmsSettings(persist=False), DmsSettings()], ids=["memory", "always"])
def test_what_is_exported_can_be_imported(settings: DmsSettings, tmp_path: Path) -> None:
    world = World(settings)
    peer = world.connect()
    peer.create("orders")
    peer.produce("orders", *(b"%d" % n for n in range(10)))
    peer.consume("orders", 3)
    target = tmp_path / "out.dmsq"
    assert world.call("export", queue="orders", target=str(target))["messages"] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["out.dmsq"]
    assert parse(target.read_bytes()) == [b"%d" % n for n in range(10)]
    assert world.call("import", source=str(target), queue="copy")["messages"] == 10
    world.broker.settings = attrs.evolve(settings, depth=9)
    with pytest.raises(wire.Refusal, match="small has room for 9 messages, and the file has 10"):
        world.call("import", source=str(target), queue="small")
    assert set(world.depths()) == {"orders", "copy"}, "none was made"
    world.settle()
    assert [body for _, body in world.connect().consume("copy", 10)] == [b"%d" % n for n in range(10)]

"""What a kill, a power cut and a restart leave, and what no single old message may hold up."""

import pytest

from dms import engine, queue_log, wire
from dms.settings import QUEUES, TABLES_NAMESPACE, DmsSettings, QueueSettings
from dms.wire import Status, Type
from shared.storage import committer
from shared.storage.settings import Durability
from tests.dms.world import World, statuses
from tests.support.explore import sampled_states
from tests.support.fake_disk import Crash, Operation
from tests.support.stores import ALWAYS, INTERVAL, MODES, NONE


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
    for queue in world.engine.queues.values():
        assert queue.log is not None
        queue.log.snapshot()
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
        letters = {row["text"].encode() for row in after.call("peek", queue="dead", limit=100)}
        left = [row["text"].encode() for row in after.call("peek", queue="orders", limit=100)]
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
            log = world.engine.queues[b"orders"].log
            assert log is not None
            log.snapshot()
        taken = peer.consume("orders", 2)
        peer.ack(*(held for held, _ in taken))
        there = [body for body in there if body.encode() not in {body for _, body in taken}]
        states.append(list(there))
    return world, states


def _found(world: World) -> list[str] | None:
    if b"orders" not in world.engine.queues:
        return None
    return [row["text"] for row in world.call("peek", queue="orders", limit=100)]


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
        for queue in after.engine.queues.values():
            assert queue.options.delay_ms == 1000


def test_a_queue_and_its_options_come_and_go_as_one_however_full_a_batch_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committer, "BATCH_PAYLOAD_MAX", 1000)
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
        queue, _ = world.engine.create("late", {"delay_ms": 1000})
        world.disk.before = note
        world.settle()
        apart += world.store.statistics().journal_batches - batches - 1
        other.append(filler, 1)
        world.engine.delete(queue)
        world.settle()
    assert apart
    options = [
        queue.options.delay_ms
        for seed, crash in enumerate(crashes)
        for disk in sampled_states(crash, seed, 8)
        for queue in World(disk=disk).engine.queues.values()
    ]
    assert set(options) == {1000}


def test_a_queue_is_as_durable_as_it_says_with_its_options() -> None:
    """Where most queues may lose something."""
    settings = DmsSettings(durability=NONE, queues={"safe": QueueSettings(durability=ALWAYS)})
    world = World(settings)
    assert statuses(world.connect().create("safe", b'{"delay_ms":1000}')) == [Status.OK]
    for disk in sampled_states(world.disk.power_cut(), 0, 8):
        assert World(settings, disk=disk).engine.queues[b"safe"].options.delay_ms == 1000


@pytest.mark.parametrize("mode", [INTERVAL, NONE])
def test_rows_of_an_earlier_version_are_made_safe(mode: Durability) -> None:
    """Its table had the mode of most queues, and keeps what it holds."""
    world = World(DmsSettings(durability=mode))
    world.store.namespace(TABLES_NAMESPACE, mode).change_mode(QUEUES, mode)
    world.connect().create("late", b'{"delay_ms":1000}')
    world.kill()
    world.connect().create("later", b'{"delay_ms":1000}')
    for disk in sampled_states(world.disk.power_cut(), 0, 8):
        after = World(world.settings, disk=disk)
        assert {queue.text: queue.options.delay_ms for queue in after.engine.queues.values()} == {
            "late": 1000,
            "later": 1000,
        }


def test_one_old_message_does_not_pin_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "SNAPSHOT_BYTES", 20_000)
    monkeypatch.setattr(engine, "POSITION_BYTES", 1000)
    world = World()
    holder, peer = world.connect(), world.connect()
    peer.create("orders")
    peer.produce("orders", b"old")
    holder.consume("orders")
    for _ in range(40):
        peer.produce("orders", *[bytes(1000)] * 5)
        peer.ack(*(held for held, _ in peer.consume("orders", 5)))
    log = world.engine.queues[b"orders"].log.log  # type: ignore[union-attr]
    assert log.end > 200_000
    assert log.end - log.first < 60_000
    world.kill()
    assert [body for _, body in world.connect().consume("orders", 2)] == [b"old"]


def test_a_deep_queue_is_not_in_memory_and_opens_without_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.queues.core.HOT_LEAST_BYTES", 0)
    monkeypatch.setattr(queue_log, "SNAPSHOT_BYTES", 100_000)
    world = World(DmsSettings(hot_bytes=10_000, depth=100_000))
    peer = world.connect()
    peer.create("deep")
    for batch in range(50):
        peer.produce("deep", *(b"%05d" % (batch * 20 + n) + bytes(1000) for n in range(20)))
    queue = world.engine.queues[b"deep"]
    assert queue.cold
    assert world.engine.memory.loaded_bytes < 60_000
    world.kill()
    queue = world.engine.queues[b"deep"]
    assert (queue.depth, queue.ready.loaded) == (1000, 0)
    peer = world.connect()
    found: list[int] = []
    while taken := peer.consume("deep", 30):
        found += [int(body[:5]) for _, body in taken]
        peer.ack(*(held for held, _ in taken))
        if len(taken) < 30:
            break
    assert found == list(range(1000))
    assert queue.log is not None
    assert queue.log.log.first > 500_000, "the disk shrinks while it drains"


def test_a_delivery_just_before_the_server_stops_counts() -> None:
    world = World()
    peer = world.connect()
    peer.create("q", b'{"max_deliveries":1}')
    peer.produce("q", b"a")
    peer.consume("q")
    world.drain()
    world.settle()
    world.kill()
    assert world.depths() == {"q": 0}

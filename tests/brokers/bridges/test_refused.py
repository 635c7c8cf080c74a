"""The disk refuses an entry of a bridge: both ends are as before it, and what it held is carried once."""

import itertools
from errno import EIO, ENOSPC

import pytest

from brokers.bridges.bridges import row
from dms.settings import DmsSettings
from tests.brokers.bridges.world import World, bridge
from tests.support.commits import fail, journal_write
from tests.support.fake_disk import FakeDisk
from tests.support.stores import SMALL, open_store, reopen


async def _world(disk: FakeDisk) -> World:
    return await World.open(await open_store(disk, SMALL))


def _refused_step(world: World, disk: FakeDisk) -> None:
    """One step, whose entry the disk refuses."""
    refused = world.store.statistics().commits
    fail(disk, ENOSPC, journal_write, times=1)
    world.only.step()
    disk.before = None
    assert world.store.statistics().commits > refused


def _step_uncommitted(world: World, disk: FakeDisk) -> None:
    """One step, whose entry is on its way to the disk, which will refuse it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "commit_pending", lambda: None)
        world.only.step()
    fail(disk, ENOSPC, journal_write, times=1)


def _go_on(world: World) -> None:
    for _ in range(6):
        world.later()


@pytest.mark.parametrize(
    ("source", "target"), [*itertools.product(("logmq", "dms"), ("logmq", "dms", "dmp"))]
)
async def test_what_was_refused_is_there_once_and_in_order_also_after_a_kill(
    source: str, target: str
) -> None:
    disk = FakeDisk()
    world = await _world(disk)
    for protocol, name in ((source, "in"), (target, "out")):
        world.make(protocol, name)
    settings = bridge(f"{source}:in", f"{target}:out")
    await world.bridges.change([settings])
    world.later()
    sent: list[bytes] = []
    for start in range(0, 30, 10):
        some = [b"%03d" % number for number in range(start, start + 10)]
        world.send(source, "in", *some)
        for _ in range(2):
            _refused_step(world, disk)
            assert await world.found(target, "out") == sent
            world.clock.advance(1)
        _go_on(world)
        sent += some
    assert await world.found(target, "out") == sent
    assert (row(world.only)["carried"], world.only.inbox.bytes, world.only.lag) == (30, 0, 0)
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    _go_on(world)
    assert await world.found(target, "out") == sent


async def test_what_a_closed_bridge_had_acknowledged_has_not_been_tried() -> None:
    disk = FakeDisk()
    world = await _world(disk)
    world.services["dms"].engine.create("in", {"max_deliveries": 1})
    await world.bridges.change([bridge("dms:in", "logmq:out")])
    world.carry()
    world.send("dms", "in", b"a", b"b")
    _step_uncommitted(world, disk)
    world.only.set_paused(True)
    world.only.step()
    world.store.commit_pending()
    disk.before = None
    assert await world.found("logmq", "out") == []
    world.only.set_paused(False)
    _go_on(world)
    assert await world.found("logmq", "out") == [b"a", b"b"], "they were dropped as delivered too often"


@pytest.mark.parametrize(
    ("source", "target"), [*itertools.product(("logmq", "dms", "dmp"), ("pubsub", "kqmsgq"))]
)
async def test_what_cannot_be_confirmed_any_more_is_not_written_again_and_again(
    source: str, target: str
) -> None:
    disk = FakeDisk()
    world = await _world(disk)
    world.make(source, "in")
    await world.bridges.change([bridge(f"{source}:in", f"{target}:out")])
    world.later()
    world.send(source, "in", b"a", b"b")
    fail(disk, EIO, journal_write)
    for _ in range(10):
        world.later()
    assert world.store.read_only is not None
    assert await world.found(target, "out") == [b"a", b"b"], "in the entry that the disk refused"
    if source != "dmp":  # a restart tells what is in its queues, and the bridge runs without anything to take
        assert "read-only" in world.only.last_error
        assert (world.only.state, world.only.lag) == ("waiting", {"logmq": 10, "dms": 2}[source])


async def test_the_guarantee_of_queues_that_go_on_in_memory_is_that_of_memory() -> None:
    disk = FakeDisk()
    best_effort = DmsSettings(persist=True, disk_failed="best-effort")
    world = await World.open(await open_store(disk, SMALL), dms=best_effort)
    for name in ("in", "out"):
        world.make("dms", name)
    await world.bridges.change([bridge("dms:in", "dms:out")])
    world.carry()
    assert world.only.guarantee == "exactly once"
    fail(disk, EIO, journal_write)
    world.send("dms", "in", b"a")
    world.later()
    assert await world.found("dms", "out") == [b"a"]
    assert world.only.guarantee == "at most once"


@pytest.mark.parametrize("target", ["pubsub", "kqmsgq", "dms"])
async def test_a_queue_that_goes_on_in_memory_is_carried_on_though_nobody_else_changes_it(
    target: str,
) -> None:
    disk = FakeDisk()
    best_effort = DmsSettings(persist=True, disk_failed="best-effort")
    world = await World.open(await open_store(disk, SMALL), dms=best_effort)
    for name in ("in", "out"):
        world.make("dms", name)
    await world.bridges.change([bridge("dms:in", f"{target}:out")])
    world.carry()
    world.send("dms", "in", b"a")
    fail(disk, EIO, journal_write)
    world.send("logmq", "other", b"x")
    assert world.store.read_only is not None
    for _ in range(3):
        world.later()
    assert await world.found(target, "out") == [b"a"]
    assert (world.only.guarantee, world.only.lag) == ("at most once", 0)


# -- where a first run begins


async def test_the_end_is_where_it_was_when_the_bridge_first_ran() -> None:
    disk = FakeDisk()
    world = await _world(disk)
    world.send("logmq", "in", b"old")
    await world.bridges.change([bridge("logmq:in", "logmq:out", start="end")])
    world.store.commit_pending()
    _refused_step(world, disk)
    world.send("logmq", "in", b"a")
    world.clock.advance(1)
    _refused_step(world, disk)
    world.send("logmq", "in", b"b")
    _go_on(world)
    assert await world.found("logmq", "out") == [b"a", b"b"]


# -- what is kept about a bridge


# -- counts


@pytest.mark.parametrize(
    ("policy", "dead", "dropped"), [("wait", 1, 0), ("drop", 0, 1), ("dead:logmq:refused", 1, 0)]
)
async def test_what_was_refused_is_counted_once(policy: str, dead: int, dropped: int) -> None:
    disk = FakeDisk()
    world = await _world(disk)
    world.make("dms", "out")
    await world.bridges.change([bridge("logmq:in", "dms:out", on_refused=policy, filter={"min_bytes": 2})])
    world.carry()
    world.send("logmq", "in", b"a", b"one", bytes(5000), b"two")
    _refused_step(world, disk)
    assert [row(world.only)[name] for name in ("carried", "filtered", "dead", "dropped")] == [0] * 4
    _go_on(world)
    found = [row(world.only)[name] for name in ("carried", "filtered", "dead", "dropped")]
    assert found == [2, 1, dead, dropped]
    assert await world.found("dms", "out") == [b"one", b"two"]
    letters = [*await world.found("logmq", "dead.b"), *await world.found("logmq", "refused")]
    assert len(letters) == dead


async def test_what_is_refused_after_the_end_is_counted_as_lost_and_holds_no_memory() -> None:
    disk = FakeDisk()
    world = await _world(disk)
    await world.bridges.change([bridge("kqmsgq:in", "logmq:out")])
    world.carry()
    world.send("kqmsgq", "in", b"a", b"b")
    only = world.only
    _step_uncommitted(world, disk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.store, "commit_pending", lambda: None)
        await world.bridges.change([])
    world.store.commit_pending()
    assert (dict(only.counts.lost), only.inbox.bytes) == ({"stopped": 2}, 0)
    assert await world.found("logmq", "out") == []

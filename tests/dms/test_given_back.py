"""What a bridge held ahead and gives back was never tried: it does not count as delivered."""

from collections.abc import Sequence
from math import inf

import pytest
import trio

from dms.engine import Credit, Engine
from dms.records import Reason
from dms.settings import DmsSettings
from dms.wire import Refusal
from shared.queues.runs import Run
from tests.brokers.bridges.world import World, bridge
from tests.support.fake_disk import FakeDisk
from tests.support.stores import SMALL, open_store, reopen


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("how", ["in a run", "alone"])
def test_a_bridge_that_pauses_again_and_again_kills_nothing(persist: bool, how: str) -> None:
    trio.run(_pause, persist, how == "alone")


async def _pause(persist: bool, alone: bool) -> None:
    world = await World.open(None, dms=DmsSettings(persist=persist))
    engine: Engine = world.services["dms"].engine
    engine.create("dead", {})
    engine.create("jobs", {"max_deliveries": 2, "dead_letter": "dead"})
    world.store.commit_pending()
    bodies = [b"%d" % number for number in range(20)]
    if alone:
        world.send("dms", "jobs", bodies[0])
    else:
        world.send("dms", "jobs", *bodies)
    await world.bridges.change([bridge("dms:jobs", "dms:missing")])
    for _ in range(3):
        world.later(10.0)
        assert engine.find("jobs").held
        world.only.set_paused(True)
        world.carry()
        assert not engine.find("jobs").held
        world.only.set_paused(False)
    world.only.set_paused(True)
    assert (engine.find("jobs").depth, engine.find("dead").depth) == (1 if alone else 20, 0)
    world.make("dms", "missing")
    world.only.set_paused(False)
    world.later(10.0)
    assert await world.found("dms", "missing") == (bodies[:1] if alone else bodies)


class _Holder:
    """A consumer that acknowledges nothing."""

    def deliver(self, ids: Sequence[bytes], run: Run) -> None:
        """Holds them."""

    def end_credits(self, ids: Sequence[bytes], refusal: Refusal) -> None:
        raise refusal

    def fail(self, error: Exception) -> None:
        raise error


OTHERS = ("no other", "a consumer takes the next ones", "the next ones expire", "another bridge goes ahead")


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("snapshot", [False, True], ids=["", "snapshot"])
async def test_what_a_bridge_held_when_the_server_was_killed_was_never_tried(
    other: str, snapshot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dms.bridge.CREDITS_MAX", 64)
    disk = FakeDisk()
    world = await World.open(await open_store(disk, SMALL))
    engine: Engine = world.services["dms"].engine
    engine.create("dead", {})
    engine.create("jobs", {"max_deliveries": 1, "dead_letter": "dead"})
    world.store.commit_pending()
    bodies = [b"%03d" % number for number in range(128)]
    held, behind = bodies[:64], bodies[64:]
    world.send("dms", "jobs", *bodies)
    await world.bridges.change([bridge("dms:jobs", "dms:missing")])
    world.later()
    queue = engine.find("jobs")
    assert queue is not None
    assert queue.held == 64
    if other == OTHERS[1]:
        consumer = engine.consumer(_Holder())
        assert engine.admit(consumer)
        queue.line_up(Credit(consumer, queue, (b"0000",) * 64, inf))
    elif other == OTHERS[2]:
        queue.log_gone([(queue.head, 64)], Reason.TTL)
        queue.drop_front(64)
    elif other == OTHERS[3]:
        ahead = [bridge("dms:jobs", "logmq:out", name="ahead"), bridge("dms:jobs", "dms:missing")]
        await world.bridges.change(ahead)
        world.later()
        assert await world.found("logmq", "out") == behind
    world.send("dms", "jobs", b"last")  # notes go with it
    if snapshot:
        queue.log.snapshot()
        world.store.commit_pending()
    store, _ = await reopen(world.store, disk)
    world = await World.open(store)
    world.store.commit_pending()
    found = await world.found("dms", "jobs")
    assert found == [*held, *(behind if other == OTHERS[0] else ()), b"last"]
    dead = behind if other == OTHERS[1] else []
    assert await world.found("dms", "dead") == dead, "held by a consumer: tried"

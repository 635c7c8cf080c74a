"""What a bridge held ahead and gives back was never tried: it does not count as delivered."""

import pytest
import trio

from dms.engine import Engine
from dms.settings import DmsSettings
from tests.brokers.bridges.world import World, bridge


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
        assert engine.find("jobs").unacked()
        world.only.set_paused(True)
        world.carry()
        assert not engine.find("jobs").unacked()
        world.only.set_paused(False)
    world.only.set_paused(True)
    assert (engine.find("jobs").depth, engine.find("dead").depth) == (1 if alone else 20, 0)
    world.make("dms", "missing")
    world.only.set_paused(False)
    world.later(10.0)
    assert await world.found("dms", "missing") == (bodies[:1] if alone else bodies)

"""What a bridge takes from a dead-letter queue is a message like any other where it arrives."""

import pytest
import trio

from dms.records import DeadLetter
from dms.settings import DmsSettings
from tests.brokers.bridges.world import World, bridge


@pytest.mark.parametrize("persist", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("letter_first", [False, True], ids=["letter-behind", "letter-first"])
def test_dead_letters_and_others_cross_together(persist: bool, letter_first: bool) -> None:
    trio.run(_cross, persist, letter_first)


async def _cross(persist: bool, letter_first: bool) -> None:
    world = await World.open(None, dms=DmsSettings(persist=persist))
    world.make("dms", "dead")
    world.make("dms", "far")
    letter = DeadLetter.of(b"died", "work", "ttl", 1)
    dead = world.services["dms"].engine.find("dead")
    for body in (letter, b"plain") if letter_first else (b"plain", letter):
        dead.produce([body], len(body))
        world.store.commit_pending()
    await world.bridges.change([bridge("dms:dead", "dms:far")])
    world.carry()
    found = await world.found("dms", "far")
    assert found == ([b"died", b"plain"] if letter_first else [b"plain", b"died"])
    assert {type(body) for body in found} == {bytes}
    assert (dead.depth, world.only.state) == (0, "running")

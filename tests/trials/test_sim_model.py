"""The simulation's model of LogMQ: what it allows where a message is sent again, and after a power cut."""

import pytest

from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import Model
from tests.trials.sim.world import World

MINE, OTHER = b"first", b"between"
LENGTH_BYTES = 4


def _seen_then_sent_again(*, deleted: bool) -> None:
    """A message is seen, its topic perhaps deleted, another appended, and the first sent again behind it."""
    model = Model(World(1))
    mine = model.send("a", MINE, wire=1)
    model.saw_all("a", [(0, MINE)], model.read())
    if deleted:
        model.deleted(model.delete("a"))
    model.send("a", OTHER, wire=2)
    model.send_again(mine, wire=3)
    model.saw_all("a", [(0, OTHER), (LENGTH_BYTES + len(OTHER), MINE)], model.read())


def test_what_is_sent_again_after_a_deletion_has_a_new_place() -> None:
    _seen_then_sent_again(deleted=True)


def test_what_is_sent_again_has_its_old_place() -> None:
    with pytest.raises(BrokenPromiseError):
        _seen_then_sent_again(deleted=False)


def _committed_and_the_power_cut(*, answered_before: bool) -> None:
    """Two commits, the second answered before or after the cut; the first is read twice behind it."""
    world = World(1)
    model = Model(world)
    model.committed(model.commit("readers", "a", 1))
    cut = world.now()
    later = model.commit("readers", "a", 2)
    model.committed(later)
    later.known_seconds = cut if answered_before else cut + 1
    model.machine_ended({"always": cut})
    model.saw_committed("readers", "a", 1, model.read())
    model.restarted()
    model.saw_committed("readers", "a", 1, model.read())


def test_a_commit_that_was_answered_after_the_power_cut_may_be_gone_for_good() -> None:
    _committed_and_the_power_cut(answered_before=False)


def test_a_commit_that_was_answered_before_the_power_cut_is_there() -> None:
    with pytest.raises(BrokenPromiseError):
        _committed_and_the_power_cut(answered_before=True)

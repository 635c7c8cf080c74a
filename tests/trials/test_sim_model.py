"""The simulation's model of LogMQ: what it allows where a message is sent again."""

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

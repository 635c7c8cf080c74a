"""What a snapshot says, and what stands beside it in the log, make the queue that it was."""

import pytest

from dms.settings import DmsSettings
from tests.dms.world import World


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
    keeper = world.broker.queues[b"jobs"].keeper
    assert keeper is not None
    keeper.snapshot()
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

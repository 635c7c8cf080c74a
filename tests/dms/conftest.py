import pytest

from dms import engine, queue_log
from dms.settings import DmsSettings
from tests.dms.world import MEMORY, World
from tests.support.crashing import crashed

__all__ = ["crashed"]  # a fixture


@pytest.fixture(params=[MEMORY, DmsSettings()], ids=["memory", "always"])
def world(request: pytest.FixtureRequest) -> World:
    """A server in memory, and one whose answers wait for the disk: clients see no difference."""
    return World(request.param)


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few messages are as many as otherwise thousands: for what is cold, and for snapshots."""
    monkeypatch.setattr("shared.queues.core.HOT_LEAST_BYTES", 0)
    monkeypatch.setattr(engine, "POSITION_BYTES", 200)
    monkeypatch.setattr(engine, "FETCH_BYTES", 500)
    monkeypatch.setattr(queue_log, "SNAPSHOT_BYTES", 1500)

import pytest

from dms.settings import DmsSettings
from tests.dms.world import MEMORY, World
from tests.support.crashing import crashed

__all__ = ["crashed"]  # a fixture


@pytest.fixture(params=[MEMORY, DmsSettings()], ids=["memory", "always"])
def world(request: pytest.FixtureRequest) -> World:
    """A server in memory, and one whose answers wait for the disk: clients see no difference."""
    return World(request.param)

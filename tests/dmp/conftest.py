"""A broker for a test."""

import pytest

from tests.dmp.world import World


@pytest.fixture
async def world() -> World:
    """A broker with the settings as they come, on a store in memory."""
    return await World.open()

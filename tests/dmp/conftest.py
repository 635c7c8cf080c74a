"""A broker for a test, and an application of it."""

import pytest

from tests.dmp.peers import Application
from tests.dmp.world import World


@pytest.fixture
async def world() -> World:
    """A broker with the settings as they come, on a store in memory."""
    return await World.open()


@pytest.fixture
async def app(world: World) -> Application:
    """An application that has declared the exchange `quotes`."""
    application = Application(world)
    application.exchange(b"quotes")
    return application

"""A broker for a test, and an application of it."""

from collections.abc import Iterator

import pytest

from tests.dmp.amqp_peer import Peer
from tests.dmp.peers import Application
from tests.dmp.served import Served, served
from tests.dmp.world import World
from tests.support.crashing import crashed

__all__ = ["crashed"]  # a fixture


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


@pytest.fixture
def peer(world: World) -> Peer:
    """A client of that broker's AMQP, logged in, with channel 1 open."""
    return Peer(world).login()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the settings as they come, on real sockets."""
    with served(tmp_path_factory.mktemp("dmp")) as running:
        yield running

"""A broker for a test, and an application of it."""

from collections.abc import Iterator

import pytest

from dmp import wide as wide_appends
from dmp.amqp import publishing
from tests.dmp.amqp_peer import Peer
from tests.dmp.peers import Application
from tests.dmp.served import Served, served
from tests.dmp.world import World
from tests.support.crashing import crashed
from tests.support.turns import short_turns

__all__ = ["crashed"]  # a fixture


@pytest.fixture(autouse=True)
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes `SLICES` slices."""
    short_turns(monkeypatch)


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


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes to a thousand queues goes in slices: to 128 a step, and four steps a turn."""
    monkeypatch.setattr(wide_appends, "QUEUES_PER_STEP", 128)
    short_turns(monkeypatch, items=128)
    monkeypatch.setattr(publishing, "QUEUES_AT_ONCE", 500)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with the settings as they come, on real sockets."""
    with served(tmp_path_factory.mktemp("dmp")) as running:
        yield running

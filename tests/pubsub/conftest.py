"""A pub/sub service without sockets, and a connection to it."""

import pytest

from tests.pubsub.world import Peer, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    return world.connect()

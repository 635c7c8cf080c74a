"""A LogMQ without sockets, and those who are connected to it."""

import pytest

from tests.logmq.world import Peer, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    return world.connect()


@pytest.fixture
def writer(world: World) -> Peer:
    return world.connect()


@pytest.fixture
def reader(world: World) -> Peer:
    return world.connect()

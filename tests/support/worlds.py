"""A protocol without sockets, and those who are connected to it: what its tests/…/world.py makes."""

from importlib import import_module
from typing import Any

import pytest


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Any:
    """The `World` of the test's own folder, with the settings as they come."""
    return import_module(f"tests.{request.path.parent.name}.world").World()


@pytest.fixture
def peer(world: Any) -> Any:
    return world.connect()


@pytest.fixture
def writer(world: Any) -> Any:
    return world.connect()


@pytest.fixture
def reader(world: Any) -> Any:
    return world.connect()

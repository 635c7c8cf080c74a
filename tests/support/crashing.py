"""A bug in what is called for one connection: what it costs is the test's business."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.connections import MemoryConnection


class BugError(Exception):
    pass


@pytest.fixture
def crashed(monkeypatch: pytest.MonkeyPatch) -> list[MemoryConnection]:
    """The connections that a bug has closed: as a driver does it, who tells the session a little later."""
    found: list[MemoryConnection] = []

    def crash(connection: MemoryConnection, error: Exception) -> None:
        assert isinstance(error, BugError), error
        connection.abort("crash")
        found.append(connection)

    monkeypatch.setattr(MemoryConnection, "fail", crash)
    return found


def failing(function: Any, when: Callable[..., bool]) -> Any:
    """The function, but it raises for calls of which `when` says so."""

    def fail(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            raise BugError
        return function(*arguments, **named)

    return fail


def failing_once(function: Any) -> Any:
    """The function, but its first call raises."""
    first = iter([True])
    return failing(function, lambda *_: next(first, False))

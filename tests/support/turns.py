"""Turns that end after a known number of looks at the clock, in place of after some time; turns of others."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from shared import turns

SLICES = 4
"""Slices of a turn, where a test does not say otherwise."""


def look_clock(looks: int) -> Callable[[], float]:
    """A clock by which a turn is over at so many looks after its first."""
    seen = 0

    def now() -> float:
        nonlocal seen
        seen += 1
        return seen * turns.TURN_SECONDS * 1.0001 / looks

    return now


def short_turns(monkeypatch: pytest.MonkeyPatch, slices: int = SLICES, items: int = turns.ITEMS) -> None:
    """For the rest of a test a turn takes so many slices of long work, of so many items each."""
    monkeypatch.setattr(turns.CLOCK, "now", look_clock(slices))
    monkeypatch.setattr(turns, "ITEMS", items)


@attrs.define
class OthersTurns:
    """How many turns another task had beside what was run."""

    count: int = 0

    async def take(self) -> None:
        while True:
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
            self.count += 1


@asynccontextmanager
async def others_turns() -> AsyncIterator[OthersTurns]:
    """Count the turns of another task for as long as this is entered."""
    others = OthersTurns()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others.take)
        yield others
        nursery.cancel_scope.cancel()

"""How often another task has its turn while something long is done; and turns that are soon over."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import attrs
import pytest
import trio
import trio.lowlevel

from shared.turns import CLOCK


def end_turns_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each turn be over at the first look at the clock."""
    monkeypatch.setattr(CLOCK, "now", count().__next__)


@attrs.define(eq=False)
class Turns:
    count: int = 0


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    """Those of one other task within the block, so far."""
    turns = Turns()

    async def take() -> None:
        while True:
            turns.count += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        yield turns
        nursery.cancel_scope.cancel()

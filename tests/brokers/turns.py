"""How often another task has its turn while something long is done."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
import trio.lowlevel


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

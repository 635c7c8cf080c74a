"""Turns of a task that goes through many things: other tasks run in between."""

import trio

from shared.turns import Turn


class TaskTurn(Turn):
    """The turn of a task. It begins anew whenever others have run."""

    __slots__ = ()

    async def item(self) -> None:
        """An item is done: once the turn is over, other tasks run."""
        if self.over():
            await self.others()

    async def others(self) -> None:
        """Let other tasks run now, after an item that takes long."""
        await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        self.begin()

"""Which loop a client takes, where more than one runs."""

import asyncio

import trio

from shared.client.running import open_loop
from shared.client.trio_loop import TrioLoop


def test_a_trio_task_gets_trio_though_asyncio_runs_in_the_same_thread() -> None:
    async def on_trio() -> bool:
        async with open_loop() as loop:
            return isinstance(loop, TrioLoop)

    async def on_asyncio() -> bool:
        return trio.run(on_trio)

    assert asyncio.run(on_asyncio())

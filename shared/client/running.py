"""Which loop a client stands on: that of whoever connects."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.client.loop import Loop


@asynccontextmanager
async def open_loop() -> AsyncIterator[Loop]:
    """The caller's loop for a block: asyncio's, a blocking client's or trio's. Only that is imported."""
    blocking = sys.modules.get(f"{__package__}.blocking")
    loop: Loop | None = None if blocking is None else blocking.current_loop()
    if loop is not None:
        yield loop
    elif _in_asyncio():
        from shared.client.asyncio_loop import asyncio_loop

        async with asyncio_loop() as loop:
            yield loop
    else:
        from shared.client.trio_loop import trio_loop

        async with trio_loop() as loop:
            yield loop


def _in_asyncio() -> bool:
    """Whether asyncio runs the caller. Beside it a trio task may run, as in guest mode."""
    asyncio, trio = sys.modules.get("asyncio"), sys.modules.get("trio")
    if asyncio is None or (trio is not None and trio.lowlevel.in_trio_task()):
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

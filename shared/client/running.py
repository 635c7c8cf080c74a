"""Which loop a client stands on: that of whoever connects."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sniffio import AsyncLibraryNotFoundError, current_async_library

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
    """Whether asyncio runs the caller, and not a trio task beside it, as in guest mode."""
    try:
        return current_async_library() == "asyncio"
    except AsyncLibraryNotFoundError:
        return False

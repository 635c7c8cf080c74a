"""Tasks beside a block of code: what clients that are context managers run their connections in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def beside() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled at the end of the block.

    What the block raises comes out as it is, not in a group, as whoever writes the block expects: it need not
    know that there are tasks. What a task raises, which is a bug, comes in a group.
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except (Exception, GeneratorExit) as error:
            failure = error
        finally:
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure

"""A nursery beside a block of code, in which clients that are context managers run their connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery whose tasks are cancelled at the end of the block.

    An exception of the block comes out as it is, not in a group: its author need not know that there are
    tasks. An exception of a task is a bug, and comes out in a group.
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

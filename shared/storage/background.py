"""Reads that must wait for the disk, in threads."""

from collections.abc import Callable
from typing import Any

import trio

from shared.errors import StoreClosed
from shared.storage.files import FileGone
from shared.storage.rounds import call

Background = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Run blocking work elsewhere and hand its result, or the exception it raised, to the callback."""


class BackgroundReads:
    """Threads for reads that must wait for the disk. Without a nursery (the store is not running) the work is
    done here and now."""

    def __init__(self, in_thread: Callable[..., Any], threads: int) -> None:
        self.nursery: trio.Nursery | None = None
        self.settle: Callable[[], None] = lambda: None
        """Called after an answer: who got it may have appended, and no driver's round will commit that."""
        self._in_thread = in_thread
        self._limiter = trio.CapacityLimiter(threads)

    def __call__(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if self.nursery is not None:
            self.nursery.start_soon(self._run, work, then)
            return
        try:
            found = work()
        except (OSError, FileGone) as error:
            found = error
        then(found)

    async def _run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        found: Any = StoreClosed("the store is shutting down")
        try:
            found = await self._in_thread(work, limiter=self._limiter)
        except (OSError, FileGone) as error:
            found = error
        finally:
            call(then, found)
        self.settle()

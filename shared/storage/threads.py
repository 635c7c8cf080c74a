"""Work that must wait for the disk, in threads."""

from collections.abc import Callable
from typing import Any

import structlog
import trio

from shared.errors import StoreClosed
from shared.storage.files import FileGone
from shared.storage.log import call

logger = structlog.stdlib.get_logger("brokers.storage")


class ReaderThreads:
    """Threads for reads that wait for the disk. While the store does not run (no nursery), or `on_loop`, the
    work is done at once, on the loop.
    """

    def __init__(self, in_thread: Callable[..., Any], threads: int) -> None:
        self.nursery: trio.Nursery | None = None
        self.on_loop = False
        self.commit_pending: Callable[[], None] = lambda: None
        """Called after an answer: its receiver may have appended, outside of a driver's turn."""
        self._in_thread = in_thread
        self._limiter = trio.CapacityLimiter(threads)

    def __call__(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        if self.nursery is not None and not self.on_loop:
            self.nursery.start_soon(self._run, work, then)
            return
        try:
            found = work()
        except (OSError, FileGone, MemoryError) as error:
            found = error
        then(found)

    async def _run(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        found: Any = StoreClosed("the store is shutting down")
        try:
            found = await self._in_thread(work, limiter=self._limiter)
        except (OSError, FileGone, MemoryError) as error:
            found = error
        finally:
            call(then, found)
        self.commit_pending()


class Threads:
    """Runs blocking work in a thread, like `trio.to_thread.run_sync`. Limits on processes or memory may
    leave us no thread. Then the work runs on the loop, which waits: anything else would end the store.
    """

    def __init__(self) -> None:
        self._failing = False

    async def __call__(
        self,
        work: Callable[..., Any],
        *arguments: Any,
        limiter: trio.CapacityLimiter | None = None,
        abandon_on_cancel: bool = False,
    ) -> Any:
        begun = False

        def begin() -> Any:
            nonlocal begun
            begun = True
            return work(*arguments)

        try:
            found = await trio.to_thread.run_sync(begin, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
        except (RuntimeError, MemoryError) as error:
            if begun:
                raise
            if not self._failing:
                self._failing = True
                logger.warning(
                    "no thread can be started: the loop waits for the disk, and everybody with it; "
                    "raise the limit on processes and threads, or on memory",
                    reason=str(error),
                )
            return work(*arguments)
        self._failing = False
        return found

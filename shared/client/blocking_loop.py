"""A client's loop for blocking code: one of asyncio's, which runs during calls, in the caller's thread."""

import asyncio
import selectors
import socket
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, TypeVar

from sniffio import thread_local

from shared.client.asyncio_loop import AsyncioLoop

Result = TypeVar("Result")


class _Selector(selectors.DefaultSelector):
    """`waits`: it waits, or was interrupted then. asyncio's own handler of SIGINT takes 21 us a call."""

    waits = False

    def select(self, timeout: float | None = None) -> Any:
        self.waits = True
        events = super().select(timeout)
        self.waits = False
        return events


class _EventLoop(asyncio.SelectorEventLoop):
    """asyncio's, which starts no thread to resolve a name."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        return socket.getaddrinfo(host, port, **options)


class BlockingLoop:
    """Runs coroutines of clients. One thread at a time may use it."""

    def __init__(self) -> None:
        self.deadline = inf
        """When calls raise TimeoutError; see `Blocking.timeout`."""
        self._using = threading.RLock()
        self._selector = _Selector()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_whole = True

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run to the end. Other threads' calls wait meanwhile. Ctrl-C cancels the coroutine where it waits.

        Where an interrupt comes at work, not while the thread waits, something may be half done. Then all
        connections are lost, and what runs beside the caller ends.
        """
        with self._using:
            if self._loop is None:
                self._selector = _Selector()
                self._loop = _EventLoop(self._selector)
            if self._loop.is_running():
                work.close()
                raise RuntimeError("a client is called from within one of its own callbacks")
            self._is_whole = False
            with _no_other_loop():
                task = self._loop.create_task(self._called(work))
                try:
                    return self._loop.run_until_complete(task)
                except BaseException:
                    if not self._is_whole:
                        if not self._selector.waits:
                            self._lose_connections(self._loop)
                            self._end(self._loop, asyncio.all_tasks(self._loop))
                        else:
                            self._end(self._loop, {task})
                    raise

    async def _called(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            if self.deadline == inf:
                result = await work
            else:
                async with asyncio.timeout_at(self.deadline) as in_time:
                    result = await work
        except (Exception, asyncio.CancelledError) as error:
            await self._leave()
            if isinstance(error, TimeoutError) and self.deadline != inf and in_time.expired():
                raise TimeoutError("the call took longer than its timeout") from None
            raise
        await self._leave()
        return result

    async def _leave(self) -> None:
        await asyncio.sleep(0)  # what was written goes out, and what runs beside the caller moves on
        self._is_whole = True

    def _lose_connections(self, loop: asyncio.AbstractEventLoop) -> None:
        for each in tuple(AsyncioLoop.living):
            each.lose(loop)

    def _end(self, loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks) if tasks else asyncio.sleep(0))
        for task in tasks:
            with suppress(BaseException):
                task.result()  # else asyncio warns of an error that nobody has seen

    def close(self) -> None:
        """Close the event loop; a later call has another."""
        with self._using, _no_other_loop():
            loop, self._loop = self._loop, None
            if loop is not None:
                self._end(loop, asyncio.all_tasks(loop))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.close()


@contextmanager
def _no_other_loop() -> Iterator[None]:
    """Have asyncio and sniffio take the thread for one without a loop. It may have one, as in a notebook."""
    running, library = asyncio._get_running_loop(), thread_local.name
    asyncio._set_running_loop(None)
    thread_local.name = None
    try:
        yield
    finally:
        asyncio._set_running_loop(running)
        thread_local.name = library

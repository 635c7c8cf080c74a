"""Bytes written around the journal: how many there are and, in mode `interval`, when they are synced.

Such bytes are only in their log's own file, with index entries that say how far they go. So the file and its
index are synced. That happens in a thread of its own while commits go on. A sync of what a fast recording
writes in an interval takes tens of milliseconds. Waiters for the journal should not wait for it too.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import attrs
import trio

from shared.storage.disk import Clock, Disk
from shared.storage.files import LogFile, OpenFiles
from shared.storage.journal import PoisonError
from shared.storage.log import Log, opaque


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class DirectWrites:
    """One per store. `bytes`: written around the journal since the last checkpoint's snapshot, or to a log's
    file that the journal refers to.

    `due`: logs with bytes to be synced, and by when (monotonic seconds). `between_commits`: the committer's.
    `poison`: called when a sync fails.
    """

    _disk: Disk
    _files: OpenFiles
    _clock: Clock
    _in_thread: Callable[..., Awaitable[Any]]
    _between_commits: Callable[[Callable[[], None]], Awaitable[None]]
    _poison: Callable[[PoisonError], None]
    bytes: int = 0
    due: dict[Log, float] = attrs.Factory(dict)
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _wake: trio.Event = attrs.Factory(trio.Event)
    _named: set[int] = attrs.Factory(set)  # ids of logs whose file names are synced

    def written(self, log: Log, size: int, now: float) -> None:
        """A commit wrote `size` bytes of a log."""
        self.bytes += size
        if log.mode.mode == "interval" and log not in self.due:
            self.due[log] = now + log.mode.seconds
            self._wake.set()

    async def run(self) -> None:
        while True:
            now = self._clock.monotonic()
            left = min(self.due.values(), default=math.inf) - now
            if left <= 0:
                await self.sync([log for log, when in self.due.items() if when <= now])
                continue
            with trio.move_on_after(left):
                await self._wake.wait()
            self._wake = trio.Event()

    async def sync(self, logs: Sequence[Log]) -> None:
        """Sync what these logs hold now. What is written meanwhile is due anew."""
        ends: dict[Log, int] = {}
        pinned: list[tuple[Log, LogFile, int]] = []

        def take() -> None:
            for log in logs:
                # Its newest entry ends where this sync does. If later bytes were in that entry and were lost,
                # nothing would vouch for those before them.
                log.close_entry()
                ends[log] = log.visible
                pinned.extend((log, file, self._files.pin(file)) for file in (log.file, log.index_file))

        await self._between_commits(take)
        due = {log: self.due.pop(log) for log in logs}
        try:
            with trio.CancelScope(shield=True):  # a thread that uses pinned descriptors cannot be stopped
                await self._in_thread(self._sync, pinned, limiter=self._limiter)
        except PoisonError as error:
            self.due |= due  # so that it is reported as possibly lost
            self._poison(error)
            self.due.clear()
        else:
            for log, end in ends.items():
                self._named.add(log.id)
                if log.visible == end and not log.busy:
                    log.direct_dirty = False
        finally:
            for _, file, _ in pinned:
                self._files.unpin(file)

    def _sync(self, pinned: Sequence[tuple[Log, LogFile, int]]) -> None:
        """Sync each log's file before its index: no entry is on disk before what it vouches for."""
        try:
            for _, file, fd in pinned:
                self._files.sync(file, fd)
            folders = {log.namespace for log, _, _ in pinned if log.id not in self._named}
            for folder in sorted(folders):
                self._disk.sync_folder(folder)
            if folders:
                self._disk.sync_folder("")
        except OSError as error:
            raise PoisonError("what went around the journal could not be synced") from error

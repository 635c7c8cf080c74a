"""The scrub: reads all logs slowly and forever, so that a flipped bit is found before it matters."""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import structlog
import trio

from shared.errors import StoreError
from shared.storage.disk import Disk
from shared.storage.files import FileGone, OpenFiles, describe
from shared.storage.format import IndexEntry
from shared.storage.index import entry_matches
from shared.storage.inventory import Inventory
from shared.storage.log import Log, Tails, opaque
from shared.storage.reading import Reader
from shared.task_turns import TaskTurn
from shared.units import KIB

logger = structlog.stdlib.get_logger("brokers.storage")

_IDLE_SECONDS = 10.0
_LOOK_BYTES = 64 * KIB
"""An entry counts for so many bytes at least: the disk seeks for it, and logs of one record each do not keep
the loop busy."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Scrub:
    """One per store. `rounds`: how often every log has been read."""

    _inventory: Inventory
    _reader: Reader
    _disk: Disk
    _files: OpenFiles
    _tails: Tails
    _bytes_per_second: int
    _in_thread: Callable[..., Awaitable[Any]]
    rounds: int = 0
    bytes: int = 0
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))

    async def run(self) -> None:
        if not self._bytes_per_second:
            return
        while True:
            await trio.sleep(_IDLE_SECONDS)
            turn = TaskTurn()
            for log in self._inventory.all_logs():
                await turn.item()
                self._tails.unlooked[log] = None  # so that its files are looked at
                try:
                    await self._scrub(log)
                except (StoreError, OSError, FileGone, MemoryError) as error:
                    if not log.deleted:
                        logger.error(
                            "the background check cannot read a log: it is tried again; look at the disk",
                            log=log.name,
                            reason=describe(error),
                        )
            self.rounds += 1

    async def _scrub(self, log: Log) -> None:
        offset = log.first
        while not log.deleted and max(offset, log.first) < log.visible:
            if offset < log.local:  # the bucket has that
                offset = log.local
                continue
            entry = await self._next(log, max(offset, log.first))
            if entry is None:
                return
            if not entry.damaged and not await self._check(log, entry):
                self._reader.report(log, entry)
            offset = entry.end
            self.bytes += entry.length
            await trio.sleep(max(entry.length, _LOOK_BYTES) / self._bytes_per_second)

    async def _next(self, log: Log, offset: int) -> IndexEntry | None:
        """The closed entry that covers `offset`."""
        _, entry = await self._reader.look(lambda: self._reader.table.find(log, offset), self._limiter)
        return entry if entry is not log.open_entry and entry.end <= log.tail_start else None

    async def _check(self, log: Log, entry: IndexEntry) -> bool:
        def check() -> bool:
            with self._files.opened(log.file) as fd:
                return entry_matches(self._disk, fd, entry)

        with self._reader.using(log, entry.offset):
            good: bool = await self._in_thread(check, limiter=self._limiter)
        # What was dropped meanwhile may be a hole.
        return good or log.deleted or entry.offset < max(log.first_kept, log.local_kept)

"""What the store looks at once a second: the free space, and whether its files are still there.

Short of space publishing stops while there is still room for acknowledgements and administration. If the
file system turns read-only, the store does too.

Files may be removed while the store has them open, as by `rm -rf` of the data folder. Writes and syncs go on
without an error then, into files that have no names and end with the process. Those of logs are written anew
(`FileNames`), and so is the catalog; without its journal or lock the store is read-only.
"""

from contextlib import suppress

import attrs
import structlog
import trio

from shared.storage import catalog
from shared.storage.committer import Committer
from shared.storage.disk import size_of
from shared.storage.file_names import FileNames
from shared.storage.files import describe
from shared.storage.journal import PoisonError
from shared.storage.lock import LOCK_NAME, FolderLock
from shared.storage.log import opaque
from shared.storage.reserve_file import ReserveFile

logger = structlog.stdlib.get_logger("brokers.storage")

LOOK_SECONDS = 1.0
"""A look at the files takes 3 us of the loop."""
LOOK_BYTES = 8 << 20


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class FolderWatch:
    """Looks once a second; at the space also whenever `LOOK_BYTES` were written, at the files also at the
    end.

    A folder that was moved as a whole is none of it: its files are found below the folder's handle.
    """

    _committer: Committer
    _lock: FolderLock | None
    _names: FileNames
    _reserve: ReserveFile
    free_bytes: int = 0
    total_bytes: int = 0
    scarce: bool = False
    """Less than twice the reserve is free: optional data should not be written."""
    _reserve_fits: bool = False
    _failing: bool = False

    def __attrs_post_init__(self) -> None:
        self._committer.look_at_space = self.look_at_space
        self.look_at_space()

    def look_at_space(self) -> None:
        """Ask the file system. If it does not answer, the last value counts, and writes show what is wrong.
        What waits to be written counts as written.
        """
        committer, settings = self._committer, self._committer.settings
        committer.unlooked_bytes = committer.counts.bytes + LOOK_BYTES
        try:
            self.free_bytes, self.total_bytes = self._committer.disk.free_bytes()
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._failing = True
                logger.error(
                    "the free space cannot be read: the last value is used, and writing goes on; look at the "
                    "disk, a full one is noticed late",
                    reason=describe(error),
                )
        free = self.free_bytes
        reserve = max(
            settings.reserve_bytes_min,
            min(int(self.total_bytes * settings.reserve_fraction), settings.reserve_bytes_max),
        )
        left = free - committer.tails.bytes - committer.pending_bytes
        self.scarce = left < 2 * reserve
        self._reserve_fits = left >= 2 * reserve + self._reserve.size
        full = left < reserve
        # Log files that refuse writes leave their records in memory: stop publishing before that is full.
        full |= committer.tails.failing_bytes > settings.pending_bytes_max
        if full != committer.full:
            if full:
                logger.error(
                    "short of disk space: publishing is refused, consuming goes on; free some space "
                    "or shorten retention",
                    free_bytes=free,
                    reserve_bytes=reserve,
                )
            else:
                logger.info("enough disk space again: publishing goes on", free_bytes=free)
            committer.set_full(full)

    def look_at_files(self) -> None:
        if self._committer.read_only is not None:
            return
        disk, journal, lock = self._committer.disk, self._committer.journal, self._lock
        segment = journal.current
        # The committer's thread may go on to another segment, and this one be renamed: then all is well.
        if disk.is_gone(segment.path, segment.fd) and journal.current is segment:
            what = (
                "files of the data folder were removed while the server ran: what was written since then is "
                f"in no file ({segment.path} is gone)"
            )
            advice = (
                "save what is still served and is in no backup, then put a backup in its place and restart"
            )
            self._committer.poison(PoisonError(what, advice))
        elif lock is not None and lock.fd is not None and disk.is_gone(LOCK_NAME, lock.fd):
            what = (
                f"the data folder's file {LOCK_NAME} was removed while the server ran: another server may be "
                "writing to the folder"
            )
            self._committer.poison(PoisonError(what, "stop every server of this folder, then start one"))
        else:
            self._look_at_catalog()

    def _look_at_catalog(self) -> None:
        with suppress(OSError):
            if not size_of(self._committer.disk, catalog.PATH):
                logger.error(
                    "the data folder's file was removed or emptied while the server ran: it is written anew; "
                    "find out who does that",
                    path=catalog.PATH,
                )
                self._committer.request_checkpoint()

    async def run(self) -> None:
        while True:
            if self._reserve_fits:
                await self._reserve.make()
            await trio.sleep(LOOK_SECONDS)
            self.look_at_space()
            self._committer.look_at_memory()
            if self._committer.disk.read_only:
                self._committer.poison(PoisonError("the file system is read-only"))
            self.look_at_files()
            with suppress(MemoryError):
                await self._names.look()

"""Files that are removed while the store has them open, as by `rm -rf` of the data folder.

Writes and syncs go on without an error then, into files that have no names and end with the process. So the
store looks.
"""

import attrs
import trio

from shared.storage.committer import Committer
from shared.storage.disk import Disk
from shared.storage.journal import Journal, PoisonError
from shared.storage.lock import LOCK_NAME, FolderLock
from shared.storage.log import opaque

LOOK_SECONDS = 1.0
"""A look takes 3 us of the loop."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class RemovalWatch:
    """Looks once a second, and at the end. The store is read-only once the journal or the lock is gone.

    A folder that was moved as a whole is none of it: its files are found below the folder's handle.
    """

    _committer: Committer
    _disk: Disk
    _journal: Journal
    _lock: FolderLock | None

    def look(self) -> None:
        if self._committer.read_only is not None:
            return
        segment, lock = self._journal.current, self._lock
        # The committer's thread may go on to another segment, and this one be renamed: then all is well.
        if self._disk.is_gone(segment.path, segment.fd) and self._journal.current is segment:
            what = (
                "files of the data folder were removed while the server ran: what was written since then is "
                f"in no file ({segment.path} is gone)"
            )
            advice = (
                "save what is still served and is in no backup, then put a backup in its place and restart"
            )
            self._committer.poison(PoisonError(what, advice))
        elif lock is not None and lock.fd is not None and self._disk.is_gone(LOCK_NAME, lock.fd):
            what = (
                f"the data folder's file {LOCK_NAME} was removed while the server ran: another server may be "
                "writing to the folder"
            )
            self._committer.poison(PoisonError(what, "stop every server of this folder, then start one"))

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.look()

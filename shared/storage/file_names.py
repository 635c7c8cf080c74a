"""Keeps the logs' files under their names (STORAGE.md, "Log").

A file may be removed or replaced while the store has it open; writes and syncs go on without an error then.
Each second the store looks at the files of logs that got records, and a checkpoint at all that it is to vouch
for. A file that has lost its name takes nothing more. Records stay in the log's tail and in the journal, and
no checkpoint is made (`Tails.nameless`), until the file is there again; that is tried each second.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from shared.storage.checkpoint import Checkpointer
from shared.storage.committer import Committer, report_short
from shared.storage.disk import size_of, write_all
from shared.storage.files import FileGone, LogFile, describe
from shared.storage.log import Log, opaque
from shared.storage.log_writer import LogWriter
from shared.task_turns import TaskTurn

logger = structlog.stdlib.get_logger("brokers.storage")

_COPY_BYTES = 1 << 20


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class FileNames:
    """One per store. `restored`: files that were written anew."""

    _committer: Committer
    _log_writer: LogWriter
    _checkpointer: Checkpointer
    restored: int = 0
    _failing: bool = False

    def __attrs_post_init__(self) -> None:
        self._tails = self._committer.tails
        self._checkpointer.vouches = self.vouches

    async def look(self, logs: Iterable[Log] = ()) -> None:
        """Look at these logs and those that were written since the last look; write anew what has no name.

        20 us a log: of 10,000 that are written each second, a fifth of what writing them takes.
        """
        written, self._tails.unlooked = self._tails.unlooked, {}
        turn = TaskTurn()
        for log in {**dict.fromkeys(logs), **written, **self._tails.nameless}:
            if not self.vouches(log, log.tail_start if log.file.fd >= 0 else 0):
                await self._write_anew(log)
            await turn.item()

    def nameless_files(self, log: Log) -> list[LogFile]:
        """The log's open files whose names lead to nothing, or to another file. From any thread."""
        return [
            file
            for file in (log.file, log.index_file)
            if file.fd >= 0 and not file.gone and self._committer.disk.is_gone(file.path, file.fd)
        ]

    def vouches(self, log: Log, end: int) -> bool:
        """Whether the next start will find the log's open files. From any thread.

        A file that does not go as far as `end`, up to where it was written, is reported: records are lost.
        """
        if self.nameless_files(log):
            return False
        if max(log.first_kept, log.local) < end:
            with suppress(OSError):  # who reads or writes there is told
                fd = log.file.fd
                disk = self._committer.disk
                size = disk.size(fd) if fd >= 0 else size_of(disk, log.file.path)
                if not log.gone:
                    report_short(self._committer.files, log, size, end)
        return True

    async def _write_anew(self, log: Log) -> None:
        def set_apart() -> None:
            if not log.gone:
                self._tails.nameless[log] = None

        async with self._log_writer.lock:  # it writes nothing of the log from here on
            await self._committer.between_commits(set_apart)
        async with self._checkpointer.lock:  # what it syncs is what has the name
            files = [(file, self._committer.files.pin(file)) for file in self.nameless_files(log)]
            try:
                for file, fd in files:
                    with trio.CancelScope(shield=True):  # a thread that uses the descriptor cannot be stopped
                        await self._committer.in_thread(partial(self._copy, file, fd, log.id))
                    self.restored += 1
                    logger.error(
                        "a log's file was removed or replaced while the server ran: it is written anew, "
                        "nothing of it is lost; find out who does that",
                        path=file.path,
                    )
            except FileGone:
                pass  # deleted meanwhile
            except (OSError, MemoryError) as error:
                if not self._failing:
                    logger.error(
                        "a log's file was removed or replaced while the server ran, and cannot be written "
                        "anew: it is tried again, what comes is in the journal; let the server run, and look "
                        "at the disk",
                        path=log.file.path,
                        reason=describe(error),
                    )
                self._failing = True
                return
            finally:
                for file, fd in files:
                    self._committer.files.unpin(file, fd)
        self._failing = False
        self._tails.named(log)

    def _copy(self, file: LogFile, fd: int, log_id: int) -> None:
        """In a thread. Raises FileGone and OSError."""
        disk, path = self._committer.disk, f"{file.path}.new"
        new = disk.open(path, create=True)
        try:
            size = disk.size(fd)
            disk.truncate(new, 0)
            for position in range(0, size, _COPY_BYTES):
                piece = disk.read(fd, _COPY_BYTES, position)
                if piece.count(0) < len(piece):  # holes stay holes
                    write_all(disk, new, piece, position)
            disk.truncate(new, size)
            disk.sync_data(new)
            self._committer.files.rename(file, path, f"{file.path}.stray-{log_id}")
            disk.put_in_place(new, fd)
        finally:
            disk.close(new)
        disk.sync_folder(file.path.partition("/")[0])

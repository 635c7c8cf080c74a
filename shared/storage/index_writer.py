"""Writes index entries to the index files, and tries again what a log file would not take."""

import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import structlog
import trio

from shared.storage import index
from shared.storage.commit import open_log
from shared.storage.committer import Committer
from shared.storage.disk import Clock, Disk, write_all
from shared.storage.files import FileGone, OpenFiles, describe
from shared.storage.format import IndexEntry
from shared.storage.index import ENTRY_COVERS_SECONDS
from shared.storage.log import UNKNOWN, Log, opaque

logger = structlog.stdlib.get_logger("brokers.storage")


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class _Writing:
    """One log's share of a flush, and what came of it."""

    log: Log
    fd: int
    pinned_fd: int
    entries: list[IndexEntry]
    number: int
    end: int
    last_ms: int = 0
    written: bool = False
    error: OSError | None = None


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class IndexWriter:
    """Closes entries by age, writes them, retries what log files would not take."""

    _committer: Committer
    _disk: Disk
    _files: OpenFiles
    _clock: Clock
    _in_thread: Callable[..., Awaitable[Any]]
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _lock: trio.Lock = attrs.Factory(
        trio.Lock
    )  # two flushes would write the same entries and count them twice
    _failing: bool = False
    _unappliable: bool = False

    async def run(self) -> None:
        while True:
            await trio.sleep(ENTRY_COVERS_SECONDS)
            if self._committer.unindexed:
                await self.flush(ENTRY_COVERS_SECONDS)

    async def flush(self, age_seconds: float = -math.inf) -> bool:
        """Close the open entries that are so old, and write all closed ones. False where some could not be.

        The entries are not synced. Commits may go on meanwhile.
        """
        async with self._lock:
            return await self._flush(age_seconds)

    async def _flush(self, age_seconds: float) -> bool:
        writings = []
        unapplied = []
        now = self._clock.monotonic()
        for log in list(self._committer.unindexed):
            if log.gone:
                self._committer.unindexed.pop(log, None)
            elif log.unapplied:
                unapplied.append((log, log.unapplied[:]))
            else:
                if log.open_entry is not None and not log.busy and now - log.open_since >= age_seconds:
                    log.close_entry()
                if log.closed_entries:
                    fd, entries = self._files.pin(log.index_file), log.closed_entries[:]
                    writings.append(_Writing(log, fd, fd, entries, log.entries_written, log.entries_start))
                elif log.open_entry is None:
                    self._committer.unindexed.pop(log, None)
        await self._retry(unapplied)
        if writings:
            try:
                await self._in_thread(self._write, writings, self._files.room, limiter=self._limiter)
            finally:
                for writing in writings:
                    self._done(writing)
        error = next((writing.error for writing in writings if writing.error is not None), None)
        if error is not None and not self._failing:
            logger.error(
                "an index cannot be written: its records are safe, and it is tried again; look at the disk",
                reason=describe(error),
            )
        self._failing = error is not None
        return error is None and not unapplied

    def _write(self, writings: list[_Writing], room: int) -> None:
        """In a thread: the new entries of all indexes at once; beyond the room for handles one by one."""
        together: list[_Writing] = []
        for writing in writings:
            try:
                if self._open(writing):
                    room -= 1
                if room < 0 and writing.fd != writing.pinned_fd:
                    self._write_one(writing)
                    self._disk.close(writing.fd)
                    writing.fd = writing.pinned_fd
                else:
                    together.append(writing)
            except FileGone:
                pass
            except OSError as error:
                writing.error = error
        # In one call: between two, this thread would wait for the interpreter.
        parts = [
            (writing.fd, *index.packed_entries(writing.log.id, writing.number, writing.entries))
            for writing in together
        ]
        for writing, (_, data, _), taken in zip(together, parts, self._disk.write_many(parts), strict=True):
            if taken == len(data):
                writing.written = True
                continue
            try:
                self._write_one(writing)
            except OSError as error:
                writing.error = error

    def _open(self, writing: _Writing) -> bool:
        """Make it ready to be written to; whether its file had to be opened. Raises FileGone, OSError."""
        if writing.number == UNKNOWN:
            found = index.load_end(self._disk, self._files, writing.log, writing.end)
            writing.number, writing.last_ms = found
        if writing.fd >= 0:
            return False
        writing.fd = index.open_for_writing(self._disk, self._files, writing.log)
        return True

    def _write_one(self, writing: _Writing) -> None:
        index.write_entries(self._disk, writing.fd, writing.log.id, writing.number, writing.entries)
        writing.written = True

    def _done(self, writing: _Writing) -> None:
        log = writing.log
        if writing.fd >= 0 and writing.fd != writing.pinned_fd:
            self._files.adopt(log.index_file, writing.fd)
        self._files.unpin(log.index_file)
        if writing.written:
            if log.entries_written == UNKNOWN:
                log.entries_written = writing.number
            log.entries_reached(writing.number + len(writing.entries))  # a commit may have been faster
            self._committer.dirty[log] = None
            if log.open_entry is None and not log.closed_entries:
                self._committer.unindexed.pop(log, None)

    async def _retry(self, unapplied: list[tuple[Log, list[tuple[int, bytes]]]]) -> None:
        failed: dict[str, OSError] = {}
        for log, parts in unapplied:
            try:
                await self._in_thread(self._apply, log, parts, limiter=self._limiter)
            except OSError as error:
                failed[log.name] = error
            except FileGone:
                log.unapplied.clear()
            else:
                log.fresh = False
                del log.unapplied[: len(parts)]
        if failed and not self._unappliable:  # once: what is logged may go to that disk, too
            name, first = next(iter(failed.items()))
            logger.error(
                "a log file takes no bytes: its records are safe in the journal, and it is tried again; "
                "look at the disk",
                log=name,
                logs=len(failed),
                reason=describe(first),
            )
        self._unappliable = bool(failed)

    def _apply(self, log: Log, parts: list[tuple[int, bytes]]) -> None:
        fd = open_log(self._files, log)
        try:
            for offset, data in parts:
                write_all(self._disk, fd, data, offset)
        finally:
            self._disk.close(fd)

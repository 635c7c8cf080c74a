"""Writes the logs' tails to their files, and then their index entries.

An index entry is written after the bytes it covers, so in the folder every byte up to the last entry is
there. Writes go in steps of many logs, in a thread, while commits go on.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from shared.storage import index
from shared.storage.committer import Committer, open_log
from shared.storage.disk import write_all
from shared.storage.entries import ENTRY_COVERS_SECONDS
from shared.storage.files import FileGone, describe
from shared.storage.format import IndexEntry
from shared.storage.log import UNKNOWN, Log, opaque
from shared.task_turns import TaskTurn
from shared.turns import Turn

logger = structlog.stdlib.get_logger("brokers.storage")

STEP_BYTES = 4 << 20
"""Bytes of one step. They are copied in the trio thread first, which takes less than 1 ms."""


@attrs.define(eq=False)
class _FileWrite:
    """Bytes for one of a log's files, and the outcome. `fd`: UNKNOWN until the file is open."""

    fd: int
    data: bytearray | memoryview = attrs.Factory(bytearray)
    offset: int = 0
    written: bool = False
    error: OSError | None = None


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class _Writing:
    """One log's share of a step. `tail`: the front of its tail, for its file. `index`: `entries`, from entry
    `number` on, for its index.
    """

    log: Log
    tail: _FileWrite
    index: _FileWrite
    entries: list[IndexEntry]
    number: int
    entries_start: int
    cut: bool = False  # the step had no room for the rest of the tail
    made: bool = False  # the log's file


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class LogWriter:
    """Closes index entries by age, and writes tails and entries."""

    _committer: Committer
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    lock: trio.Lock = attrs.Factory(trio.Lock)
    """One flush at a time: two would write and count the same entries twice."""
    _wake: trio.Event = attrs.Factory(trio.Event)
    _done: trio.Event = attrs.Factory(trio.Event)
    _stepped: trio.Event = attrs.Factory(trio.Event)
    _index_failing: bool = False
    _tails_failing: bool = False

    def __attrs_post_init__(self) -> None:
        self._tails = self._committer.tails
        self._tails.wake = lambda: self._wake.set()

    async def run(self) -> None:
        while True:
            with trio.move_on_after(ENTRY_COVERS_SECONDS):
                await self._wake.wait()
            self._wake = trio.Event()
            if self._tails.unindexed:
                with suppress(MemoryError):  # it is tried again
                    await self.flush_due()
            done, self._done = self._done, trio.Event()
            done.set()
            self._end_step()

    async def make_room(self) -> None:
        """Wait until the tails are no longer crowded, or the next flush has ended."""
        done = self._done
        self._wake.set()
        while self._tails.crowded and not done.is_set():
            await self._stepped.wait()

    def _end_step(self) -> None:
        stepped, self._stepped = self._stepped, trio.Event()
        stepped.set()

    async def flush_due(self) -> bool:
        """Write tails that are old, long or too many, and closed index entries."""
        async with self.lock:
            now = self._committer.clock.monotonic()
            due: dict[Log, None] = {}
            turn = TaskTurn()
            for log in self._tails.due(now):
                due[log] = None
                await turn.item()
            for log in list(self._tails.unindexed):
                if now - log.open_since >= ENTRY_COVERS_SECONDS and not log.busy:
                    log.close_entry()
                if log not in due and log.entries_below(log.tail_start):
                    due[log] = None
                await turn.item()
            return await self._flush(due)

    async def flush(self) -> bool:
        """Write everything in memory now; False if some of it could not be written. Nothing is synced.

        Commits may go on meanwhile.
        """
        async with self.lock:
            return await self._flush(self._tails.unindexed, open_entries=True)

    async def _flush(self, logs: Iterable[Log], *, open_entries: bool = False) -> bool:
        """`open_entries`: logs that have nothing else to write end theirs, too."""
        left = deque(logs)
        tail_errors: dict[str, OSError] = {}
        index_errors: list[OSError] = []
        while left:
            step = await self._committer.between_commits(partial(self._take, left, open_entries))
            if not step:
                continue
            try:
                room = self._committer.files.room
                await self._committer.in_thread(self._write, step, room, limiter=self._limiter)
            finally:
                for writing in step:
                    self._finish(writing)
                self._end_step()
            left.extendleft(writing.log for writing in step if writing.cut and writing.tail.written)
            tail_errors |= {w.log.name: w.tail.error for w in step if w.tail.error is not None}
            index_errors += [w.index.error for w in step if w.index.error is not None]
        self._complain(tail_errors, index_errors)
        return not tail_errors and not index_errors

    def _take(self, left: deque[Log], open_entries: bool) -> list[_Writing]:
        """Take logs for a step. Between two commits, so that no commit under way holds their entries."""
        step: list[_Writing] = []
        size = 0
        turn = Turn()
        while left and size < STEP_BYTES and not turn.over():
            log = left.popleft()
            if log.gone or log.indexed:
                self._tails.unindexed.pop(log, None)
                continue
            if log in self._tails.nameless:
                continue
            offset = log.tail_start
            end = self._cut(log, STEP_BYTES - size)
            if end == offset < log.visible and step:
                left.appendleft(log)
                break
            cut = end < log.visible
            data = log.tail[: end - offset] if cut else log.tail  # not copied: `tail_lent`
            if (data or open_entries) and not cut:
                log.close_entry()
            size += len(data)
            entries = log.entries_below(offset + len(data))
            if not data and not entries:
                continue
            if data:
                self._tails.writing.add(log)
                log.tail_lent = True
            tail = _FileWrite(self._committer.files.pin(log.file), data, offset)
            index_write = _FileWrite(self._committer.files.pin(log.index_file))
            step.append(
                _Writing(log, tail, index_write, entries, log.entries_written, log.entries_start, cut)
            )
        return step

    def _cut(self, log: Log, room: int) -> int:
        """Where the part of a log's tail ends that fits into `room`. That is at the end of an entry, because
        readers get whole records from either the file or memory. An entry larger than a step goes alone.
        """
        offset = log.tail_start
        if log.tail_bytes <= room:
            return log.visible
        ends = [entry.end for entry in log.closed_entries if entry.end > offset]
        if room == STEP_BYTES and (not ends or ends[0] - offset > room):
            return ends[0] if ends else log.visible
        return max((end for end in ends if end - offset <= room), default=offset)

    def _finish(self, writing: _Writing) -> None:
        """In the trio thread: publish the outcome."""
        log, tail, entries = writing.log, writing.tail, writing.index
        self._tails.writing.discard(log)
        self._committer.files.unpin(log.file, tail.fd)
        self._committer.files.unpin(log.index_file, entries.fd)
        if writing.made:
            log.fresh = False
        if tail.written:
            self._tails.written(log, len(tail.data), self._committer.clock.monotonic())
        elif tail.error is not None:
            self._tails.failed(log)
        if entries.written:
            if log.entries_written == UNKNOWN:
                log.entries_written = writing.number
            log.entries_reached(writing.number + len(writing.entries))  # a commit may have been faster
        if log.indexed:
            self._tails.unindexed.pop(log, None)
        if (tail.written or entries.written) and not log.gone:
            self._tails.dirty[log] = None

    def _complain(self, tail_errors: dict[str, OSError], index_errors: list[OSError]) -> None:
        """Log the first failure only: the log may be on the same disk."""
        if index_errors and not self._index_failing:
            logger.error(
                "an index cannot be written: its records are safe, and it is tried again; look at the disk",
                reason=describe(index_errors[0]),
            )
        self._index_failing = bool(index_errors)
        # A store that is read-only has said more than this.
        if tail_errors and not self._tails_failing and self._committer.read_only is None:
            name, first = next(iter(tail_errors.items()))
            logger.error(
                "a log file takes no bytes: its records are safe in the journal, and it is tried again; "
                "look at the disk",
                log=name,
                logs=len(tail_errors),
                reason=describe(first),
            )
        self._tails_failing = bool(tail_errors or self._tails.failing)

    # -- in a thread

    def _write(self, step: list[_Writing], room: int) -> None:
        """Tails first: no entry is in a file before what it covers."""
        for writing in step:
            if writing.tail.data:
                room -= self._write_file(writing.tail, partial(self._open_log, writing), room // 2)
        for writing in step:
            if writing.entries and (writing.tail.written or not writing.tail.data):
                room -= self._write_file(writing.index, partial(self._open_index, writing), room)

    def _write_file(self, write: _FileWrite, open_file: Callable[[], bool], room: int) -> int:
        """Write to a file; returns how many descriptors stay open for this, 1 or 0. `room`: how many may."""
        try:
            opened = open_file()
            write_all(self._committer.disk, write.fd, write.data, write.offset)
            write.written = True
        except FileGone:
            return 0
        except OSError as error:
            write.error = error
            opened = False
        if opened and room <= 0:
            self._committer.disk.close(write.fd)
            write.fd = UNKNOWN
            return 0
        return opened

    def _open_log(self, writing: _Writing) -> bool:
        """True if the log's file was opened here. Raises FileGone, OSError."""
        if writing.tail.fd >= 0:
            return False
        writing.tail.fd = open_log(self._committer.files, writing.log, writing.tail.offset)
        writing.made = True
        return True

    def _open_index(self, writing: _Writing) -> bool:
        """Pack the entries; True if the index file was opened here. Raises FileGone, OSError."""
        log, write = writing.log, writing.index
        disk, files = self._committer.disk, self._committer.files
        if writing.number == UNKNOWN:
            writing.number, _ = index.load_end(disk, files, log, writing.entries_start)
        write.data, write.offset = index.packed_entries(log, writing.number, writing.entries)
        if write.fd >= 0:
            return False
        end = writing.entries[0].offset
        write.fd = index.open_at(disk, files, log, writing.number, end)
        return True

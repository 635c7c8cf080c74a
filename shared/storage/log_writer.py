"""Writes the logs' tails to their files, and then their index entries.

An index entry is written after the bytes it covers, so in the folder every byte up to the last entry is
there. Writes go in steps of many logs, in a thread, while commits go on.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any

import attrs
import structlog
import trio

from shared.storage import index
from shared.storage.commit import open_log
from shared.storage.committer import Committer
from shared.storage.disk import Clock, Disk, write_all
from shared.storage.entries import ENTRY_COVERS_SECONDS
from shared.storage.files import FileGone, OpenFiles, describe
from shared.storage.format import IndexEntry
from shared.storage.log import UNKNOWN, Log, opaque

logger = structlog.stdlib.get_logger("brokers.storage")

_STEP_LOGS = 64
"""Logs of one step: 0.3 ms of the loop before and after it. Amid checkpoints of 1,000 logs the p99 of a
commit is 1.4 to 1.9 times that without; with 256 logs a step 2.4 to 2.9 times (`bench logmq --modes
checkpoint`).
"""
STEP_BYTES = 4 << 20
"""Bytes of one step. They are copied in the trio thread first, which takes less than 1 ms."""

_LOOKED_AT_ONCE = 1024
"""Logs looked at before other tasks run: 1 ms."""

Write = tuple[int, memoryview, int]


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class _Writing:
    """One log's share of a step, and the outcome.

    `data`: the front of its tail, for `offset` in the file. The other fields are of its index.
    """

    log: Log
    offset: int
    data: bytearray
    entries: list[IndexEntry]
    number: int
    entries_start: int
    log_fd: int
    index_fd: int
    last_ms: int = 0
    cut: bool = False  # the step had no room for the rest of the tail
    made: bool = False
    tail_written: bool = False
    entries_written: bool = False
    tail_error: OSError | None = None
    index_error: OSError | None = None


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class LogWriter:
    """Closes index entries by age, and writes tails and entries."""

    _committer: Committer
    _disk: Disk
    _files: OpenFiles
    _clock: Clock
    _in_thread: Callable[..., Awaitable[Any]]
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _lock: trio.Lock = attrs.Factory(trio.Lock)
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
            if self._committer.unindexed:
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
        async with self._lock:
            now = self._clock.monotonic()
            due: dict[Log, None] = {}
            async for logs in _in_slices(self._tails.due(now)):
                due |= dict.fromkeys(logs)
            async for logs in _in_slices(list(self._committer.unindexed)):
                for log in logs:
                    if now - log.open_since >= ENTRY_COVERS_SECONDS and not log.busy:
                        log.close_entry()
                    if log.indexed:  # by a commit, around the journal
                        self._committer.unindexed.pop(log, None)
                    elif log not in due and log.entries_below(log.tail_start):
                        due[log] = None
            return await self._flush(due)

    async def flush(self) -> bool:
        """Write everything in memory now; False if some of it could not be written. Nothing is synced.

        Commits may go on meanwhile.
        """
        async with self._lock:
            return await self._flush(self._committer.unindexed, open_entries=True)

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
                await self._in_thread(self._write, step, self._files.room, limiter=self._limiter)
            finally:
                for writing in step:
                    self._finish(writing)
                self._end_step()
            left.extendleft(writing.log for writing in step if writing.cut and writing.tail_written)
            tail_errors |= {w.log.name: w.tail_error for w in step if w.tail_error is not None}
            index_errors += [w.index_error for w in step if w.index_error is not None]
        self._complain(tail_errors, index_errors)
        return not tail_errors and not index_errors

    def _take(self, left: deque[Log], open_entries: bool) -> list[_Writing]:
        """Take logs for a step. Between two commits, so that no commit under way holds their entries."""
        step: list[_Writing] = []
        size = 0
        while left and len(step) < _STEP_LOGS and size < STEP_BYTES:
            log = left.popleft()
            if log.gone or log.indexed:
                self._committer.unindexed.pop(log, None)
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
            fds = self._files.pin(log.file), self._files.pin(log.index_file)
            step.append(
                _Writing(log, offset, data, entries, log.entries_written, log.entries_start, *fds, cut=cut)
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
        log = writing.log
        self._tails.writing.discard(log)
        self._files.unpin(log.file, writing.log_fd)
        self._files.unpin(log.index_file, writing.index_fd)
        if writing.made:
            log.fresh = False
        if writing.tail_written:
            self._tails.written(log, len(writing.data), self._clock.monotonic())
        elif writing.tail_error is not None:
            self._tails.failed(log)
        if writing.entries_written:
            if log.entries_written == UNKNOWN:
                log.entries_written = writing.number
            log.entries_reached(writing.number + len(writing.entries))  # a commit may have been faster
        if log.indexed:
            self._committer.unindexed.pop(log, None)
        if (writing.tail_written or writing.entries_written) and not log.gone:
            self._committer.dirty[log] = None

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
        self._write_tails([writing for writing in step if writing.data], room // 2)
        self._write_indexes([w for w in step if w.entries and (w.tail_written or not w.data)], room // 2)

    def _write_tails(self, step: list[_Writing], room: int) -> None:
        """Logs that get a descriptor are written in one call, the rest one by one. After each call this
        thread would wait for the interpreter (figures: `aio.py`).
        """
        together: list[_Writing] = []
        for writing in step:
            try:
                opened = writing.log_fd < 0
                if opened:
                    writing.log_fd = open_log(self._files, writing.log)
                    writing.made = True
                    room -= 1
                if room >= 0 and not writing.log.unawaited:
                    together.append(writing)
                    continue
                self._write_tail(writing)
                if opened and room < 0:
                    self._disk.close(writing.log_fd)
                    writing.log_fd = UNKNOWN
            except FileGone:
                pass
            except OSError as error:
                writing.tail_error = error
        parts = [(writing.log_fd, memoryview(writing.data), writing.offset) for writing in together]
        for writing, taken in zip(together, self._disk.write_many(parts), strict=True):
            if taken == len(writing.data):
                writing.tail_written = True
            else:
                self._write_tail(writing)

    def _write_tail(self, writing: _Writing) -> None:
        try:
            passing = writing.log.unawaited
            write_all(self._disk, writing.log_fd, writing.data, writing.offset, passing=passing)
            writing.tail_written = True
        except OSError as error:
            writing.tail_error = error

    def _write_indexes(self, step: list[_Writing], room: int) -> None:
        """As `_write_tails`."""
        together: list[_Writing] = []
        for writing in step:
            try:
                opened = self._open_index(writing)
                room -= opened
                if room >= 0 or not opened:
                    together.append(writing)
                    continue
                self._write_index(writing)
                self._disk.close(writing.index_fd)
                writing.index_fd = UNKNOWN
            except FileGone:
                pass
            except OSError as error:
                writing.index_error = error
        parts = [(w.index_fd, *index.packed_entries(w.log, w.number, w.entries)) for w in together]
        for writing, (_, data, _), taken in zip(together, parts, self._disk.write_many(parts), strict=True):
            if taken == len(data):
                writing.entries_written = True
            else:
                self._write_index(writing)

    def _open_index(self, writing: _Writing) -> bool:
        """Prepare the index for writing; True if its file was opened here. Raises FileGone, OSError."""
        if writing.number == UNKNOWN:
            found = index.load_end(self._disk, self._files, writing.log, writing.entries_start)
            writing.number, writing.last_ms = found
        if writing.index_fd >= 0:
            return False
        writing.index_fd = index.open_at(self._disk, self._files, writing.log, writing.number)
        return True

    def _write_index(self, writing: _Writing) -> None:
        try:
            index.write_packed(self._disk, writing.index_fd, writing.log, writing.number, writing.entries)
            writing.entries_written = True
        except OSError as error:
            writing.index_error = error


async def _in_slices(logs: Iterable[Log]) -> AsyncIterator[list[Log]]:
    """The logs, a slice at a time; other tasks run between slices."""
    left = iter(logs)
    while part := list(islice(left, _LOOKED_AT_ONCE)):
        yield part
        await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone

"""Reading the logs of a data folder. It takes no lock and writes nothing; a running broker does not notice.

Catalog and journal say which logs there are, and where each begins: what retention has dropped may still
stand in a file, and no server gives it. A log's index says how far it goes (STORAGE.md: readers of the files
stop behind its last good entry). What no good entry covers is told as lost: `brokers fsck --repair` makes an
index again.

`FolderReader` finds the logs, `LogIndex` reads an index, and `RangeReader` reads the records.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import attrs
from crc32c import crc32c

from brokers.pipeline.source.options import TopicChoice
from brokers.pipeline.source.ranges import LogRange, RecordChunk, chunk_groups, sound_chunks
from brokers.pipeline.source.reader import LossPolicy, SourceReader, dropped, lost
from shared.storage import format, index
from shared.storage.disk import Disk
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.index import entry_position
from shared.storage.os_disk import OsDisk
from shared.storage.tools.view import LogView, check_format, logs_now

GONE = -1
"""The end of a log that was deleted since the look."""


class FolderReader(SourceReader):
    """A data folder, open for reading. Raises OSError, and StoreFormat if it is not a data folder."""

    def __init__(self, path: str, namespace: str) -> None:
        self.source = path
        self.namespace = namespace
        self._seen: Mapping[int, LogView] | None = None
        """The logs as catalog and journal had them at the last look."""
        try:
            self.disk = OsDisk(Path(path), create=False, read_only=True)
        except OSError as error:
            raise OSError(error.errno, f"path: {error.strerror}", path) from None
        try:
            check_format(self.disk, path)
        except BaseException:
            self.disk.release()
            raise

    def close(self) -> None:
        self.disk.release()

    # -- which logs

    def logs(self, topics: TopicChoice) -> dict[str, LogRange]:
        by_name = {log.name: log for log in self._look().values() if log.namespace == self.namespace}
        chosen = [by_name[name] for name in topics.matching(by_name) if name in by_name]
        ends = [self._end(log) for log in chosen]
        # Without an index a log is lost, has no durable record yet, or was deleted since the look.
        now = self._look() if None in ends else self._seen or {}
        return {
            log.name: LogRange(
                self.source, log.name, log.id, log.first, max(log.first, end or log.synced_end), log.file
            )
            for log, end in zip(chosen, ends, strict=True)
            if end != GONE and log.id in now
        }

    def _look(self) -> Mapping[int, LogView]:
        """Read catalog and journal: which logs there are now, and where they begin."""
        self._seen = logs_now(self.disk)
        return self._seen

    def _end(self, log: LogView) -> int | None:
        """Find where a log ends; `GONE` if it was deleted and made again, None without an index."""
        try:
            with self._index(log.file, log.id) as index:
                if index.log_id != log.id:
                    return GONE
                newest = index.last()
        except FileNotFoundError:
            return None
        # The index was synced up to the catalog's end, so an index that ends earlier is damaged.
        return log.synced_end if newest is None else max(log.synced_end, newest.end)

    def is_other(self, log: LogRange, id_before: int, offset: int) -> bool:
        return log.log_id != id_before

    def kept(self, wanted: LogRange, policy: LossPolicy) -> LogRange:
        log = (self._look() if self._seen is None else self._seen).get(wanted.log_id)
        if log is None or max(log.first, log.local) <= wanted.start:
            return wanted
        gone = min(max(log.first, log.local), wanted.stop)
        why = dropped(log.first) if log.first > wanted.start else "only the bucket has it: read that"
        policy.lose(lost(wanted, wanted.start, gone, why))
        return wanted.part(gone, wanted.stop)

    # -- reading

    def chunks(self, wanted: LogRange, policy: LossPolicy, *, bare: bool = False) -> Iterator[RecordChunk]:
        file, log_id = self._file(wanted), wanted.log_id
        try:
            with self._index(file, log_id) as index, self._opened(f"{file}.log") as log_fd:
                # The id is the same before and after the log file was opened, so the file is this log's.
                if index.log_id == log_id and self.id_of(file, log_id) == log_id:
                    read, first = partial(self.disk.read, log_fd), partial(self.first_kept, log_id)
                    entries = index.entries(wanted.start, wanted.stop)
                    yield from RangeReader(wanted, read, first, policy, bare).chunks(entries)
                    return
        except FileNotFoundError:
            pass
        is_there = self.first_kept(log_id) is not None
        text = "its file or its index is missing" if is_there else "the log has been deleted"
        policy.lose(lost(wanted, wanted.start, wanted.stop, text))

    def first_kept(self, log_id: int) -> int | None:
        """Ask catalog and journal for the first kept offset as of now; None if the log is gone."""
        log = self._look().get(log_id)
        return None if log is None else max(log.first, log.local)

    def id_of(self, file: str, log_id: int) -> int:
        """The log whose index that file has, looked for as `log_id`'s."""
        with self._index(file, log_id) as index:
            return index.log_id

    def _file(self, wanted: LogRange) -> str:
        """The name of the log's file; a stream's offsets do not have it."""
        if wanted.file:
            return wanted.file
        log = (self._look() if self._seen is None else self._seen).get(wanted.log_id)
        return "" if log is None else log.file

    @contextmanager
    def _opened(self, file: str) -> Iterator[int]:
        """Raises OSError with the whole path, because several folders may be read."""
        path = f"{self.namespace}/{file}"
        try:
            fd = self.disk.open(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"{self.source}/{path}") from None
        try:
            yield fd
        finally:
            self.disk.close(fd)

    @contextmanager
    def _index(self, file: str, log_id: int) -> Iterator["LogIndex"]:
        """Open an index. `log_id`: the log that it is taken for if its header is damaged."""
        with self._opened(f"{file}.idx") as fd:
            header = index.header_of(self.disk, fd)
            yield LogIndex(self.disk, fd, header[0] if header else log_id)

    # -- places in a log

    def at_time(self, log: LogRange, unix_ms: int) -> int | None:
        with self._index_of(log) as index:
            entry = index.at_time(unix_ms)
        return None if entry is None else min(max(entry.offset, log.start), log.stop)

    def entry_at(self, log: LogRange, offset: int) -> IndexEntry | None:
        with self._index_of(log) as index:
            return index.at_or_before(offset)

    def entries_from(self, log: LogRange, start: int) -> Iterator[IndexEntry]:
        with self._index_of(log) as index:
            yield from index.entries(start, log.stop)

    def records(self, log: LogRange, start: int, size: int) -> bytes:
        try:
            with self._opened(f"{self._file(log)}.log") as fd:
                return self.disk.read(fd, size, start)
        except FileNotFoundError:
            return b""

    @contextmanager
    def _index_of(self, log: LogRange) -> Iterator["LogIndex"]:
        """Open the log's index, or an empty one if the file is missing, which `chunks` reports."""
        with ExitStack() as opened:
            try:
                index = opened.enter_context(self._index(self._file(log), log.log_id))
            except FileNotFoundError:
                index = LogIndex(self.disk, None, log.log_id)
            yield index


class LogIndex:
    """The index file of a log, read where it is needed: the index of a terabyte is a gigabyte.

    Entries are in offset order, so bisection finds them. An entry that does not parse is passed over: what it
    covered is a gap, which the reader of the records reports. `count`: all entries when the file was opened,
    good or not. Without a file there are none.
    """

    def __init__(self, disk: Disk, fd: int | None, log_id: int) -> None:
        self._disk = disk
        self._fd = fd
        self.log_id = log_id
        size = 0 if fd is None else disk.size(fd)
        self.count = max(size - entry_position(0), 0) // INDEX_ENTRY_BYTES

    def last(self) -> IndexEntry | None:
        """Return the last good entry, at which durable records end."""
        return self._last_before(self.count)

    def entries(self, start: int, stop: int) -> Iterator[IndexEntry]:
        """Yield the good entries that touch the offsets [start, stop), in order."""
        if self._fd is None:
            return
        number = self._first(lambda entry: entry.end > start)
        for entry in index.stored_entries(self._disk, self._fd, self.log_id, number, self.count):
            if entry is not None and entry.offset >= stop:
                return
            if entry is not None:
                yield entry

    def at_or_before(self, offset: int) -> IndexEntry | None:
        """Return the last good entry that begins at or below an offset."""
        return self._last_before(self._first(lambda entry: entry.offset > offset))

    def at_time(self, unix_ms: int) -> IndexEntry | None:
        """Return the first good entry whose last record is of that time or later."""
        return self._good_from(self._first(lambda entry: entry.last_ms >= unix_ms))

    def _first(self, holds: Callable[[IndexEntry], bool]) -> int:
        """Return the number of the first entry for which this holds, as it does for all behind it.

        It holds for a bad entry if it does for the next good one, and for none that retention has zeroed.
        """

        def holds_from(number: int) -> bool:
            if self._is_trimmed(number):
                return False
            entry = self._good_from(number)
            return entry is None or holds(entry)

        return bisect_left(range(self.count), True, key=holds_from)

    def _good_from(self, number: int) -> IndexEntry | None:
        return next(filter(None, map(self._entry, range(number, self.count))), None)

    def _last_before(self, stop: int) -> IndexEntry | None:
        """Return the nearest good entry before the entry `stop`."""
        for number in reversed(range(stop)):
            entry = self._entry(number)
            if entry is not None or self._is_trimmed(number):
                return entry
        return None

    def _is_trimmed(self, number: int) -> bool:
        """Whether retention has zeroed it: from the first entry on, which tells."""
        return not any(self._bytes(number)) and not any(self._bytes(0))

    def _entry(self, number: int) -> IndexEntry | None:
        return format.unpack_index_entry(self._bytes(number), self.log_id)

    def _bytes(self, number: int) -> bytes:
        assert self._fd is not None
        return self._disk.read(self._fd, INDEX_ENTRY_BYTES, entry_position(number))


FirstKept = Callable[[], int | None]
"""Returns a log's first kept offset as of now, by the journal; None if the log is gone."""

_ZERO = bytes(format.LENGTH_BYTES)


@attrs.define(eq=False)
class RangeReader:
    """Reads one range of a log's open file: whole index entries, each checked, in chunks of some megabytes.

    A running broker may drop old records meanwhile. It makes a hole at the file's head, which reads as zeros,
    and then zeroes the index entries. So wrong bytes are not damage yet: the journal is asked first.
    `bare`: chunks that lie wholly in the range need no bytes.
    """

    _range: LogRange
    _bytes: index.Read
    _first_kept: FirstKept
    _policy: LossPolicy
    _bare: bool
    _lost: tuple[int, int, str] | None = attrs.field(default=None, init=False)
    """Start, end and reason of a loss. It is reported once its end is known."""

    def chunks(self, entries: Iterator[IndexEntry]) -> Iterator[RecordChunk]:
        """`entries`: the index's entries that touch the range, in order."""
        for group in chunk_groups(self._readable(entries)):
            yield from self._read(group)
        self._tell()

    def _readable(self, entries: Iterator[IndexEntry]) -> Iterator[IndexEntry]:
        """Yield the entries whose records are to be read. What the index does not cover is noted as lost."""
        uncovered = "the index says nothing of what stands here (brokers fsck --repair makes it again)"
        at = self._range.start
        for entry in entries:
            if entry.offset > at:
                self._lose(at, entry.offset, uncovered)
            if entry.damaged:
                self._lose(entry.offset, entry.end, "the journal lost what stood here")
            else:
                yield entry
            at = entry.end
        if at < self._range.stop:
            self._lose(at, self._range.stop, uncovered)

    def _read(self, entries: list[IndexEntry]) -> Iterator[RecordChunk]:
        base = entries[0].offset
        if self._bare and self._range.start <= base and entries[-1].end <= self._range.stop:
            self._tell()
            yield RecordChunk(base, b"", entries)
            return
        for chunk in sound_chunks(
            self._bytes(entries[-1].end - base, base),
            entries,
            self._fault,
            lambda entry, text: self._lose(entry.offset, entry.end, text),
        ):
            self._tell()
            yield chunk

    def _fault(self, entry: IndexEntry, data: memoryview) -> str | None:
        if len(data) < entry.length:
            return "the file is too short"
        if self._policy.verify_crc:
            return None if crc32c(data) == entry.crc32c else "these are not the bytes that were written (CRC)"
        # A hole begins before the entry: zeros, which as records would be empty ones, and more of them.
        if data[: format.LENGTH_BYTES] == _ZERO and format.count_records(bytes(data)) != entry.records:
            return "no records stand here"
        return None

    def _lose(self, start: int, stop: int, text: str) -> None:
        """Note a loss. Losses that follow each other are reported as one, so the journal is asked once."""
        if self._lost is not None:
            before, end, why = self._lost
            if (end, why) == (start, text):
                self._lost = before, stop, text
                return
            self._tell()
        self._lost = start, stop, text

    def _tell(self) -> None:
        """Report the noted loss. Most often retention dropped the records after the read was planned."""
        if self._lost is None:
            return
        (start, stop, text), self._lost = self._lost, None
        start, stop = max(start, self._range.start), min(stop, self._range.stop)
        first = self._first_kept()
        if first is None:
            text = "the log has been deleted"
        elif start < first:
            gone = min(first, stop)
            self._policy.lose(lost(self._range, start, gone, dropped(first)))
            start = gone
        if start < stop:
            self._policy.lose(lost(self._range, start, stop, text))

"""Reading the logs of a data folder. It takes no lock and writes nothing; a running broker does not notice.

The catalog says which logs there are. Logs that are newer than the catalog are known by their files' names.
A log's index says how far it goes (STORAGE.md: readers of the files stop behind its last good entry). The
journal says where it begins: what retention has dropped may still stand in the file, and no server gives it.

`Folder` finds the logs, `LogIndex` reads an index, and `SpanReader` reads the records.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from crc32c import crc32c

from brokers.pipeline.source.options import TopicChoice, Unverified
from brokers.pipeline.source.origin import LossPolicy, Origin
from brokers.pipeline.source.spans import Chunk, LogSpot, Span, chunk_groups, sound_chunks
from brokers.pipeline.source.stretch import Asked, Entries, FoundEntries, Stretch, advance_all
from shared.storage import catalog, format, index, journal
from shared.storage.catalog import LogLine
from shared.storage.disk import Disk
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.index import entry_position
from shared.storage.os_disk import OsDisk
from shared.storage.tools.view import check_format, kept_first, look

_CUT = "%-"
"""In a file's name: the log's name was too long for one. Only the catalog and the journal know it."""


class Folder(Origin):
    """A data folder, open for reading. Raises OSError, and StoreFormat if it is not a data folder."""

    def __init__(self, path: str, namespace: str) -> None:
        self.source = path
        self.namespace = namespace
        self._found: dict[str, LogLine] = {}
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

    # -- reading

    def chunks(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        return self._chunks(span, policy, bare=False)

    def entries(self, span: Span, policy: LossPolicy) -> Iterator[Chunk]:
        return self._chunks(span, policy, bare=True)

    def _chunks(self, span: Span, policy: LossPolicy, *, bare: bool) -> Iterator[Chunk]:
        try:
            file = span.file or self._file(span.topic)
            with self._index(file, span.log_id) as index, self._log(file) as log_fd:
                # The id is the same before and after the log file was opened, so the file is this log's.
                if index.log_id == span.log_id and self.id_of(file, span.log_id) == span.log_id:
                    read, first = partial(self.disk.read, log_fd), partial(self.first_kept, span.log_id)
                    reader = SpanReader(span, read, first, policy, bare)
                    yield from reader.chunks(index.entries(span.start, span.stop))
                    return
        except FileNotFoundError:
            pass
        is_there = self.first_kept(span.log_id) is not None
        text = "its file or its index is missing" if is_there else "the log has been deleted"
        policy.lose(f"{span.topic} in {span.source}: offsets {span.start} to {span.stop} are lost: {text}")

    def kept(self, span: Span, policy: LossPolicy) -> Span:
        first = self._kept_now().get(span.log_id, 0)
        if first <= span.start:
            return span
        gone = min(first, span.stop)
        text = f"retention dropped it (the first kept offset is {first})"
        policy.lose(f"{span.topic} in {span.source}: offsets {span.start} to {gone} are lost: {text}")
        return attrs.evolve(span, start=gone)

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

    def _log(self, file: str) -> AbstractContextManager[int]:
        return self._opened(f"{file}.log")

    def _has_log(self, file: str) -> bool:
        try:
            with self._log(file):
                return True
        except FileNotFoundError:
            return False

    def _is_hole(self, file: str, offset: int) -> bool:
        """Whether the file has a hole there; False where the file system does not tell."""
        try:
            with self._log(file) as fd:
                return os.lseek(fd, offset, os.SEEK_DATA) > offset
        except OSError as error:
            return error.errno == errno.ENXIO  # a hole up to the file's end

    def id_of(self, file: str, log_id: int) -> int:
        """The log whose index that file has, looked for as `log_id`'s."""
        with self._index(file, log_id) as index:
            return index.log_id

    def _file(self, name: str) -> str:
        """Raises FileNotFoundError."""
        if name not in self._found:
            self._names()
        if name not in self._found:
            raise FileNotFoundError(name)
        return self._found[name].file

    def _file_of(self, spot: LogSpot) -> str:
        return spot.file or self._file(spot.name)

    # -- which logs

    def spots(self, topics: TopicChoice) -> dict[str, LogSpot]:
        lines = self._names()
        kept = self._kept_now()
        spots = {name: self._spot(lines[name], kept) for name in topics.matching(lines) if name in lines}
        return {name: spot for name, spot in spots.items() if spot is not None}

    def _names(self) -> dict[str, LogLine]:
        """Return every log, and what the catalog or the file's name says of it. Id 0: not in the catalog."""
        known = catalog.read(self.disk)
        lines = [line for line in (known.logs if known else ()) if line.namespace == self.namespace]
        found = {line.name: line for line in lines}
        indexes = {name[:-4] for name in self.disk.names(self.namespace) if name.endswith(".idx")}
        new = indexes - {line.file for line in lines}
        if any(_CUT in file for file in new):
            found = {
                log.name: LogLine(
                    log.id, log.namespace, log.name, log.file, log.mode, log.created_ms, log.first, 0
                )
                for log in look(self.disk, live=True).logs.values()
                if log.namespace == self.namespace
            }
        else:
            for file in sorted(new):
                name = catalog.name_of(file)
                found[name] = LogLine(0, self.namespace, name, file, "", 0, 0, 0)
        self._found = found
        return found

    def _spot(self, line: LogLine, firsts: Mapping[int, int]) -> LogSpot | None:
        """Find where a log begins and ends; None if it is gone. `firsts`: the first kept offset of each."""
        log_id, oldest, newest = line.id, None, None
        try:
            with self._index(line.file, line.id) as index:
                log_id = index.log_id
                oldest, newest = index.front(), index.last()
        except FileNotFoundError:  # the log is gone, or its index is lost, or no record is durable yet
            if not line.id:
                return None
            if not self._has_log(line.file):
                line = line._replace(end=0)
        kept = firsts.get(log_id)
        if kept is None and line.id:  # deleted since the catalog was written
            return None
        first = max(line.first if line.id == log_id else 0, kept or 0)
        if oldest is not None and oldest.offset > first and self._is_hole(line.file, first):
            first = oldest.offset  # retention made a hole, and its note is lost
        end = max(newest.end if newest else 0, first)
        # The index was synced up to the catalog's end, so an index that ends earlier is damaged.
        if line.id == log_id:
            end = max(end, line.end)
        return LogSpot(self.source, line.name, log_id, first, end, line.file)

    def is_other(self, spot: LogSpot, id_before: int, offset: int) -> bool:
        return spot.id != id_before

    # -- places in a log

    def at_time(self, spot: LogSpot, unix_ms: int) -> int | None:
        with self._index_of(spot) as index:
            entry = index.at_time(unix_ms)
        return None if entry is None else min(max(entry.offset, spot.first), spot.end)

    def entries_at(self, asked: Sequence[tuple[LogSpot, int]]) -> list[IndexEntry | None]:
        found = []
        for spot, offset in asked:
            with self._index_of(spot) as index:
                found.append(index.at_or_before(offset))
        return found

    def records(self, spot: LogSpot, start: int, size: int) -> bytes:
        try:
            with self._log(self._file_of(spot)) as fd:
                return self.disk.read(fd, size, start)
        except FileNotFoundError:
            return b""

    def advance(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            with self._index_of(stretch.spot) as index:
                advance_all([stretch], partial(self._answers, index))

    def _answers(self, index: "LogIndex", asked: Sequence[Asked]) -> Iterator[FoundEntries | bytes]:
        for stretch, need in asked:
            spot = stretch.spot
            if isinstance(need, Entries):
                yield FoundEntries(index.entries(need.start, spot.end), spot.end)
            else:
                yield self.records(spot, *need)

    @contextmanager
    def _index(self, file: str, log_id: int = 0) -> Iterator["LogIndex"]:
        """Open an index. `log_id`: the log that it is taken for if its header is damaged."""
        with self._opened(f"{file}.idx") as fd:
            header = index.header_of(self.disk, fd)
            yield LogIndex(self.disk, fd, header[0] if header else log_id)

    @contextmanager
    def _index_of(self, spot: LogSpot) -> Iterator["LogIndex"]:
        """Open the log's index, or an empty one if the file is missing, which the reader reports."""
        with ExitStack() as stack:
            try:
                index = stack.enter_context(self._index(self._file_of(spot), spot.id))
            except FileNotFoundError:
                index = LogIndex(self.disk, None, spot.id)
            yield index

    def first_kept(self, log_id: int) -> int | None:
        """Ask the journal, too, for the first kept offset as of now; None if the log is gone."""
        return self._kept_now().get(log_id)

    def _kept_now(self) -> Mapping[int, int]:
        """Return the first kept offset of each log. Catalog and journal are read once they have changed."""
        segments = sorted(self.disk.names(journal.FOLDER))
        names = (catalog.PATH, *(f"{journal.FOLDER}/{name}" for name in segments))
        stamp = tuple((name, *_stamp(f"{self.source}/{name}")) for name in names)
        if _KEPT.get(self.source, ((), {}))[0] != stamp:
            _KEPT[self.source] = stamp, kept_first(self.disk)
        return _KEPT[self.source][1]


_KEPT: dict[str, tuple[tuple[Any, ...], Mapping[int, int]]] = {}
"""By folder: how catalog and journal stood, and the first kept offset of each log by them."""


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except FileNotFoundError:  # a checkpoint has freed it
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


BLOCK_ENTRIES = 1024
NEAR_ENTRIES = 256


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

    def front(self) -> IndexEntry | None:
        """Return the first good entry, behind those that retention turned into zeros."""
        number = self._bisect(lambda entry: False)
        return next((entry for _, entry in self._good(number, NEAR_ENTRIES)), None)

    def entries(self, start: int, stop: int) -> Iterator[IndexEntry]:
        """Yield the good entries that touch the offsets [start, stop), in order."""
        number = max(self._bisect(lambda entry: entry.end <= start), 0)
        for _, entry in self._good(number, BLOCK_ENTRIES):
            if entry.offset >= stop:
                return
            if entry.end > start:
                yield entry

    def at_or_before(self, offset: int) -> IndexEntry | None:
        """Return the last good entry that begins at or below an offset."""
        return self._last_before(self._bisect(lambda entry: entry.offset <= offset))

    def at_time(self, unix_ms: int) -> IndexEntry | None:
        """Return the first good entry whose last record is of that time or later."""
        number = self._bisect(lambda entry: entry.last_ms < unix_ms)
        return next((entry for _, entry in self._good(number, NEAR_ENTRIES)), None)

    def _bisect(self, below: Callable[[IndexEntry], bool]) -> int:
        """Return the number of the first entry for which `below` does not hold.

        If the file begins with zeroed entries, these count as below. Other bad entries are passed over.
        """
        low, high = 0, self.count
        trimmed = self._is_zero(0)
        while low < high:
            middle = (low + high) // 2
            if trimmed and self._is_zero(middle):
                low = middle + 1
                continue
            number, entry = next(self._good(middle, 1, high), (high, None))
            if entry is not None and below(entry):
                low = number + 1
            else:
                high = middle
        return low

    def _good(self, number: int, ahead: int, stop: int | None = None) -> Iterator[tuple[int, IndexEntry]]:
        """Yield good entries from `number` on. `ahead`: how many are read at once; more if they are bad."""
        stop = self.count if stop is None else stop
        while number < stop:
            block = self._block(number, min(ahead, stop - number))
            if not block:
                return
            for at in range(0, len(block), INDEX_ENTRY_BYTES):
                if (entry := format.unpack_index_entry(block, self.log_id, at)) is not None:
                    yield number + at // INDEX_ENTRY_BYTES, entry
            number += len(block) // INDEX_ENTRY_BYTES
            ahead = max(ahead, NEAR_ENTRIES)

    def _last_before(self, stop: int) -> IndexEntry | None:
        """Return the nearest good entry before the entry `stop`."""
        while stop > 0:
            start = max(stop - NEAR_ENTRIES, 0)
            block = self._block(start, stop - start)
            for at in reversed(range(0, len(block), INDEX_ENTRY_BYTES)):
                if (entry := format.unpack_index_entry(block, self.log_id, at)) is not None:
                    return entry
            stop = start
        return None

    def _is_zero(self, number: int) -> bool:
        block = self._block(number, 1)
        return bool(block) and not any(block)

    def _block(self, number: int, count: int) -> bytes:
        """Read whole entries; fewer than `count` at the file's end."""
        if self._fd is None:
            return b""
        data = self._disk.read(self._fd, count * INDEX_ENTRY_BYTES, entry_position(number))
        return data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES]


FirstKept = Callable[[], int | None]
"""Returns a log's first kept offset as of now, by the journal; None if the log is gone."""

_ZERO = bytes(format.LENGTH_BYTES)


@attrs.define(eq=False)
class SpanReader:
    """Reads one span of a log's open file: whole index entries, each checked, in chunks of some megabytes.

    A running broker may drop old records meanwhile. It makes a hole at the file's head, which reads as zeros,
    and then zeroes the index entries. So wrong bytes are not damage yet: the journal is asked first.

    An index is derived from its log. Where an entry is bad, the records there are read as unverified ones, if
    they lead from the good entry before to the one behind. `bare`: chunks that lie wholly in the span need no
    bytes.
    """

    _span: Span
    _bytes: index.Read
    _first_kept: FirstKept
    _policy: LossPolicy
    _bare: bool
    _lost: tuple[int, int, str] | None = attrs.field(default=None, init=False)
    """Start, end and reason of a loss. It is reported once its end is known."""

    def chunks(self, entries: Iterator[IndexEntry]) -> Iterator[Chunk]:
        """`entries`: the index's entries that touch the span, in order."""
        for group in chunk_groups(self._readable(entries)):
            yield from self._read(group)
        self._tell()

    def _readable(self, entries: Iterator[IndexEntry]) -> Iterator[IndexEntry]:
        """Yield the entries whose records are to be read, and rebuilt ones where one is bad."""
        position, time_ms = self._span.start, 0
        for entry in entries:
            yield from self._between(position, entry.offset, entry.first_ms)
            if self._wanted(entry):
                yield entry
            position, time_ms = entry.end, entry.last_ms
        yield from self._between(position, self._span.stop, time_ms)

    def _between(self, start: int, stop: int, time_ms: int) -> Iterator[IndexEntry]:
        """Yield rebuilt entries for what the index does not cover. The rest is noted as lost."""
        if start >= stop:
            return
        anew = self._made_anew(start, stop, time_ms)
        begin = anew[0].offset if anew else stop
        if begin > start:
            self._lose(start, begin, "the index says nothing of what stands here")
        yield from filter(self._wanted, anew)

    def _made_anew(self, start: int, stop: int, time_ms: int) -> list[IndexEntry]:
        """Rebuild the entries from `start` to `stop`; none if the length fields do not lead there."""
        first = self._first_kept()
        while first is not None and first < stop:
            begin = max(start, first)
            found, end = index.rebuild(self._bytes, begin, stop, time_ms)
            first = self._first_kept()  # records that were dropped meanwhile may have been read as zeros
            if first is not None and first <= begin:
                return found if end == stop else []
        return []

    def _wanted(self, entry: IndexEntry) -> bool:
        if entry.damaged:
            self._lose(entry.offset, entry.end, "the journal lost what stood here")
            return False
        if not entry.unverified or self._policy.unverified is Unverified.READ:
            return True
        if self._policy.unverified is Unverified.FAIL:
            self._lose(entry.offset, entry.end, "unverified: nothing says that these are the bytes written")
        return False

    def _read(self, entries: list[IndexEntry]) -> Iterator[Chunk]:
        base = entries[0].offset
        if self._bare and self._span.start <= base and entries[-1].end <= self._span.stop:
            self._tell()
            yield Chunk(base, b"", entries)
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
        start, stop = max(start, self._span.start), min(stop, self._span.stop)
        first = self._first_kept()
        if first is None:
            text = "the log has been deleted"
        elif start < first:
            gone = min(first, stop)
            self._say(start, gone, f"retention dropped it (the first kept offset is {first})")
            start = gone
        if start < stop:
            self._say(start, stop, text)

    def _say(self, start: int, stop: int, text: str) -> None:
        span = self._span
        self._policy.lose(f"{span.topic} in {span.source}: offsets {start} to {stop} are lost: {text}")

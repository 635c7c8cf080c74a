"""Reading logs: whole records from an offset. Each byte is checked once against its index entry.

A log's newest records are read from memory, its tail, until its file has them. Others are read from the file:
at once if they are in the page cache, else by a thread, and the answer comes later. An entry's CRC is checked
the first time that this process serves bytes of it. An offset must be a record's start. It is known to be one
where an entry begins or an earlier answer ended; otherwise the records are walked from the entry's start.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, TypeVar

import attrs
import trio
from crc32c import crc32c

from shared.errors import BucketAway, CorruptRecord, LogDeleted, NotARecord, OutOfRange, StoreError
from shared.file_range import FileRange
from shared.storage import format
from shared.storage.disk import Disk
from shared.storage.entries import ENTRY_COVERS_BYTES
from shared.storage.files import FileGone, OpenFiles, describe
from shared.storage.format import IndexEntry
from shared.storage.index_reader import IndexTable, NotInMemory
from shared.storage.log import Log, opaque
from shared.storage.threads import ReaderThreads

T = TypeVar("T")


class MemoryRange(FileRange):
    """A file range whose bytes are in memory."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        super().__init__(-1, 0, len(data), lambda: None)
        self._data = data

    def read(self, bytes_max: int) -> bytes:
        return self._data[self.offset : self.offset + min(bytes_max, self.length)]

    def chunk(self) -> bytes:
        self.release()
        return self._data


class Blocks:
    """Checked bytes of entries by log id and offset; the oldest are evicted first, used or not."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.size = 0

    def get(self, log_id: int, offset: int) -> bytes | None:
        return self._entries.get((log_id, offset))

    def put(self, log_id: int, offset: int, data: bytes) -> None:
        self.size += len(data) - len(self._entries.pop((log_id, offset), b""))
        self._entries[log_id, offset] = data
        while self.size > self._bytes_max:
            self.size -= len(self._entries.popitem(last=False)[1])


class Verified:
    """The entries whose CRC was checked, by log id and entry number. Numbers below 0 are never in it."""

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def has(self, log_id: int, number: int) -> bool:
        bits = self._bits.get(log_id)
        return (
            bits is not None and 0 <= number >> 3 < len(bits) and bool(bits[number >> 3] & 1 << (number & 7))
        )

    def add(self, log_id: int, number: int) -> None:
        if number < 0:
            return
        bits = self._bits.setdefault(log_id, bytearray())
        if number >> 3 >= len(bits):
            bits.extend(bytes((number >> 3) + 64 - len(bits)))
        bits[number >> 3] |= 1 << (number & 7)

    def forget(self, log_id: int) -> None:
        self._bits.pop(log_id, None)


_UNVERIFIED_BYTES_MAX = 1 << 20
"""Per answer: checking 1 MiB takes about 0.2 ms, after which other connections are served."""

_PROBE_BYTES = 128 << 10
"""To see whether a range is in the page cache, one byte in each of these is probed."""
_BLOCK_BYTES_MAX = 256 << 10
"""An entry's bytes are cached up to this size; only an entry of one large record has more."""
_STARTS = 16384
"""Offsets remembered as records' starts."""
_NEAR = 4096
"""Logs whose last found entry is remembered."""


ReadRemote = Callable[[Log, int, int, Callable[[bytes | StoreError], None]], None]
"""Reads bytes of a log: (log, offset, length, done)."""


class Want(Enum):
    """The form of the answer."""

    BYTES = 0
    RANGE = 1
    START = 2


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class _Request:
    log: Log
    offset: int
    max_bytes: int
    want: Want
    done: Callable[[Any], None]


_LATER = object()
"""In place of an answer: a thread reads first."""

# In place of an entry's number:
_OPEN = -1  # it still grows: that it was checked says nothing of what it becomes
_IN_MEMORY = -2  # its CRC covers bytes that the file lacks


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Reader:
    """Serves all reads of a store. `zero_copy`: the disk's descriptors are the system's own."""

    _disk: Disk
    _files: OpenFiles
    _reader_threads: ReaderThreads
    _in_thread: Callable[..., Awaitable[Any]]
    _cache_bytes: int
    _zero_copy: bool
    cold_reads: int = 0
    read_remote: ReadRemote | None = None
    """Reads bytes of a log that are in the bucket only."""
    _starts: OrderedDict[tuple[int, int], None] = attrs.Factory(OrderedDict)  # (log id, offset)
    _near: dict[Log, tuple[int, IndexEntry]] = attrs.Factory(dict)
    """The entry found last: most readers continue from there."""

    def __attrs_post_init__(self) -> None:
        self.table = IndexTable(self._disk, self._files)
        self._verified = Verified()
        self._blocks = Blocks(self._cache_bytes)

    # -- requests of logs

    def read(self, log: Log, offset: int, max_bytes: int, done: Callable[[bytes | StoreError], None]) -> None:
        self._step(_Request(log, offset, max_bytes, Want.BYTES, done))

    def read_chunk(
        self, log: Log, offset: int, max_bytes: int, done: Callable[[FileRange | StoreError], None]
    ) -> None:
        self._step(_Request(log, offset, max_bytes, Want.RANGE, done))

    def is_record_start(self, log: Log, offset: int, done: Callable[[bool | StoreError], None]) -> None:
        if offset == log.visible and not log.deleted:
            done(True)
        elif offset > log.visible:
            done(NotARecord(log.visible))
        else:
            self._step(_Request(log, offset, 1, Want.START, done))

    def index_entries(self, log: Log, start: int, stop: int) -> list[IndexEntry]:
        start = max(start, log.first)
        stop = min(stop, log.visible)
        found: list[IndexEntry] = []
        if start >= stop:
            return found
        number, entry = self._blocking(lambda: self.table.find(log, start))
        while entry.offset < stop:
            found.append(entry)
            number += 1
            following = self._blocking(lambda n=number: self.table.at(log, n))  # type: ignore[misc]
            if following is None:
                break
            entry = following
        return found

    def seek(self, log: Log, unix_ms: int) -> int:
        entry = self._blocking(lambda: self.table.find_time(log, unix_ms))
        return log.visible if entry is None else max(entry.offset, log.first)

    async def look(self, look: Callable[[], T], limiter: trio.CapacityLimiter) -> T:
        """The result of `look`, which looks at indexes; a thread loads what is not in memory."""
        while True:
            try:
                return look()
            except NotInMemory as missing:
                missing.loaded(await self._in_thread(missing.load, limiter=limiter))

    def _blocking(self, look: Callable[[], Any]) -> Any:
        while True:
            try:
                return look()
            except NotInMemory as missing:
                try:
                    found = missing.load()
                except FileGone:
                    raise LogDeleted from None
                except OSError as error:
                    raise StoreError(f"the index cannot be read: {describe(error)}") from error
                missing.loaded(found)

    def forget(self, log: Log) -> None:
        """Drop everything remembered of a deleted log."""
        self._near.pop(log, None)
        self._verified.forget(log.id)
        self.table.forget(log)

    # -- one request

    def _step(self, request: _Request) -> None:
        try:
            result = self._serve(request)
        except NotInMemory as missing:
            self._load(request, missing)
            return
        except StoreError as error:
            result = error.with_traceback(None)  # it holds this frame, which holds it
        except MemoryError as error:
            result = self._error_for(request.log, request.offset, error)
        if result is not _LATER:
            request.done(result)

    def _load(self, request: _Request, missing: NotInMemory) -> None:
        def then(found: Any) -> None:
            if isinstance(found, BaseException):
                request.done(self._error_for(request.log, request.offset, found))
            else:
                missing.loaded(found)
                self._step(request)

        self.cold_reads += 1
        self._reader_threads(missing.load, then)

    def _serve(self, request: _Request) -> Any:
        """The answer, or `_LATER`. Raises NotInMemory if the index must be loaded first, and StoreError."""
        log, offset = request.log, request.offset
        if log.deleted:
            raise LogDeleted
        if offset < log.first:
            raise OutOfRange(log.first)
        if offset >= log.visible:
            return self._answer_memory(request, b"")
        if offset >= log.tail_start:
            return self._answer_memory(request, self._tail(request))
        number, entry = self._find(log, offset)
        if request.want is Want.START and offset == entry.offset and self._begins_record(log, entry):
            return True  # also before damage: who has read all up to there has a place to note
        if entry.damaged:
            raise self._corrupt(log, entry)
        if offset < log.local:
            return self._serve_remote(request, number, entry)
        if request.want is not Want.START and request.max_bytes >= ENTRY_COVERS_BYTES:
            spans = self._spans(log, number, entry, offset + request.max_bytes)
            if spans:
                return self._serve_spans(request, spans)
        return self._serve_block(request, number, entry)

    def _begins_record(self, log: Log, entry: IndexEntry) -> bool:
        """Whether a record begins with the entry. Damage is in pieces, the first of which begins with one."""
        if not entry.damaged or entry.offset <= log.first:
            return True
        return not self.table.find(log, entry.offset - 1)[1].damaged

    def _find(self, log: Log, offset: int) -> tuple[int, IndexEntry]:
        near = self._near.get(log)
        if near is not None and near[1].offset <= offset < near[1].end:
            return near
        number, entry = self.table.find(log, offset)
        if entry is log.open_entry:
            return _OPEN, entry
        if len(self._near) >= _NEAR and log not in self._near:
            del self._near[next(iter(self._near))]
        self._near[log] = number, entry
        return number, entry

    def _answer_memory(self, request: _Request, data: bytes) -> Any:
        """The answer from bytes in memory; b"" at the visible end."""
        if request.want is Want.BYTES:
            return data
        if request.want is Want.START:
            return True
        return MemoryRange(data)

    def _trim(self, request: _Request, start: int, data: bytes | bytearray) -> bytes:
        """The requested records from `data`, which holds whole records from `start` on."""
        position = request.offset - start
        limit = position + request.max_bytes
        if limit >= len(data):
            end = len(data)
        else:
            end, _ = format.skip_records(data, position, limit)
            if end == position:
                end = position + format.LENGTH_BYTES + format.length_at(data, position)[0]
        self._know(request.log, start + end)
        return data[position:end] if isinstance(data, bytes) else bytes(memoryview(data)[position:end])

    def _tail(self, request: _Request) -> bytes:
        """Answer from the log's tail."""
        log, offset = request.log, request.offset
        start = log.tail_start
        if offset != start and (log.id, offset) not in self._starts:
            _, entry = self._find(log, offset)  # it begins where a record does, not far below
            self._check_start(request, start, log.tail, max(entry.offset - start, 0))
        return self._trim(request, start, log.tail)

    def _check_start(self, request: _Request, start: int, data: bytes | bytearray, known: int = 0) -> None:
        """Raise NotARecord unless the requested offset is a record's start; `known` is one, in `data`."""
        offset = request.offset
        if offset != start and (request.log.id, offset) not in self._starts:
            at, _ = format.skip_records(data, known, offset - start)
            if start + at != offset:
                raise NotARecord(start + at)
            self._know(request.log, offset)

    def _know(self, log: Log, offset: int) -> None:
        self._starts[log.id, offset] = None
        if len(self._starts) > _STARTS:
            self._starts.popitem(last=False)

    # -- single records: an entry's bytes, cached

    def _serve_block(self, request: _Request, number: int, entry: IndexEntry) -> Any:
        """Answer from the entry that covers the offset: read, check and cache all of it."""
        log = request.log
        if entry.end > log.tail_start:
            # The entry's newest bytes are only in memory; those in the file were written by this process.
            entry = entry._replace(length=log.tail_start - entry.offset)
            number = _IN_MEMORY
        block = self._blocks.get(log.id, entry.offset)
        if block is not None and len(block) == entry.length:
            return self._answer_block(request, entry, block)

        def checked(data: bytes) -> Any:
            if number != _IN_MEMORY and (len(data) != entry.length or crc32c(data) != entry.crc32c):
                raise self._corrupt(log, entry)
            self._verified.add(log.id, number)
            if len(data) <= _BLOCK_BYTES_MAX:
                self._blocks.put(log.id, entry.offset, data)
            return self._answer_block(request, entry, data)

        return self._fetch(request, entry.offset, entry.length, checked)

    def _answer_block(self, request: _Request, entry: IndexEntry, data: bytes) -> Any:
        self._check_start(request, entry.offset, data)
        if request.want is Want.START:
            return True
        part = self._trim(request, entry.offset, data)
        if not part:
            raise self._corrupt(request.log, entry)
        if request.want is Want.BYTES:
            return part
        return self._range(request.log, request.offset, len(part), part)

    # -- what only the bucket has

    def _serve_remote(self, request: _Request, number: int, entry: IndexEntry) -> Any:
        """Answer with what the bucket has of this entry, and of those behind it as far as one answer goes."""
        log, offset = request.log, request.offset
        stop = min(offset + request.max_bytes, log.local, entry.offset + _UNVERIFIED_BYTES_MAX)
        entries = [entry]
        while (following := self.table.at(log, number + len(entries))) is not None:
            if following.end > stop or following.damaged or following.offset != entries[-1].end:
                break
            entries.append(following)

        def then(found: bytes | StoreError) -> None:
            result: Any = found
            if log.deleted:
                result = LogDeleted()
            elif offset < log.first:
                result = OutOfRange(log.first)
            elif not isinstance(found, StoreError):
                try:
                    result = self._answer_remote(request, entries, found)
                except StoreError as error:
                    result = error.with_traceback(None)
            request.done(result)

        if self.read_remote is None:
            raise BucketAway(f"below {log.local} it is in a bucket only, and this server has none")
        self.read_remote(log, entry.offset, entries[-1].end - entry.offset, then)
        return _LATER

    def _answer_remote(self, request: _Request, entries: Sequence[IndexEntry], data: bytes) -> Any:
        """The answer from these entries' bytes, as far as they are those that were written."""
        start, good = entries[0].offset, 0
        for entry in entries:
            part = data[entry.offset - start : entry.end - start]
            if len(part) != entry.length or crc32c(part) != entry.crc32c:
                break
            good = entry.end - start
        if not good:
            raise self._corrupt(request.log, entries[0])
        return self._answer_block(request, entries[0], data[:good])

    # -- many records: whole entries

    def _spans(self, log: Log, number: int, entry: IndexEntry, stop: int) -> list[tuple[int, IndexEntry]]:
        """The entries from `entry` on that end at or below `stop`: as many as one answer should check."""
        stop = min(stop, log.tail_start)
        spans: list[tuple[int, IndexEntry]] = []
        unverified = 0
        following: IndexEntry | None = entry
        while following is not None and following.end <= stop and not following.damaged:
            if following is log.open_entry:
                number = _OPEN
            if not self._verified.has(log.id, number):
                if spans and unverified + following.length > _UNVERIFIED_BYTES_MAX:
                    break
                unverified += following.length
            spans.append((number, following))
            if number == _OPEN:
                break
            number += 1
            following = self.table.at(log, number)
        return spans

    def _serve_spans(self, request: _Request, spans: list[tuple[int, IndexEntry]]) -> Any:
        """Answer with these entries, from the requested offset on.

        For a range, entries checked before are not read again. If a later entry is damaged, the answer ends
        before it; if the first is, CorruptRecord is raised.
        """
        log, offset = request.log, request.offset
        first = spans[0][1]
        start_known = offset == first.offset or (log.id, offset) in self._starts
        unverified = [span for span in spans if not self._verified.has(log.id, span[0])]
        base = offset if start_known and (not unverified or unverified[0] is not spans[0]) else first.offset
        stop = spans[-1][1].end
        if request.want is Want.RANGE and start_known and self._zero_copy:
            if not unverified:
                return self._resident_range(request, stop)
            checked_to = self._check_resident(log, unverified)
            if checked_to is None:
                return self._range(log, offset, stop - offset, b"")
            if checked_to > offset:
                return self._range(log, offset, checked_to - offset, b"")

        def checked(data: bytes) -> Any:
            end = stop
            view = memoryview(data)
            for number, entry in unverified:
                part = view[entry.offset - base : entry.end - base]
                if len(part) != entry.length or crc32c(part) != entry.crc32c:
                    if entry is first:
                        raise self._corrupt(log, entry)
                    self.report(log, entry)
                    end = entry.offset  # serve what is good before it; the next request meets the damage
                    break
                self._verified.add(log.id, number)
            if not start_known:
                self._check_start(request, base, data)
            if request.want is Want.RANGE and self._zero_copy:
                return self._range(log, offset, end - offset, b"")
            if base != offset or end != stop:
                data = data[offset - base : end - base]
            return data if request.want is Want.BYTES else MemoryRange(data)

        return self._fetch(request, base, stop - base, checked)

    def _check_resident(self, log: Log, unverified: list[tuple[int, IndexEntry]]) -> int | None:
        """Check entries one by one (small buffers are much cheaper than one large one) without waiting.

        None if all are good, else the offset of the first that is not in memory, or not good.
        """
        fd = log.file.fd
        for number, entry in unverified:
            data = self._disk.read_nowait(fd, entry.length, entry.offset) if fd >= 0 else None
            if data is None or len(data) != entry.length or crc32c(data) != entry.crc32c:
                return entry.offset
            self._verified.add(log.id, number)
        return None

    def _resident_range(self, request: _Request, stop: int) -> Any:
        """A range that can be sent without waiting for the disk, as far as the page cache tells."""
        log, offset = request.log, request.offset
        fd = log.file.fd
        if fd >= 0 and all(
            self._disk.read_nowait(fd, 1, position) is not None
            for position in range(offset, stop, _PROBE_BYTES)
        ):
            return self._range(log, offset, stop - offset, b"")
        return self._fetch(
            request, offset, stop - offset, lambda data: self._range(log, offset, stop - offset, b"")
        )

    def _range(self, log: Log, offset: int, length: int, data: bytes) -> FileRange:
        if not self._zero_copy or offset < log.local:
            return MemoryRange(data)
        try:
            fd = self._files.pin_open(log.file)
        except FileGone:
            raise LogDeleted from None
        except OSError as error:
            raise StoreError(f"{log.file.path}: {describe(error)}") from error
        self._use(log, offset)

        def release() -> None:
            self._files.unpin(log.file)
            self._unuse(log, offset)

        return FileRange(fd, offset, length, release)

    # -- bytes of a log's file

    def _fetch(self, request: _Request, offset: int, length: int, checked: Callable[[bytes], Any]) -> Any:
        """Read, then answer with `checked` of the bytes: now, or when a thread has read them."""
        log = request.log
        file = log.file
        fd = file.fd
        if fd >= 0:
            data = self._disk.read_nowait(fd, length, offset)
            if data is not None:
                return checked(data)
        fd = self._files.pin(file)
        self._use(log, offset)

        def work() -> tuple[int, bytes]:
            opened = self._files.open(file) if fd < 0 else fd
            try:
                return opened, self._disk.read(opened, length, offset)
            except BaseException:
                if opened != fd:
                    self._disk.close(opened)
                raise

        def then(found: Any) -> None:
            if not isinstance(found, BaseException) and fd < 0:
                self._files.adopt(file, found[0])
            self._files.unpin(file)
            self._unuse(log, offset)
            if log.deleted:
                result: Any = LogDeleted()
            elif request.offset < log.first:
                result = OutOfRange(log.first)
            elif isinstance(found, BaseException):
                result = self._error_for(log, offset, found)
            else:
                try:
                    result = checked(found[1])
                except StoreError as error:
                    result = error.with_traceback(None)  # it holds this frame, which holds it
                except MemoryError as error:
                    result = self._error_for(log, offset, error)
            request.done(result)

        self.cold_reads += 1
        self._reader_threads(work, then)
        return _LATER

    @contextmanager
    def using(self, log: Log, offset: int) -> Iterator[None]:
        """Meanwhile retention frees no space from `offset` on."""
        self._use(log, offset)
        try:
            yield
        finally:
            self._unuse(log, offset)

    def _use(self, log: Log, offset: int) -> None:
        if log.users is None:
            log.users = []
        log.users.append(offset)

    def _unuse(self, log: Log, offset: int) -> None:
        assert log.users is not None
        log.users.remove(offset)
        if not log.users:
            log.users = None

    # -- damage

    def report(self, log: Log, entry: IndexEntry) -> None:
        """Count and log, once, that what the entry covers is not what was written."""
        self._files.damage.in_log(log.id, log.file.path, entry.offset, entry.length)

    def _corrupt(self, log: Log, entry: IndexEntry) -> CorruptRecord:
        self.report(log, entry)
        end = entry.end
        with suppress(StoreError):
            while end < log.visible and (following := self.index_entries(log, end, end + 1)[0]).damaged:
                end = following.end
        return CorruptRecord(log.file.path, entry.offset, min(end, log.visible))

    def _error_for(self, log: Log, offset: int, error: BaseException) -> StoreError:
        if isinstance(error, StoreError):
            return error
        if isinstance(error, FileGone):
            return LogDeleted()
        if isinstance(error, FileNotFoundError):
            self._files.damage.in_log(log.id, log.file.path, log.first, log.visible - log.first)
            return CorruptRecord(log.file.path, offset)
        return StoreError(f"{log.file.path} cannot be read: {describe(error)}")

"""A running store's view of logs' indexes: looking marks up, most of them on disk.

The newest marks of a log that is being written are in memory (`Log.open_mark`, `Log.closed_marks`); the rest
are looked up in its index file by bisection, through a small cache of the file's pages that all logs share.
So a log that nobody writes or reads costs nothing here.

An index is derived from its log. So an entry that is not good hides nothing: what it covered is walked record
by record between the good entries on both sides, and the entry is made anew, flagged unverified (`mend`).
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from crc32c import crc32c

from shared.errors import CorruptRecord
from shared.storage import format, index
from shared.storage.disk import Disk
from shared.storage.files import OpenFiles
from shared.storage.format import INDEX_HEADER_BYTES, MARK_BYTES, Flag, Mark
from shared.storage.journal import write_all
from shared.storage.log import UNKNOWN, Log

_PAGE_MARKS = 256
_PAGE_BYTES = _PAGE_MARKS * MARK_BYTES
_PAGES = 256
_PASS_OVER = 128  # retention zeroes whole blocks, of 64 marks each
_DAMAGED_BYTES_MAX = 1 << 30
"""A mark's length has 4 bytes: a longer range gets several."""
_BLOCK_BYTES = 4096  # of the file system: what a hole is made of


class NotInMemory(Exception):
    """The index must be read from the disk first: call `load`, in a thread or here, then `loaded`."""

    def __init__(self, load: Callable[[], object], loaded: Callable[[object], None]) -> None:
        super().__init__()
        self.load = load
        self.loaded = loaded


class MarkTable:
    """Finds marks. Numbers count a log's marks from its first one on, dropped ones included."""

    def __init__(self, disk: Disk, files: OpenFiles) -> None:
        self._disk = disk
        self._files = files
        self._pages: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def find(self, log: Log, offset: int) -> tuple[int, Mark]:
        """The mark that covers `offset`, at or above the first kept offset and below the visible end.

        Raises NotInMemory, also where the index is damaged there and is to be mended first.
        """
        mark = log.open_mark
        if mark is not None and offset >= mark.offset:
            self._require_count(log)
            return log.marks_written + len(log.closed_marks), mark
        closed = log.closed_marks
        if closed and offset >= closed[0].offset:
            self._require_count(log)
            number = bisect_right(closed, offset, key=attrgetter("offset")) - 1
            return log.marks_written + number, closed[number]
        number, mark = self._bisect(log, lambda mark: mark.offset <= offset)
        if mark is None or offset >= mark.end:
            raise self._to_be_mended(log, number + 1, offset)
        return number, mark

    def find_time(self, log: Log, unix_ms: int) -> Mark | None:
        """The first mark whose last record is of that time or later. Raises as `find` does."""
        if log.first >= log.visible:
            return None
        first, _ = self.find(log, log.first)
        number, _ = self._bisect(log, lambda mark: mark.last_ms < unix_ms)
        return self.at(log, max(number + 1, first))

    def at(self, log: Log, number: int) -> Mark | None:
        """A mark by its number; None behind the newest. Raises as `find` does."""
        self._require_count(log)
        if number < log.marks_written:
            mark = self._stored(log, number)
            if mark is None:
                raise self._to_be_mended(log, number, log.first)
            return mark
        number -= log.marks_written
        if number < len(log.closed_marks):
            return log.closed_marks[number]
        return log.open_mark if number == len(log.closed_marks) else None

    def count(self, log: Log) -> int:
        """How many marks its index file has. Raises NotInMemory."""
        self._require_count(log)
        return log.marks_written

    def forget(self, log: Log) -> None:
        """Its index file changed otherwise than by appending, or is gone."""
        for key in [key for key in self._pages if key[0] == log.id]:
            del self._pages[key]

    def _bisect(self, log: Log, below: Callable[[Mark], bool]) -> tuple[int, Mark | None]:
        """The last mark for which `below` holds (-1, None if there is none); it holds for a prefix.

        A few marks that do not parse are passed over; many are taken for what retention left as zeros at the
        front, and where they are not that, nothing is found that covers what was asked for.
        """
        self._require_count(log)
        low, best, found = 0, -1, None
        high = log.marks_written + len(log.closed_marks) + (log.open_mark is not None)
        while low < high:
            middle = probe = (low + high) // 2
            mark = self._any(log, probe)
            while mark is None and probe + 1 < high and probe - middle < _PASS_OVER:
                probe += 1
                mark = self._any(log, probe)
            if mark is not None:
                if below(mark):
                    best, found = probe, mark
                    low = probe + 1
                else:
                    high = middle
            elif probe + 1 < high:
                low = probe + 1
            else:
                high = middle
        return best, found

    def _any(self, log: Log, number: int) -> Mark | None:
        return self._stored(log, number) if number < log.marks_written else self.at(log, number)

    def _stored(self, log: Log, number: int) -> Mark | None:
        page, at = divmod(number, _PAGE_MARKS)
        at *= MARK_BYTES
        return format.unpack_mark(self._page(log, page, at + MARK_BYTES), log.id, at)

    def _page(self, log: Log, page: int, needed: int) -> bytes:
        key = log.id, page
        data = self._pages.get(key)
        if data is not None and len(data) >= needed:
            self._pages.move_to_end(key)
            return data
        position = index.mark_position(page * _PAGE_MARKS)
        # What comes behind may still change in its place (mode `none` rewrites its open mark).
        limit = min((log.marks_written - page * _PAGE_MARKS) * MARK_BYTES, _PAGE_BYTES)
        fd = log.index_file.fd
        data = self._disk.read_nowait(fd, limit, position) if fd >= 0 else None
        if data is None or len(data) < limit:
            raise self._missing(log, key, position, limit)
        self._keep(key, data)
        return data

    def _missing(self, log: Log, key: tuple[int, int], position: int, limit: int) -> NotInMemory:
        file = log.index_file

        def load() -> tuple[int, bytes]:
            fd = self._files.open(file)
            try:
                return fd, self._disk.read(fd, limit, position).ljust(limit, b"\0")
            except BaseException:
                self._disk.close(fd)
                raise

        def loaded(found: object) -> None:
            assert isinstance(found, tuple)
            fd, data = found
            self._files.adopt(file, fd)
            self._keep(key, data)

        return NotInMemory(load, loaded)

    def _to_be_mended(self, log: Log, number: int, offset: int) -> NotInMemory:
        load = partial(mend, self._disk, self._files, log, number, offset, log.marks_written, log.marks_start)
        return NotInMemory(load, lambda _: self.forget(log))

    def _keep(self, key: tuple[int, int], data: bytes) -> None:
        self._pages[key] = data
        self._pages.move_to_end(key)
        if len(self._pages) > _PAGES:
            self._pages.popitem(last=False)

    def _require_count(self, log: Log) -> None:
        if log.marks_written == UNKNOWN:
            end = log.marks_start

            def loaded(found: object) -> None:
                assert isinstance(found, tuple)
                if log.marks_written == UNKNOWN:
                    log.marks_written, last_ms = found
                    log.last_ms = max(log.last_ms, last_ms)

            raise NotInMemory(lambda: load_end(self._disk, self._files, log, end), loaded)


# -- blocking work on one log's index file, from any thread


def open_for_writing(disk: Disk, files: OpenFiles, log: Log) -> int:
    """The index file's descriptor, its header written if it is new or bad. Raises FileGone and OSError."""
    fd = files.open(log.index_file, create=True)
    try:
        if disk.size(fd) < INDEX_HEADER_BYTES or not _is_of(log, disk.read(fd, INDEX_HEADER_BYTES, 0)):
            if not index.belongs_to(disk, fd, log.id):
                disk.truncate(fd, 0)
            index.write_header(disk, fd, log.id, log.created_ms)
    except BaseException:
        disk.close(fd)
        raise
    return fd


def _is_of(log: Log, header: bytes) -> bool:
    found = format.unpack_index_header(header)
    return found is not None and found[0] == log.id


def load_end(disk: Disk, files: OpenFiles, log: Log, end: int) -> tuple[int, int]:
    """How many marks the index file has, and the newest record's time; they reach to `end`.

    An index that does not (it is missing, damaged or short) is rebuilt from there on, flagged unverified, and
    reported. Raises FileGone and OSError.
    """
    with files.repairs:
        try:
            fd = files.open(log.index_file)
        except FileNotFoundError:
            return _repair(disk, files, log, end)
        try:
            if _is_of(log, disk.read(fd, INDEX_HEADER_BYTES, 0)):
                number = count = max((disk.size(fd) - INDEX_HEADER_BYTES) // MARK_BYTES, 0)
                if end <= log.first_kept:
                    return count, 0
                while number:  # a commit under way may have added some behind `end`
                    mark = _mark(disk, fd, log, number - 1)
                    if mark is None or mark.end < end:
                        break
                    if mark.end == end:
                        return number, mark.last_ms
                    number -= 1
        finally:
            disk.close(fd)
        return _repair(disk, files, log, end)


def _mark(disk: Disk, fd: int, log: Log, number: int) -> Mark | None:
    return format.unpack_mark(disk.read(fd, MARK_BYTES, index.mark_position(number)), log.id)


def _repair(disk: Disk, files: OpenFiles, log: Log, end: int) -> tuple[int, int]:
    """Keep what is good of an index, and make marks, of the bytes as they are, from there to `end`."""
    fd = open_for_writing(disk, files, log)
    try:
        number = (disk.size(fd) - INDEX_HEADER_BYTES) // MARK_BYTES
        start, last_ms = log.first_kept, log.created_ms
        while number:
            mark = _mark(disk, fd, log, number - 1)
            if mark is not None and mark.end <= end:
                start, last_ms = mark.end, mark.last_ms
                break
            number -= 1
        log_fd = files.open(log.file, create=True)  # a file that is missing is damage, like a short one
        try:
            found = fill(disk, log_fd, start, end, last_ms)
        finally:
            disk.close(log_fd)
        index.write_marks(disk, fd, log.id, number, found)
        disk.truncate(fd, index.mark_position(number + len(found)))
    finally:
        disk.close(fd)
    place = index.mark_position(number) if found else 0  # else it was the header
    files.damage.in_index(log.id, log.index_file.path, place, end - start)
    return number + len(found), last_ms


class _Gap(NamedTuple):
    """Entries from `low` to `high` that are not good, and what they covered, [start, stop).

    `time_ms`: no record there is newer, as far as is known.
    """

    low: int
    high: int
    start: int
    stop: int
    time_ms: int


def mend(disk: Disk, files: OpenFiles, log: Log, number: int, offset: int, count: int, end: int) -> None:
    """Make index entries that are not good anew, in their places: those from entry `number` on, up to the
    first that reaches beyond `offset`. The index has `count` entries, which reach to `end`.

    Raises CorruptRecord where there is nothing to mend, FileGone and OSError.
    """
    mended = False
    with files.repairs:
        fd = open_for_writing(disk, files, log)
        try:
            for gap in _gaps(disk, fd, log, number, count, end):
                log_fd = files.open(
                    log.file, create=True
                )  # a file that is missing is damage, like a short one
                try:
                    made = _made_anew(disk, log_fd, gap)
                finally:
                    disk.close(log_fd)
                index.write_marks(disk, fd, log.id, gap.low, made)
                place = index.mark_position(gap.low)
                files.damage.in_index(log.id, log.index_file.path, place, gap.stop - gap.start)
                mended = True
                if gap.stop > offset:
                    break
        finally:
            disk.close(fd)
    if not mended:
        raise CorruptRecord(log.file.path, offset)


def _gaps(disk: Disk, fd: int, log: Log, number: int, count: int, end: int) -> Iterator[_Gap]:
    """Where the index is not good, from entry `number` on, without what retention has dropped."""
    before: Mark | None = None
    low = number
    while low:
        before = _mark(disk, fd, log, low - 1)
        if before is not None:
            break
        low -= 1
    for at, mark in enumerate(index.stored_marks(disk, fd, log.id, low, count), low):
        if mark is not None:
            yield from _gap(disk, fd, log, low, at, before, mark.offset, mark.first_ms)
            before, low = mark, at + 1
    yield from _gap(
        disk, fd, log, low, count, before, end, log.created_ms if before is None else before.last_ms
    )


def _gap(
    disk: Disk, fd: int, log: Log, low: int, high: int, before: Mark | None, stop: int, time_ms: int
) -> Iterator[_Gap]:
    """The gap between two good entries, if there is one."""
    start = log.first_kept if before is None else max(before.end, log.first_kept)
    if low == high and before is not None and start < stop:
        low, start = (
            low - 1,
            max(before.offset, log.first_kept),
        )  # no entry is left for it: the last is made longer
    if low == high or start > stop:
        return
    if before is None and log.first_kept:
        dropped = index.dropped_marks(disk, fd)
        low = dropped if dropped < high else max(high - 1 - (stop - start) // index.MARK_COVERS_BYTES, 0)
    yield _Gap(low, high, start, stop, time_ms)


def _made_anew(disk: Disk, log_fd: int, gap: _Gap) -> list[Mark]:
    """A mark for each of the gap's entries; where fewer are enough the last ones cover nothing."""
    entries = gap.high - gap.low
    # Two that follow each other cover more than one piece may: so they are not more than there are entries.
    piece_bytes = max(index.MARK_COVERS_BYTES, -(-2 * (gap.stop - gap.start) // entries))
    made = fill(disk, log_fd, gap.start, gap.stop, gap.time_ms, piece_bytes)[:entries]
    empty = Mark(gap.stop, gap.time_ms, gap.time_ms, 0, 0, 0, Flag.UNVERIFIED)
    return made + [empty] * (entries - len(made))


def fill(
    disk: Disk,
    log_fd: int,
    start: int,
    end: int,
    time_ms: int,
    piece_bytes: int = index.MARK_COVERS_BYTES,
    *,
    torn: bool = False,
) -> list[Mark]:
    """Marks for all of [start, end) as it is found: unverified where it parses, damaged behind that.

    A record ends at `end`, unless the log may be `torn` there. So where the length fields lead elsewhere a
    record before is damaged, and the walk went astray: the last piece counts as damaged, too.
    """
    found, position = index.rebuild(partial(disk.read, log_fd), start, end, time_ms, piece_bytes)
    if found and position < end <= disk.size(log_fd) and not torn:
        position = found.pop().offset
    while position < end:
        length = min(end - position, _DAMAGED_BYTES_MAX)
        data = disk.read(log_fd, min(length, _PAGE_BYTES), position)
        found.append(
            Mark(position, time_ms, time_ms, length, 0, crc32c(data), Flag.UNVERIFIED | Flag.DAMAGED)
        )
        position += length
    return found


def whole(
    disk: Disk, log_fd: int, good: Iterable[Mark], first: int, end: int, time_ms: int
) -> tuple[list[Mark], int]:
    """Marks for all of [first, end): good ones, in order, and new ones where there is none (see `fill`).

    `time_ms`: when the log was made. Returns them, and how many bytes the new ones cover.
    """
    found: list[Mark] = []
    position, filled = first, 0

    def fill_to(stop: int) -> None:
        nonlocal filled
        found.extend(fill(disk, log_fd, position, stop, time_ms))
        filled += stop - position

    for mark in good:
        if mark.end <= position or mark.end > end or (mark.offset < position and found):
            continue
        if mark.offset > position:
            fill_to(mark.offset)
        found.append(mark)
        position, time_ms = mark.end, mark.last_ms
    if position < end:
        fill_to(end)
    return found, filled


def drop_marks(disk: Disk, files: OpenFiles, log: Log, number: int) -> None:
    """Zero the index entries below `number`, whole disk blocks by a hole. Raises FileGone, OSError."""
    with files.repairs:
        fd = files.open(log.index_file)
        try:
            # The block that holds the header is not given back, so its entries are overwritten.
            stop = index.mark_position(number) // _BLOCK_BYTES * _BLOCK_BYTES
            if stop > _BLOCK_BYTES:
                write_all(disk, fd, bytes(_BLOCK_BYTES - INDEX_HEADER_BYTES), INDEX_HEADER_BYTES)
                disk.punch(fd, _BLOCK_BYTES, stop - _BLOCK_BYTES)
        finally:
            disk.close(fd)

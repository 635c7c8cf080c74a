"""Looking up index entries in a running store; most of them are on disk.

The newest entries of a log that is being written are in memory (`Log.open_entry`, `Log.closed_entries`). The
rest is searched in the index file by bisection, through a small cache of pages that all logs share. So a log
that nobody writes or reads costs nothing here.

An index is derived from its log, so a bad entry hides nothing. What it covered is walked record by record
between the good entries around it, and the entry is made anew, flagged unverified (`mend`).
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from shared.storage import format, index
from shared.storage.disk import Disk
from shared.storage.files import OpenFiles
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.log import UNKNOWN, Log

_PAGE_ENTRIES = 256
_PAGE_BYTES = _PAGE_ENTRIES * INDEX_ENTRY_BYTES
_PAGES = 256
_PASS_OVER = 128  # retention zeroes whole blocks, of 64 entries each


class NotInMemory(Exception):
    """The index must be read from the disk first: call `load`, in a thread or here, then `loaded`."""

    def __init__(self, load: Callable[[], object], loaded: Callable[[object], None]) -> None:
        super().__init__()
        self.load = load
        self.loaded = loaded


class IndexTable:
    """Finds entries. Their numbers count from a log's first entry, dropped ones included."""

    def __init__(self, disk: Disk, files: OpenFiles) -> None:
        self._disk = disk
        self._files = files
        self._pages: OrderedDict[tuple[int, int], bytes] = OrderedDict()

    def find(self, log: Log, offset: int) -> tuple[int, IndexEntry]:
        """The entry that covers `offset`, which is at or above the first kept offset and below the visible
        end.

        Raises NotInMemory, also if the index is damaged there and must be mended first.
        """
        entry = log.open_entry
        if entry is not None and offset >= entry.offset:
            self._require_count(log)
            return log.entries_written + len(log.closed_entries), entry
        closed = log.closed_entries
        if closed and offset >= closed[0].offset:
            self._require_count(log)
            number = bisect_right(closed, offset, key=attrgetter("offset")) - 1
            return log.entries_written + number, closed[number]
        number, entry = self._bisect(log, lambda entry: entry.offset <= offset)
        if entry is None or offset >= entry.end:
            raise self._to_be_mended(log, number + 1, offset)
        return number, entry

    def find_time(self, log: Log, unix_ms: int) -> IndexEntry | None:
        """The first entry that may have records of `unix_ms` or later. Raises as `find`.

        Of an entry made anew it is known what its records are not older than. What they are not newer than,
        the next entry tells.
        """
        if log.first >= log.visible:
            return None
        first, _ = self.find(log, log.first)
        number, before = self._bisect(log, lambda entry: entry.last_ms < unix_ms)
        found = self.at(log, max(number + 1, first))
        if before is not None and before.unverified and (found is None or found.first_ms >= unix_ms):
            known_ms = before.last_ms
            number, _ = self._bisect(log, lambda entry: entry.last_ms < known_ms)
            found = self.at(log, max(number + 1, first))
        return found

    def at(self, log: Log, number: int) -> IndexEntry | None:
        """An entry by its number; None behind the newest. Raises as `find`."""
        self._require_count(log)
        if number < log.entries_written:
            entry = self._stored(log, number)
            if entry is None:
                raise self._to_be_mended(log, number, log.first)
            return entry
        number -= log.entries_written
        if number < len(log.closed_entries):
            return log.closed_entries[number]
        return log.open_entry if number == len(log.closed_entries) else None

    def count(self, log: Log) -> int:
        """How many entries its index file has. Raises NotInMemory."""
        self._require_count(log)
        return log.entries_written

    def forget(self, log: Log) -> None:
        """The index file was changed other than by appending, or is deleted."""
        for key in [key for key in self._pages if key[0] == log.id]:
            del self._pages[key]

    def _bisect(self, log: Log, below: Callable[[IndexEntry], bool]) -> tuple[int, IndexEntry | None]:
        """The last entry for which `below` holds (-1, None if there is none); it holds for a prefix.

        A few bad entries are skipped. Many are taken for the zeros that retention leaves at the front; if
        they are not, nothing is found that covers the offset.
        """
        self._require_count(log)
        low, best, found = 0, -1, None
        high = log.entries_written + len(log.closed_entries) + (log.open_entry is not None)
        while low < high:
            middle = probe = (low + high) // 2
            entry = self._any(log, probe)
            while entry is None and probe + 1 < high and probe - middle < _PASS_OVER:
                probe += 1
                entry = self._any(log, probe)
            if entry is not None:
                if below(entry):
                    best, found = probe, entry
                    low = probe + 1
                else:
                    high = middle
            elif probe + 1 < high:
                low = probe + 1
            else:
                high = middle
        return best, found

    def _any(self, log: Log, number: int) -> IndexEntry | None:
        return self._stored(log, number) if number < log.entries_written else self.at(log, number)

    def _stored(self, log: Log, number: int) -> IndexEntry | None:
        page, at = divmod(number, _PAGE_ENTRIES)
        at *= INDEX_ENTRY_BYTES
        return format.unpack_index_entry(self._page(log, page, at + INDEX_ENTRY_BYTES), log.id, at)

    def _page(self, log: Log, page: int, needed: int) -> bytes:
        key = log.id, page
        data = self._pages.get(key)
        if data is not None and len(data) >= needed:
            self._pages.move_to_end(key)
            return data
        position = index.entry_position(page * _PAGE_ENTRIES)
        # Later bytes may still change in place (mode `none` rewrites its open entry).
        limit = min((log.entries_written - page * _PAGE_ENTRIES) * INDEX_ENTRY_BYTES, _PAGE_BYTES)
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
        load = partial(
            index.mend, self._disk, self._files, log, number, offset, log.entries_written, log.entries_start
        )
        return NotInMemory(load, lambda _: self.forget(log))

    def _keep(self, key: tuple[int, int], data: bytes) -> None:
        self._pages[key] = data
        self._pages.move_to_end(key)
        if len(self._pages) > _PAGES:
            self._pages.popitem(last=False)

    def _require_count(self, log: Log) -> None:
        if log.entries_written == UNKNOWN:
            end = log.entries_start

            def loaded(found: object) -> None:
                assert isinstance(found, tuple)
                if log.entries_written == UNKNOWN:
                    log.entries_written, last_ms = found
                    log.last_ms = max(log.last_ms, last_ms)

            raise NotInMemory(lambda: index.load_end(self._disk, self._files, log, end), loaded)

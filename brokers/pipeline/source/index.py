"""One log's index file, read where it is needed: a terabyte's index is a gigabyte.

Entries are in offset order, so they are found by bisection. One that does not parse is passed over: what it
covered is a gap, which whoever reads the log's bytes meets and reports.
"""

from collections.abc import Callable, Iterator

from shared.storage import format
from shared.storage.disk import Disk
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.index import entry_position

_BLOCK_MARKS = 1024
_NEAR_MARKS = 256


class LogIndex:
    """An open index file and the log that it is of. `count`: entries when it was opened, good or not.

    Without a file it has none.
    """

    def __init__(self, disk: Disk, fd: int | None, log_id: int) -> None:
        self._disk = disk
        self._fd = fd
        self.log_id = log_id
        size = 0 if fd is None else disk.size(fd)
        self.count = max(size - entry_position(0), 0) // INDEX_ENTRY_BYTES

    def last(self) -> IndexEntry | None:
        """The last good entry: what is durable ends with it."""
        stop = self.count
        while stop > 0:
            start = max(stop - _NEAR_MARKS, 0)
            block = self._block(start, stop - start)
            for at in range(len(block) // INDEX_ENTRY_BYTES - 1, -1, -1):
                if (
                    mark := format.unpack_index_entry(block, self.log_id, at * INDEX_ENTRY_BYTES)
                ) is not None:
                    return mark
            stop = start
        return None

    def first(self) -> IndexEntry | None:
        """The first good entry: those that retention gave back are zeros at the front."""
        for _, mark in self._good(self._bisect(lambda mark: False), _NEAR_MARKS):
            return mark
        return None

    def begins_damaged(self) -> bool:
        """Whether the entry is bad from which on retention has left them."""
        block = self._block(self._bisect(lambda mark: False), 1)
        return bool(block) and format.unpack_index_entry(block, self.log_id) is None

    def marks(self, start: int, stop: int) -> Iterator[IndexEntry]:
        """The good entries that touch the offsets [start, stop), in order."""
        number = max(self._bisect(lambda mark: mark.end <= start), 0)
        for _, mark in self._good(number, _BLOCK_MARKS):
            if mark.offset >= stop:
                return
            if mark.end > start:
                yield mark

    def at_or_before(self, offset: int) -> IndexEntry | None:
        """The last good entry that begins at or below an offset."""
        return self._at(self._bisect(lambda mark: mark.offset <= offset) - 1)

    def at_time(self, unix_ms: int) -> IndexEntry | None:
        """The first good entry whose last record is of that time or later."""
        return next(
            (m for _, m in self._good(self._bisect(lambda mark: mark.last_ms < unix_ms), _NEAR_MARKS)), None
        )

    def _bisect(self, below: Callable[[IndexEntry], bool]) -> int:
        """The number of the first entry for which `below` does not hold; it holds for those before it.

        Zeroed entries are below everything where the file begins with such; other bad ones are passed over.
        """
        low, high = 0, self.count
        trimmed = self._is_zero(0)
        while low < high:
            middle = (low + high) // 2
            if trimmed and self._is_zero(middle):
                low = middle + 1
                continue
            number, mark = next(self._good(middle, 1, high), (high, None))
            if mark is not None and below(mark):
                low = number + 1
            else:
                high = middle
        return low

    def _good(self, number: int, ahead: int, stop: int | None = None) -> Iterator[tuple[int, IndexEntry]]:
        """Good entries from `number` on, read `ahead` at a time (more where they turn out to be bad)."""
        stop = self.count if stop is None else stop
        while number < stop:
            block = self._block(number, min(ahead, stop - number))
            if not block:
                return
            for at in range(0, len(block), INDEX_ENTRY_BYTES):
                if (mark := format.unpack_index_entry(block, self.log_id, at)) is not None:
                    yield number + at // INDEX_ENTRY_BYTES, mark
            number += len(block) // INDEX_ENTRY_BYTES
            ahead = max(ahead, _NEAR_MARKS)

    def _at(self, number: int) -> IndexEntry | None:
        """The good entry `number`, or the nearest good one before it."""
        while number >= 0:
            if (mark := format.unpack_index_entry(self._block(number, 1), self.log_id)) is not None:
                return mark
            number -= 1
        return None

    def _is_zero(self, number: int) -> bool:
        block = self._block(number, 1)
        return bool(block) and not any(block)

    def _block(self, number: int, count: int) -> bytes:
        """Whole entries: fewer at the file's end."""
        if self._fd is None:
            return b""
        data = self._disk.read(self._fd, count * INDEX_ENTRY_BYTES, entry_position(number))
        return data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES]

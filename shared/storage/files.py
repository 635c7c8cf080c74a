"""Open files of logs: a bounded number, and no handle ever refers to another log's bytes.

A log deleted and created again has the same path. So paths are opened, created and unlinked only here, under
one lock, and never after their log is deleted. A thread that still works on the old log cannot touch the new
one's files. Open handles keep meaning the old file, as POSIX has it.

The trio thread alone decides which handles stay open. Threads get descriptors that are pinned meanwhile, or
open their own and hand them over.
"""

import errno
import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog

from shared.errors import StoreError, StoreFull
from shared.process_limits import log_files_beside
from shared.storage.disk import Disk

logger = structlog.stdlib.get_logger("brokers.storage")


class DamagedPlaces:
    """Damage found in files. Methods may be called from any thread; each place is counted and logged once."""

    def __init__(self) -> None:
        self._places: set[tuple[int, str, int]] = set()

    def __len__(self) -> int:
        return len(self._places)

    def in_log(self, log_id: int, path: str, offset: int, length: int) -> None:
        """Bytes of a log are not what was written."""
        if self._is_new(log_id, path, offset):
            logger.error(
                "damaged bytes in a log: reading them is refused, all else is served; look at the disk",
                path=path,
                offset=offset,
                length=length,
            )

    def in_index(self, log_id: int, path: str, offset: int, covered_bytes: int) -> None:
        """Index entries from `offset` of `path` on were bad; what they cover is served all the same."""
        if self._is_new(log_id, path, offset):
            logger.error(
                "damaged index: made anew from its log, which is served, unverified; look at the disk",
                path=path,
                offset=offset,
                covered_bytes=covered_bytes,
            )

    def in_file(self, path: str, text: str | None = None) -> None:
        """A whole file is not what it was; `text` says what that means, unless the caller logs it."""
        if self._is_new(0, path, 0) and text is not None:
            logger.error(text, path=path)

    def _is_new(self, log_id: int, path: str, offset: int) -> bool:
        place = log_id, path, offset
        if place in self._places:
            return False
        self._places.add(place)
        return True


ROOM_LEAST = 16
KEPT_MAX = 256
"""Removed files that stay open, as somebody wants them or their blocks are still to be freed."""
FREED_BYTES = 1 << 20
"""A larger removed file is closed in a thread: to free the blocks of 500 MB took 100 ms."""
_EVICT_LOOKS = 8  # pinned files are skipped, so bound how many are looked at


class FileGone(Exception):
    """The log was deleted."""


class LogFile:
    """One of a log's two files. `fd`: -1 while closed; `pins`: how many users need it open. `wanted`: it is
    to be read although it was removed. `kept`: its descriptor once it was removed, else -1.
    """

    __slots__ = ("fd", "gone", "kept", "path", "pins", "wanted")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.pins = 0
        self.gone = False
        self.kept = -1
        self.wanted = False


WorkThen = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Does the first in a thread, then calls the second with its result, or its error."""


def at_once(work: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """Without a thread."""
    then(work())


class OpenFiles:
    """The open handles, least recently used first. `damage`: what was found damaged."""

    def __init__(
        self,
        disk: Disk,
        files_max: int = 0,
        damage: DamagedPlaces | None = None,
        in_thread: WorkThen = at_once,
    ) -> None:
        self.damage = DamagedPlaces() if damage is None else damage
        self._disk = disk
        self._is_fixed = files_max > 0
        self._files_max = files_max or log_files_beside(0)
        self._open: OrderedDict[LogFile, None] = OrderedDict()
        self._names = threading.Lock()
        self._kept: set[LogFile] = set()
        self._in_thread = in_thread
        self._removed: deque[int] = deque()  # descriptors of removed files, to be closed in a thread
        self._closing = False
        self.repairs = threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    # -- from any thread

    def open(self, file: LogFile, *, create: bool = False, exclusive: bool = False) -> int:
        """A new descriptor. Raises FileGone, FileNotFoundError, FileExistsError and other OSErrors."""
        with self._names:
            if file.gone:
                raise FileGone(file.path)
            return self._disk.open(file.path, create=create, exclusive=exclusive)

    @contextmanager
    def opened(self, file: LogFile, *, create: bool = False) -> Iterator[int]:
        """A descriptor of its own, closed at the end. Raises as `open` does."""
        fd = self.open(file, create=create)
        try:
            yield fd
        finally:
            self._disk.close(fd)

    def make(self, file: LogFile, stray_path: str) -> int:
        """Make a new log's file; one that nobody owns is moved out of the way, to `stray_path`."""
        with self._names:
            if file.gone:
                raise FileGone(file.path)
            try:
                return self._disk.open(file.path, create=True, exclusive=True)
            except FileExistsError:
                self._disk.rename(file.path, stray_path)
                return self._disk.open(file.path, create=True, exclusive=True)

    def rename(self, file: LogFile, new_path: str, stray_path: str) -> None:
        """Give the file's name to the file at `new_path`; one that has it is moved to `stray_path`. Raises
        FileGone and OSError.
        """
        with self._names:
            if file.gone:
                raise FileGone(file.path)
            with suppress(FileNotFoundError):
                self._disk.rename(file.path, stray_path)
            self._disk.rename(new_path, file.path)

    def remove(self, file: LogFile) -> None:
        """Unlink a deleted log's file, which stays open until `forget`, or `let_go` if it is wanted: neither
        the commits nor who opens another file wait for its blocks. Raises OSError; the next start tries
        again.
        """
        with self._names:
            if not file.gone:
                file.gone = True
                if len(self._kept) < KEPT_MAX:
                    with suppress(OSError):
                        file.kept = self._disk.open(file.path)
                        self._kept.add(file)
                try:
                    self._disk.unlink(file.path)
                except FileNotFoundError:
                    pass

    # -- from the trio thread

    @property
    def room(self) -> int:
        """How many handles a thread may leave open for `adopt`; it closes others itself."""
        return max(ROOM_LEAST, self._files_max - len(self._open))

    def reserve_descriptors(self, connections: int) -> None:
        """`connections` are open: keep as many handles as the process's limit leaves."""
        if not self._is_fixed:
            self._files_max = log_files_beside(connections)
            kept = math.inf
            while self._files_max < len(self._open) < kept:
                kept = len(self._open)
                self._evict()

    def pin(self, file: LogFile) -> int:
        """The descriptor, or -1 if closed; it stays as it is until `unpin`."""
        file.pins += 1
        if file.fd >= 0:
            self._open.move_to_end(file)
        return file.fd

    def unpin(self, file: LogFile, fd: int = -1) -> None:
        """`fd`: the descriptor that was used meanwhile. One that a thread opened is kept, as by `adopt`."""
        if fd >= 0 and fd != file.fd:
            self.adopt(file, fd)
        file.pins -= 1
        if file.gone and not file.pins:
            self._close(file)
        elif len(self._open) > self._files_max:
            self._evict()

    def size(self, fd: int) -> int:
        """The length of an open file."""
        return self._disk.size(fd)

    def sync(self, file: LogFile, fd: int) -> None:
        """Sync a file. `fd`: as from `pin`. A missing file needs no sync: it was deleted, or never had a
        byte.
        """
        if fd >= 0:
            self._disk.sync_data(fd)
            return
        with suppress(FileGone, FileNotFoundError), self.opened(file) as fd:
            self._disk.sync_data(fd)

    def adopt(self, file: LogFile, fd: int) -> None:
        """Keep `fd`, which a thread opened, unless the file is open already."""
        if file.fd >= 0 or (file.gone and not file.pins):
            self._disk.close(fd)
            return
        file.fd = fd
        self._open[file] = None
        if len(self._open) > self._files_max:
            self._evict()

    def pin_open(self, file: LogFile) -> int:
        """Pin the file, opening it now if needed. Raises FileGone and OSError (then it is not pinned)."""
        if file.fd < 0:
            fd = self.open(file)
            file.pins += 1  # pin first: if all others are pinned, `adopt` would close it at once
            self.adopt(file, fd)
            return file.fd
        return self.pin(file)

    def forget(self, file: LogFile) -> None:
        """The log is deleted: close the file once nobody uses it."""
        if not file.pins:
            self._close(file)
        if not file.wanted:
            self.let_go(file)

    def let_go(self, file: LogFile) -> None:
        """Nobody wants the bytes of a removed file any more."""
        file.wanted = False
        if file.gone:  # else `remove` is still to come, and `forget` behind it
            with self._names:
                fd, file.kept = file.kept, -1
                self._kept.discard(file)
            if fd >= 0:
                self._close_removed(fd)

    def let_all_go(self) -> None:
        """Close removed files, whoever wants them. Once the store has stopped, a thread may do so."""
        for file in list(self._kept):
            self.let_go(file)
        self._close_all_removed()

    def close_all(self) -> None:
        """Close all files, whoever uses them: 8,192 took 14 ms."""
        for file in list(self._open):
            self._close(file)
        self.let_all_go()

    def _close(self, file: LogFile) -> None:
        if file.fd >= 0:
            fd, file.fd = file.fd, -1
            del self._open[file]
            if file.gone:
                self._close_removed(fd)
            else:
                self._disk.close(fd)

    def _close_removed(self, fd: int) -> None:
        if len(self._removed) >= KEPT_MAX or self._disk.size(fd) <= FREED_BYTES:
            self._disk.close(fd)
            return
        self._removed.append(fd)
        if not self._closing:
            self._closing = True
            self._in_thread(self._close_all_removed, self._closed_removed)

    def _close_all_removed(self) -> None:  # in a thread
        with suppress(IndexError):
            while True:
                with suppress(OSError):
                    self._disk.close(self._removed.popleft())

    def _closed_removed(self, found: Any) -> None:
        self._closing = False
        if self._removed and found is None:  # one came as the thread ended
            self._close_removed(self._removed.pop())

    def _evict(self) -> None:
        for _ in range(_EVICT_LOOKS):
            if len(self._open) <= self._files_max:
                return
            file = next(iter(self._open))
            if file.pins:
                self._open.move_to_end(file)
            else:
                self._close(file)


def out_of_space(error: OSError) -> bool:
    """Whether the disk, or our quota, is full, and not broken."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def describe(error: BaseException | None) -> str:
    """An error in words, for messages."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return "out of memory" if isinstance(error, MemoryError) else str(error)


def error_for_unwritten(error: OSError | MemoryError) -> StoreError:
    """The error for appends whose bytes were not written."""
    if isinstance(error, OSError) and out_of_space(error):
        return StoreFull(f"not written: {describe(error)}")
    return StoreError(f"not written: {describe(error)}")

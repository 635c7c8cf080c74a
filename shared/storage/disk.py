"""The storage core's only access to files, so that a fake disk can replace it.

Paths are relative to the data folder (`journal/00000000000000000000.wal`) and are opened below its handle: no
link is followed; files get mode 0600, folders 0700. Errors are the system's OSErrors; the store decides what
they mean. All calls block.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Disk(Protocol):
    """A data folder's files. Descriptors are small ints of this disk's own."""

    read_only: bool
    """Nothing can be written any more."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        """Open for reading and writing. On a file system that has become read-only, open an existing file for
        reading, and set `read_only`.
        """

    def close(self, fd: int) -> None: ...

    def put_in_place(self, fd: int, of: int) -> None:
        """Have the descriptor `of` mean the file that `fd` means; reads under way may come from either."""

    def size(self, fd: int) -> int: ...

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the file's end."""

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        """Fill `target`; returns how many bytes it got, fewer only at the file's end."""

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        """As `read`, from the page cache alone; None if the system would have to wait, or fails (`read`
        tells).
        """

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write some of `data`; returns the bytes taken (a short write is legal)."""

    def write_pieces(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        """As `write`, for at most 1,024 consecutive pieces."""

    def sync_data(self, fd: int) -> None:
        """fdatasync. After any error nothing about the file's unsynced bytes is known."""

    def start_write_back(self, fd: int) -> bool:
        """Ask the system to start writing the file's dirty bytes: nothing is durable, but a later sync is
        short. False if that is unavailable. An error is as final as a sync's.
        """

    def sync_folder(self, path: str) -> None:
        """Make names in the folder durable ("" is the data folder itself)."""

    def sync_all(self) -> bool:
        """syncfs on the data folder's file system; False if that cannot be trusted, and nothing was done."""

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, size: int) -> None:
        """Reserve blocks up to `size` and make the file that long."""

    def punch(self, fd: int, offset: int, length: int) -> bool:
        """Free a range's blocks, keeping the file's length; False if the file system cannot."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """Make it if it is not there."""

    def names(self, path: str) -> Sequence[str]:
        """The names in a folder, sorted; empty if there is no such folder."""

    def is_gone(self, path: str, fd: int) -> bool:
        """Whether the path, below the data folder, no longer leads to the open file: that was removed, or
        another is in its place. False if that cannot be told.
        """

    def free_bytes(self) -> tuple[int, int]:
        """Bytes free to us, and the size of the whole file system."""


class Clock(Protocol):
    """The time."""

    def wall_ms(self) -> int:
        """Unix milliseconds; may jump."""

    def monotonic(self) -> float:
        """Seconds; never jumps, and goes on while the machine sleeps."""


# -- helpers for any disk

_PIECES_MAX = 1024
"""What POSIX systems take in one call (IOV_MAX)."""
_COPY_BYTES = 1 << 20


@contextmanager
def opened(disk: Disk, path: str, *, create: bool = False, exclusive: bool = False) -> Iterator[int]:
    """A file's descriptor, closed at the end. `exclusive`: it must be new. Raises OSError."""
    fd = disk.open(path, create=create, exclusive=exclusive)
    try:
        yield fd
    finally:
        disk.close(fd)


def size_of(disk: Disk, path: str) -> int:
    """A file's length; 0 where it is not there."""
    try:
        with opened(disk, path) as fd:
            return disk.size(fd)
    except FileNotFoundError:
        return 0


def read_file(disk: Disk, path: str) -> bytes | None:
    """A file's whole content; None where it is not there. Raises OSError."""
    try:
        with opened(disk, path) as fd:
            return disk.read(fd, disk.size(fd), 0)
    except FileNotFoundError:
        return None


def write_file(disk: Disk, path: str, data: bytes) -> None:
    """Make `data` the file's whole content, and sync it; the name is not synced."""
    with opened(disk, path, create=True) as fd:
        disk.truncate(fd, 0)
        write_all(disk, fd, data, 0)
        disk.sync_data(fd)


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace a whole file: at any moment there is the whole old one or the whole new one."""
    write_file(disk, f"{path}.new", data)
    disk.rename(f"{path}.new", path)
    disk.sync_folder(path.rpartition("/")[0])


def copy_file(disk: Disk, path: str, to: str, start: int = 0) -> None:
    """Copy a file from `start` on to another one, and sync that."""
    with opened(disk, path) as source, opened(disk, to, create=True) as target:
        for position in range(start, disk.size(source), _COPY_BYTES):
            write_all(disk, target, disk.read(source, _COPY_BYTES, position), position - start)
        disk.sync_data(target)


def write_all(disk: Disk, fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """Write every byte, however short the disk's writes are."""
    view = memoryview(data)
    taken = disk.write(fd, view, offset)
    while taken < len(view):
        count = disk.write(fd, view[taken:], offset + taken)
        if count <= 0:
            raise OSError(errno.EIO, "the disk takes no bytes")
        taken += count


def write_pieces(disk: Disk, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> None:
    """Write every byte of consecutive pieces, without joining them first."""
    at = 0
    while at < len(pieces):
        those = pieces[at : at + _PIECES_MAX]
        taken = disk.write_pieces(fd, those, offset)
        if taken <= 0 < sum(map(len, those)):
            raise OSError(errno.EIO, "the disk takes no bytes")
        offset += taken
        for piece in those:
            if taken < len(piece):  # a short write inside this piece
                write_all(disk, fd, memoryview(piece)[taken:], offset)
                offset += len(piece) - taken
                at += 1
                break
            taken -= len(piece)
            at += 1

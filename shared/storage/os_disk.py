"""The data folder on the operating system's own files, and its clocks (`disk.py` says what calls promise)."""

import errno
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from shared.local_path import sync_folder
from shared.storage import syscalls

_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
# O_CLOEXEC is what os.open does anyway; a FIFO or device put in a file's place must not hang the open.
_COMMON = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class OsDisk:
    """Files below one folder handle: moving or replacing the folder's path later has no effect.

    `folder` itself may be reached through links; nothing below it may. `create`: make a missing folder and
    its parents. `read_only`: every write raises OSError (EROFS); the disk becomes so too when the file system
    turns read-only, as some do when they fail.
    """

    def __init__(self, folder: Path, *, create: bool = True, read_only: bool = False) -> None:
        self.read_only = read_only
        if create and not read_only and not folder.is_dir():
            _make_all(folder)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: dict[str, int] = {"": self._root}  # one handle per namespace: a handful
        self._nowait = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Close the folder handles; files still open stay open."""
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()

    def _folder(self, path: str) -> int:
        fd = self._folders.get(path)
        if fd is None:
            parent, name = self._place(path)
            opened = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            fd = self._folders.setdefault(path, opened)
            if fd != opened:  # another thread was first
                os.close(opened)
        return fd

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        if name in ("", ".", "..") or "\0" in name:
            raise ValueError(f"not a path in a data folder: {path!r}")
        return self._folder(folder), name

    def _writable(self, path: str | None = None) -> None:
        if self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        folder, name = self._place(path)
        flags = _COMMON | (os.O_RDONLY if self.read_only else os.O_RDWR)
        if create:
            self._writable(path)
            flags |= os.O_CREAT | (os.O_EXCL if exclusive else 0)
        try:
            fd = os.open(name, flags, _FILE_MODE, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.EROFS or create:
                error.filename = path  # not the mere name, which other namespaces have too
                raise
            self.read_only = True
            fd = os.open(name, _COMMON | os.O_RDONLY, dir_fd=folder)
        if exclusive:
            return fd  # it was made here, so it is a file
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return fd

    def close(self, fd: int) -> None:
        os.close(fd)

    def put_in_place(self, fd: int, of: int) -> None:
        os.dup2(fd, of, inheritable=False)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, length: int, offset: int) -> bytes:
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # a read was cut short by a signal, or by the end of the file
        taken = len(data)
        while taken < length:
            data = os.pread(fd, length - taken, offset + taken)
            if not data:
                break
            parts.append(data)
            taken += len(data)
        return b"".join(parts)

    def read_into(self, fd: int, target: memoryview, offset: int) -> int:
        taken = 0
        while taken < len(target):
            count = os.preadv(fd, [target[taken:]], offset + taken)
            if not count:
                break
            taken += count
        return taken

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        if not self._nowait:
            return None
        buffer = bytearray(length)
        view = memoryview(buffer)
        taken = 0
        try:
            while taken < length:
                # Short at the end of cached bytes, and at the end of the file: the next call tells which.
                count = os.preadv(fd, [view[taken:]], offset + taken, os.RWF_NOWAIT)
                if count == 0:
                    break
                taken += count
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS):
                self._nowait = False  # the file system never answers without waiting: use threads
            return None
        return bytes(view[:taken])

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def write_pieces(self, fd: int, pieces: Sequence[bytes | memoryview], offset: int) -> int:
        return os.pwritev(fd, pieces, offset)

    def sync_data(self, fd: int) -> None:
        if self.read_only:  # the system may report success when it writes nothing any more
            self._writable()
        syscalls.sync_data(fd)

    def start_write_back(self, fd: int) -> bool:
        return syscalls.start_write_back(fd)

    def sync_folder(self, path: str) -> None:
        os.fsync(self._folder(path))

    def sync_all(self) -> bool:
        return syscalls.syncfs(self._root)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        syscalls.allocate(fd, size)

    def punch(self, fd: int, offset: int, length: int) -> bool:
        return syscalls.punch(fd, offset, length)

    def rename(self, old: str, new: str) -> None:
        self._writable(old)
        source, old_name = self._place(old)
        target, new_name = self._place(new)
        os.rename(old_name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def unlink(self, path: str) -> None:
        self._writable(path)
        folder, name = self._place(path)
        os.unlink(name, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        self._writable(path)
        parent, name = self._place(path)
        try:
            os.mkdir(name, _FOLDER_MODE, dir_fd=parent)
        except FileExistsError:
            pass
        self._folder(path)  # a link or a file in its place is an error now, not later

    def names(self, path: str) -> Sequence[str]:
        try:
            folder = self._folder(path)
        except FileNotFoundError:
            return []
        # A handle of its own: listing moves the handle's position, and threads share the kept ones.
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def is_gone(self, path: str, fd: int) -> bool:
        try:
            held = os.fstat(fd)
            found = os.stat(path, dir_fd=self._root, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        if os.path.samestat(held, found):
            return False
        # A second sign: some network file systems count no links, and some number their files anew.
        same = (held.st_size, held.st_mtime_ns) == (found.st_size, found.st_mtime_ns)
        return held.st_nlink == 0 or not same

    def free_bytes(self) -> tuple[int, int]:
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        # CLOCK_MONOTONIC stands still while the machine sleeps; after that the wall clock would seem set.
        return time.clock_gettime(time.CLOCK_BOOTTIME)


def _make_all(folder: Path) -> None:
    """Make the data folder and its missing parents, and make their names durable."""
    missing = [folder]
    while not missing[-1].parent.is_dir() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        sync_folder(path.parent)

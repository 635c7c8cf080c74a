"""The few file operations of the driver. Tests cut between any two of them, on the storage tests' fake disk.

Unlike a data folder, an archive is for others to read, so its files get the rights that the umask leaves. It
has a folder for each topic and day, too many for handles that stay open, as `OsDisk` keeps them.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.local_path import sync_folder


class Files(Protocol):
    """Files below one folder; paths are relative to it. Raises OSError. See `Disk` in the storage."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int: ...
    def close(self, fd: int) -> None: ...
    def size(self, fd: int) -> int: ...
    def read(self, fd: int, length: int, offset: int) -> bytes: ...
    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int: ...
    def sync_data(self, fd: int) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None: ...
    def names(self, path: str) -> Sequence[str]: ...


class LocalFiles:
    """A folder of this machine, or one that several share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        flags = os.O_RDONLY if not create else os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else 0)
        return os.open(self._folder / path, flags, 0o666)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, length: int, offset: int) -> bytes:
        return os.pread(fd, length, offset)

    def write(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def sync_data(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        sync_folder(self._folder / path)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._folder / old, self._folder / new)

    def unlink(self, path: str) -> None:
        os.unlink(self._folder / path)

    def make_folder(self, path: str) -> None:
        (self._folder / path).mkdir(exist_ok=True)

    def remove_folder(self, path: str) -> None:
        """Remove a folder of files: at once for whoever looks, since it gets another name first."""
        gone = (self._folder / path).parent / ".removed"
        shutil.rmtree(gone, ignore_errors=True)
        (self._folder / path).rename(gone)
        shutil.rmtree(gone)

    def names(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self._folder / path))
        except (FileNotFoundError, NotADirectoryError):
            return []


def read_whole(files: Files, path: str) -> bytes:
    fd = files.open(path)
    try:
        size, parts, at = files.size(fd), [], 0
        while at < size and (data := files.read(fd, size - at, at)):
            parts.append(data)
            at += len(data)
        return b"".join(parts)
    finally:
        files.close(fd)


def write_new(files: Files, path: str, data: bytes) -> None:
    """Create a file and sync it. Its name is durable once the folder is synced. Raises FileExistsError."""
    fd = files.open(path, create=True, exclusive=True)
    try:
        at = 0
        while at < len(data):
            at += files.write(fd, data[at:], at)
        files.sync_data(fd)
    finally:
        files.close(fd)

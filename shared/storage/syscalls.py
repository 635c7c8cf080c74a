"""The system calls that Python does not wrap, each with what to do where the platform has none.

Every function raises OSError with the system's errno, or says by its result that the platform cannot.
"""

import ctypes
import errno
import fcntl
import os
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h
_F_FULLFSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

# What a file system answers when it has no such operation (ZFS, NFS, FAT and some FUSE ones).
_NOT_THERE = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.ENODEV})

# syncfs tells of failed writes since 5.8 and of a file system's own failed sync since 5.17 (before, a dead
# metadata journal went unmentioned). On overlayfs the errors stay with the layer below.
_SYNCFS_TELLS_SINCE = (5, 17)


def _libc_function(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_int
    found: Callable[..., int] = function
    return found


_syncfs = _libc_function("syncfs")
# musl has no fallocate64; glibc's fallocate takes a 32-bit off_t on 32-bit machines, fallocate64 never does.
_fallocate = _libc_function("fallocate64") or _libc_function("fallocate")


_sync_file_range = _libc_function("sync_file_range")
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE, linux/fs.h


def _call(function: Callable[..., int], *arguments: object) -> None:
    while True:
        ctypes.set_errno(0)
        if function(*arguments) == 0:
            return
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


def _sync_medium(fd: int) -> None:
    """On macOS fsync leaves the bytes in the drive's cache; only F_FULLFSYNC reaches the medium."""
    try:
        fcntl.fcntl(fd, _F_FULLFSYNC)  # type: ignore[arg-type]
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        os.fsync(fd)


sync_data: Callable[[int], None] = (
    getattr(os, "fdatasync", os.fsync) if _F_FULLFSYNC is None else _sync_medium
)
"""Make a file's bytes and length durable."""


def allocate(fd: int, size: int) -> None:
    """Reserve blocks up to `size` and make the file at least that long.

    A file system that cannot reserve only gets the length (posix_fallocate would write a byte to every block
    instead, which reserves nothing where blocks are copied on write).
    """
    if _fallocate is not None:
        try:
            _call(_fallocate, fd, 0, ctypes.c_int64(0), ctypes.c_int64(size))
            return
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


def punch(fd: int, offset: int, length: int) -> bool:
    """Give the blocks of a range back; it then reads as zeros. False where that cannot be done."""
    if _fallocate is None:
        return False
    try:
        _call(_fallocate, fd, _KEEP_SIZE_AND_PUNCH, ctypes.c_int64(offset), ctypes.c_int64(length))
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True


def start_write_back(fd: int) -> bool:
    """Have the system begin to write what a file holds, and do not wait. False where that cannot be done."""
    if _sync_file_range is None:
        return False
    try:
        _call(_sync_file_range, fd, ctypes.c_int64(0), ctypes.c_int64(0), _RANGE_WRITE)
    except OSError as error:
        if error.errno not in _NOT_THERE | {errno.EINVAL, errno.ESPIPE}:
            raise
        return False
    return True


def syncfs(fd: int) -> bool:
    """Sync the whole file system that `fd` (opened long before) is on. False where it cannot be trusted."""
    if _syncfs is None or not _syncfs_tells(os.fstat(fd).st_dev):
        return False
    _call(_syncfs, fd)
    return True


@cache
def _syncfs_tells(device: int) -> bool:
    numbers = platform.release().split("-")[0].split(".")[:2]
    try:
        if tuple(int(number) for number in numbers) < _SYNCFS_TELLS_SINCE:
            return False
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except (ValueError, OSError):
        return False
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == name:
            return right.split()[0] != "overlay"
    # btrfs gives each subvolume a device number that no mount shows; its errors do arrive.
    return True

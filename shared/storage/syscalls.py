"""Linux's system calls that Python does not wrap, and what to do where a file system lacks them.

Functions raise OSError with the system's errno, or tell by their result that the file system cannot.
"""

import ctypes
import errno
import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

_KEEP_SIZE_AND_PUNCH = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, linux/falloc.h

# The errors of file systems without the operation (ZFS, NFS, FAT, some FUSE).
_NOT_THERE = frozenset({errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY, errno.ENODEV})

# syncfs reports failed writes since Linux 5.8 and a failed sync of the file system itself since 5.17; before,
# a dead metadata journal went unnoticed. On overlayfs the errors stay in the layer below.
_SYNCFS_TELLS_SINCE = (5, 17)


_LIBC = ctypes.CDLL(None, use_errno=True)
recvmmsg: Callable[..., int] = _LIBC.recvmmsg
_syncfs: Callable[..., int] = _LIBC.syncfs
_sync_file_range: Callable[..., int] = _LIBC.sync_file_range
# musl has no fallocate64; glibc's fallocate takes a 32-bit off_t on 32-bit machines, fallocate64 never does.
fallocate: Callable[..., int] = getattr(_LIBC, "fallocate64", None) or _LIBC.fallocate
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE, linux/fs.h


def _call(function: Callable[..., int], *arguments: object) -> None:
    while True:
        ctypes.set_errno(0)
        if function(*arguments) == 0:
            return
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


sync_data = os.fdatasync
"""Make a file's bytes and length durable."""


def allocate(fd: int, size: int) -> None:
    """Reserve blocks up to `size` and make the file at least that long.

    If the file system cannot reserve, only the length is set. (posix_fallocate would instead write to every
    block, which reserves nothing on copy-on-write file systems.)
    """
    try:
        _call(fallocate, fd, 0, ctypes.c_int64(0), ctypes.c_int64(size))
        return
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
    if os.fstat(fd).st_size < size:
        os.ftruncate(fd, size)


def punch(fd: int, offset: int, length: int) -> bool:
    """Free the blocks of a range, which then reads as zeros. False if that is unavailable."""
    try:
        _call(fallocate, fd, _KEEP_SIZE_AND_PUNCH, ctypes.c_int64(offset), ctypes.c_int64(length))
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return False
    return True


def start_write_back(fd: int) -> bool:
    """Ask the system to start writing a file's dirty bytes, without waiting. False if that is unavailable."""
    try:
        _call(_sync_file_range, fd, ctypes.c_int64(0), ctypes.c_int64(0), _RANGE_WRITE)
    except OSError as error:
        if error.errno not in _NOT_THERE | {errno.EINVAL, errno.ESPIPE}:
            raise
        return False
    return True


def syncfs(fd: int) -> bool:
    """Sync the file system of `fd`, which was opened long before. False if its result cannot be trusted."""
    if not _syncfs_tells(os.fstat(fd).st_dev):
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
    # btrfs gives each subvolume a device number that no mount shows; its errors do arrive
    return True

"""Many small writes to many files in one call, and several syncs at once: glibc's POSIX asynchronous I/O.

A thread that writes waits for the interpreter's lock after every call. Beside a busy loop each wait takes
several times as long as the write. `lio_listio` does all writes without the lock. Commits of 7 KB to each of
several logs, beside a loop that computes. Medians of runs in turns on 2 cores, by `Store.append`: with 70
logs 129 a second one by one, 187 in one call; with 400 logs 16 and 25. Where it is unavailable, the caller
writes one by one.
"""

import ctypes
import errno
import os
import signal
import struct
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

Write = tuple[int, memoryview, int]
"""Descriptor, bytes, offset."""

# glibc's struct aiocb with 64-bit long and pointers; `works` checks that it applies here.
_CONTROL_BYTES = 168
_REQUEST = struct.Struct("=iiiiQQQii")  # fildes, opcode, priority, padding, buffer, length, sigevent
_OFFSET_AT = 128
_OUTCOME = struct.Struct("=iiq")  # error, padding, bytes taken
_OUTCOME_AT = 112
_LIO_WRITE = 1
_LIO_WAIT = 0
_SIGEV_NONE = 1

# A signal would end the wait of `lio_listio`. glibc (2.36) leaves the list of who waits on its stack then.
# The pool's threads write there later, and the process dies with "free(): invalid pointer". `aio_suspend`
# takes its list back. (`signal.pthread_sigmask` makes a set of all signals: 70 us a call, and this 2.)
_SIGNAL_SET_BYTES = 128
_SIGNALS = b"\xff" * _SIGNAL_SET_BYTES
_THREADS = 4  # of glibc's pool; its default is 20


def write_many(writes: Sequence[Write]) -> list[int] | None:
    """Write all, in no order; for each the bytes taken, or minus an errno. None: unavailable here.

    The bytes must be in writable buffers (bytearray), because only those tell their address.
    """
    libc = library()
    return None if libc is None or not works() else _write_many(libc, writes)


def sync_many(fds: Sequence[int]) -> bool:
    """fdatasync all, at the same time; False: unavailable here. Raises OSError if one fails."""
    libc = library()
    if libc is None or not works():
        return False
    controls = bytearray(_CONTROL_BYTES * len(fds))
    base = ctypes.addressof(ctypes.c_char.from_buffer(controls))
    error = begun = 0
    for fd in fds:
        at = begun * _CONTROL_BYTES
        _REQUEST.pack_into(controls, at, fd, 0, 0, 0, 0, 0, 0, 0, _SIGEV_NONE)
        if libc.aio_fsync(os.O_DSYNC, ctypes.c_void_p(base + at)):
            break  # the queue is full
        begun += 1
    for fd in fds[begun:]:
        try:
            os.fdatasync(fd)
        except OSError as failed:
            error = error or failed.errno or errno.EIO
    for at in range(0, begun * _CONTROL_BYTES, _CONTROL_BYTES):  # wait for all: they write to these controls
        while (found := _OUTCOME.unpack_from(controls, at + _OUTCOME_AT)[0]) == errno.EINPROGRESS:
            libc.aio_suspend(struct.pack("=Q", base + at), 1, None)
        error = error or found
    if error:
        raise OSError(error, os.strerror(error))
    return True


def _write_many(libc: Any, writes: Sequence[Write]) -> list[int]:
    if not writes:
        return []
    count = len(writes)
    controls = bytearray(_CONTROL_BYTES * count)
    held = [ctypes.c_char.from_buffer(data) for _, data, _ in writes]
    base = ctypes.addressof(ctypes.c_char.from_buffer(controls))
    at = 0
    for (fd, data, offset), buffer in zip(writes, held, strict=True):
        address = ctypes.addressof(buffer)
        _REQUEST.pack_into(controls, at, fd, _LIO_WRITE, 0, 0, address, len(data), 0, 0, _SIGEV_NONE)
        struct.pack_into("=q", controls, at + _OFFSET_AT, offset)
        at += _CONTROL_BYTES
    pointers = struct.pack(f"={count}Q", *range(base, base + at, _CONTROL_BYTES))
    before = ctypes.create_string_buffer(_SIGNAL_SET_BYTES)
    libc.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS, before)
    libc.lio_listio(_LIO_WAIT, pointers, count, None)
    libc.pthread_sigmask(signal.SIG_SETMASK, before, None)
    outcomes = []
    for number, at in enumerate(range(0, len(controls), _CONTROL_BYTES)):
        while True:
            error, _, taken = _OUTCOME.unpack_from(controls, at + _OUTCOME_AT)
            if error != errno.EINPROGRESS:
                break
            libc.aio_suspend(pointers[number * 8 : number * 8 + 8], 1, None)  # a signal ended the wait
        outcomes.append(-error if error else taken)
    return outcomes


@cache
def library() -> Any | None:
    if not sys.platform.startswith("linux") or sys.maxsize < 1 << 32:
        return None
    try:
        if not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
            return None
        libc = ctypes.CDLL(None, use_errno=True)
        _ = libc.lio_listio, libc.aio_suspend, libc.aio_fsync
        libc.aio_init((ctypes.c_int * 10)(_THREADS, 1024, 0, 0, 0, 0, 1, 0, 0, 0))
    except (OSError, ValueError, AttributeError):
        return None
    return libc


@cache
def works() -> bool:
    """Whether the layout above is this machine's, tried on a file in memory and one that refuses writes."""
    try:
        good = os.memfd_create("probe", os.MFD_CLOEXEC)
    except OSError:
        return False
    bad = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        writes = [
            (good, memoryview(bytearray(b"first")), 3),
            (bad, memoryview(bytearray(b"second")), 0),
            (good, memoryview(bytearray(b"third")), 20),
        ]
        outcomes = _write_many(library(), writes)
        expected = bytes(3) + b"first" + bytes(12) + b"third"
        return outcomes == [5, -errno.EBADF, 5] and os.pread(good, 64, 0) == expected
    finally:
        os.close(good)
        os.close(bad)

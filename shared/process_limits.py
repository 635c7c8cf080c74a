"""The system's limits on this process's memory and open files, and how files are divided.

Connections must not take the files that the store and the administrator need. Of a usual limit, 500 files are
reserved; of a small one, half. The logs' files get what connections leave. The rest (journal, listeners, cold
reads, syncs: some 45 in a quiet hour) is never below 100.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FILES_LEAST = 256
"""A process with a lower limit does not serve. This one allows 128 connections, and 28 open log files."""
FILES_FEW = 4096
"""Below this limit a warning is logged: each client holds a file, and so many are common."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_KEPT_BACK = 500
_REST = 100
_LOG_FILES_MAX = 8192
_LOG_FILES_LEAST = 400
_ENDLESS = 1 << 20
_STACKS_BYTES = 64 << 20
"""Address space of the threads that come later: eight, 8 MiB each."""


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # a hard limit above what the kernel allows is refused
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return file_limit()


def file_limit() -> int:
    """The limit on open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int) -> int:
    """How many connections the limit on files allows."""
    return max(limit - min(_KEPT_BACK, limit // 2), 1)


def log_files_beside(connections: int) -> int:
    """How many open log files the limit allows beside so many connections."""
    limit = file_limit()
    least = min(_LOG_FILES_LEAST, max(limit // 2 - _REST, 1))
    return min(max(least, limit - _KEPT_BACK - _REST - connections), limit // 2, _LOG_FILES_MAX)


def keep_freed_memory(kept_bytes: int, block_bytes_max: int) -> None:
    """Let malloc keep so many freed bytes, of blocks up to that size. Does nothing without glibc.

    By default glibc returns the memory of each read to the system, and the next read faults in every page
    again.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, block_bytes_max)
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)


def memory_limit_bytes() -> int:
    """The memory that this process may use: the machine's, or less in a control group or by `ulimit -v`."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_cgroup_limits(), *_address_limit()])


def _address_limit() -> Iterator[int]:
    """The limit on address space, without what is mapped and takes no memory: libraries, threads' stacks."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return
    mapped, resident = _mapped_and_resident()
    yield max(soft - (mapped - resident) - _STACKS_BYTES, 0)


def resident_bytes() -> int:
    """The memory that this process takes now; 0 where the system does not tell."""
    return _mapped_and_resident()[1]


def _mapped_and_resident() -> tuple[int, int]:
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        mapped, resident = Path("/proc/self/statm").read_text().split()[:2]
        return int(mapped) * page, int(resident) * page
    except (OSError, ValueError):
        return 0, 0


def _cgroup_limits() -> Iterator[int]:
    """The memory limits of our control group and of those above it (v2, then v1)."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = Path("/sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            root, name = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            try:
                yield int((place / name).read_text())
            except (OSError, ValueError):  # missing (hidden by a namespace), or "max"
                pass
            if place == root:
                break

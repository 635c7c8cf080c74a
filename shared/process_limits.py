"""What the system lets this process have: memory, and files, which are shared out.

A flood of connections may not take what the store and the administrator need. Of a usual limit 500 are kept
back from connections; of a small one half, so that it still serves half as many connections. The logs' files
have what connections leave. The rest (the journal, listeners, cold reads, syncs: 45 or so in a quiet hour)
is never below 100.
"""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

FILES_LEAST = 256
"""A process that may open fewer does not serve: 128 connections, and 28 logs' files kept open."""
FILES_FEW = 4096
"""Below it an operator is told: so many clients are soon there, and each holds one."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

_KEPT_BACK = 500
_REST = 100
_LOG_FILES_MAX = 8192
_LOG_FILES_LEAST = 400
_ENDLESS = 1 << 20


def raise_file_limit() -> int:
    """Raise the soft limit on open files to the hard one; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS: the hard limit may be "infinity", which it then refuses
            pass
    return file_limit()


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft


def connections_within(limit: int) -> int:
    """How many connections there may be."""
    return max(limit - min(_KEPT_BACK, limit // 2), 1)


def log_files_beside(connections: int) -> int:
    """How many handles of logs' files the limit leaves beside so many connections."""
    limit = file_limit()
    least = min(_LOG_FILES_LEAST, max(limit // 2 - _REST, 1))
    return min(max(least, limit - _KEPT_BACK - _REST - connections), limit // 2, _LOG_FILES_MAX)


def keep_freed_memory(kept_bytes: int, block_bytes_max: int) -> None:
    """Have malloc keep so much of what is freed, of blocks up to that size. Does nothing but with glibc.

    By default glibc gives the memory of each read back to the system, and every page of the next one is
    faulted in anew.
    """
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, block_bytes_max)
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)


def memory_limit_bytes() -> int:
    """What this process may use: the machine's memory, or less where a control group says so."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_cgroup_limits()])


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
            except (OSError, ValueError):  # not there (a namespace hides it), or "max"
                pass
            if place == root:
                break

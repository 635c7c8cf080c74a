"""How the process's limit on open files is shared out: connections, logs' files, and the rest.

A flood of connections may not take what the store and the administrator need. Of a usual limit 500 are kept
back from connections; of a small one half, so that it still serves half as many connections. The logs' files
have what connections leave. The rest (the journal, listeners, cold reads, syncs: 45 or so in a quiet hour)
is never below 100.
"""

import resource

FILES_LEAST = 256
"""A process that may open fewer does not serve: 128 connections, and 28 logs' files kept open."""
FILES_FEW = 4096
"""Below it an operator is told: so many clients are soon there, and each holds one."""

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

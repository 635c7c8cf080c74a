"""What one commit does to one log: state on the way through the disk, shown to the log when it is done."""

from collections.abc import Sequence

from shared.storage.files import OpenFiles
from shared.storage.format import IndexEntry
from shared.storage.index import ENTRY_COVERS_SECONDS
from shared.storage.log import UNKNOWN, Log


class Work:
    """What a commit does to one log, and what came of it."""

    __slots__ = (
        "closed",
        "direct",
        "direct_meant",
        "entries_start",
        "entries_written",
        "fd",
        "index_fd",
        "index_pinned",
        "kept",
        "last_ms",
        "log",
        "made",
        "open_entry",
        "pinned_index_fd",
        "unapplied",
        "waiting_entries",
    )

    def __init__(self, log: Log, fd: int) -> None:
        self.log = log
        self.fd = fd
        self.kept = True  # what was opened stays open, for the next commit
        self.made = False  # the log's own file is there
        self.index_fd = self.pinned_index_fd = UNKNOWN
        self.index_pinned = False
        self.open_entry = log.open_entry
        self.last_ms = log.last_ms
        self.entries_written = log.entries_written
        self.entries_start = log.entries_start if log.entries_written == UNKNOWN else 0
        self.closed: Sequence[IndexEntry] = ()
        self.unapplied: list[tuple[int, bytes]] | None = None
        self.waiting_entries: Sequence[IndexEntry] = ()
        self.direct_meant = False
        self.direct = False  # some of it went around the journal

    def mean_direct(self, index_fd: int) -> None:
        """Some of it will go around the journal, and so needs its index too, which is pinned."""
        self.direct_meant = self.index_pinned = True
        self.index_fd = self.pinned_index_fd = index_fd
        self.waiting_entries = self.log.closed_entries[:]  # closed before; others may write them meanwhile

    def give_back(self, files: OpenFiles) -> None:
        """The log may be looked at again; files that the commit opened stay open, as far as there is room."""
        log = self.log
        log.busy = False
        if self.made:
            log.fresh = False
        if self.fd >= 0 and self.fd != log.file.fd:
            files.adopt(log.file, self.fd)
        files.unpin(log.file)
        if self.index_pinned:
            if self.index_fd >= 0 and self.index_fd != log.index_file.fd:
                files.adopt(log.index_file, self.index_fd)
            files.unpin(log.index_file)

    def show(self, now: float) -> None:
        """Let the log have what came of it. In the trio thread; `now`: monotonic seconds."""
        log = self.log
        if self.open_entry is not None and (
            log.open_entry is None or self.open_entry.offset != log.open_entry.offset
        ):
            log.open_since = now
        log.open_entry = self.open_entry
        if self.closed:
            log.closed_entries += self.closed
        if log.entries_written == UNKNOWN:
            log.entries_written = self.entries_written
        if self.direct:
            log.entries_reached(self.entries_written + len(self.waiting_entries) + len(self.closed))
        if log.open_entry is not None and now - log.open_since >= ENTRY_COVERS_SECONDS:
            log.closed_entries.append(log.open_entry)
            log.open_entry = None
        log.last_ms = self.last_ms
        if self.unapplied is not None:
            log.unapplied += self.unapplied
        if self.direct:
            log.direct_dirty = True

"""A data folder put together from what a bucket has: logs' files up to a snapshot, and the journal behind it.

Nothing is replayed here. The folder that comes out is one that a server left without closing it, and the
store's own recovery brings it to the journal's end (STORAGE.md, Replay). While it is put together it has no
CATALOG and no FORMAT but a segment of the journal, so no server takes it for a whole or a new one.

All of this blocks. `place` may be called by several threads at once, `take` by one, after `begin`.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path

import attrs
from crc32c import crc32c

from brokers.ship.formats import Piece, Wal
from brokers.ship.names import UNFINISHED
from shared.errors import StoreFormat
from shared.storage import catalog as catalog_file
from shared.storage import format, index
from shared.storage.catalog import Catalog, LogLine, unpack_create
from shared.storage.disk import Disk, opened, replace_file, write_all, write_file
from shared.storage.format import Batch, EntryFlag, EntryKind, IndexEntry
from shared.storage.journal import FOLDER as JOURNAL_FOLDER
from shared.storage.journal import segment_path
from shared.storage.rebuild import LOST_AND_FOUND

_DAMAGED_BYTES_MAX = 1 << 30
"""A longer range gets several entries: an entry's length has 4 bytes."""
_WRITTEN_ENTRIES = 4096
"""Index entries that are written at once."""


class Broken(Exception):
    """The journal does not go on as it must: what follows cannot be used."""


@attrs.frozen
class Cut:
    """The instant to which a folder is brought: all batches before the first one that is too late. None: all
    that there are."""

    lsn: int | None = None
    time_ms: int | None = None

    def ends_before(self, batch: Batch) -> bool:
        late = self.time_ms is not None and batch.time_ms > self.time_ms
        return late or (self.lsn is not None and batch.lsn >= self.lsn)


ALL = Cut()


def is_empty(folder: Path) -> bool:
    """Whether a data folder may be made there: nothing is there but what a restore has left."""
    if not folder.exists():
        return True
    names = {path.name for path in folder.iterdir()} - {LOST_AND_FOUND}
    return not names or UNFINISHED in names


def say_finished(disk: Disk) -> None:
    """The folder may be served. Raises OSError."""
    disk.unlink(UNFINISHED)
    disk.sync_folder("")


def clear(folder: Path) -> None:
    """Remove what a restore that was cut short has left. Raises StoreFormat if there is something else."""
    if not is_empty(folder):
        raise StoreFormat(f"{folder} is not empty")
    if not (folder / UNFINISHED).exists():
        return
    below = [path for path in folder.iterdir() if path.name not in (LOST_AND_FOUND, UNFINISHED)]
    for path in below:
        if path.is_dir() and not path.is_symlink():
            for inner in path.iterdir():
                inner.unlink()
            path.rmdir()
        else:
            path.unlink()
    (folder / UNFINISHED).unlink()


class Assembler:
    """Puts a folder together. `position`: behind the newest batch that was taken; `time_ms`: its time.

    `whole`: logs have all of their bytes here; else what the server had in the bucket only stays there.
    """

    def __init__(
        self,
        disk: Disk,
        snapshot: Catalog,
        cut: Cut,
        wanted: Callable[[LogLine], bool] = lambda _: True,
        *,
        whole: bool = True,
    ) -> None:
        lines = (line._replace(local=0) if whole else line for line in snapshot.logs)
        self.lines = {line.id: line for line in lines if wanted(line)}
        self.position = snapshot.replay_lsn
        self.time_ms = 0
        self.batches = 0
        self.reached = False
        """A batch behind the cut was seen: nothing more is needed."""
        self._disk = disk
        self._snapshot = snapshot
        self._cut = cut
        self._wanted = wanted
        self._paths = {log_id: line.log_path for log_id, line in self.lines.items()}
        self._unwanted: set[int] = set()
        self._previous: int | None = None
        self._segment = snapshot.replay_lsn
        self._fd = -1

    def begin(self) -> None:
        """Make the folders, and an empty file for each log. Raises OSError."""
        disk = self._disk
        write_file(disk, UNFINISHED, b"")
        disk.make_folder(JOURNAL_FOLDER)
        self._fd = disk.open(segment_path(self._segment), create=True, exclusive=True)
        disk.sync_folder(JOURNAL_FOLDER)
        disk.sync_folder("")
        for line in self.lines.values():
            disk.make_folder(line.namespace)

    def place(self, log_id: int, offset: int, data: bytes | memoryview) -> None:
        """Write bytes of a log to its file. Raises OSError."""
        with opened(self._disk, self._paths[log_id], create=True) as fd:
            write_all(self._disk, fd, data, offset)

    def complete(self, log_id: int, entries: Iterable[IndexEntry]) -> list[tuple[int, int]]:
        """Write a log's index, all of its bytes being placed; `entries` in their order. Returns the ranges
        that no entry covers, as (start, end); reading them is an error from now on. Raises OSError."""
        line = self.lines[log_id]
        missing: list[tuple[int, int]] = []
        with opened(self._disk, line.log_path, create=True) as fd:
            self._disk.truncate(fd, line.end)
        with opened(self._disk, line.index_path, create=True) as fd:
            index.write_header(self._disk, fd, log_id, line.created_ms)
            number = 0
            for group in _groups(_gapless(line, entries, missing)):
                index.write_entries(self._disk, fd, log_id, number, group)
                number += len(group)
        return missing

    def take(self, wal: Wal) -> None:
        """Take the batches of an object that follows the newest one, and what they refer to. Those from
        before the snapshot are passed over. Raises Broken, with all before the bad place taken, and OSError.
        """
        pieces = {(piece.log_id, piece.offset): piece for piece in wal.pieces()}
        for batch, data in wal.batches():
            if batch.lsn < self._snapshot.replay_lsn:
                continue
            if batch.journal_id != self._snapshot.journal_id or batch.lsn < self.position:
                raise Broken(f"the batch at LSN {batch.lsn} does not follow LSN {self.position}")
            if self._cut.ends_before(batch):
                self.reached = True
                return
            self._add(batch, data, pieces)

    def _add(self, batch: Batch, data: memoryview, pieces: dict[tuple[int, int], Piece]) -> None:
        starts = batch.previous_lsn == batch.lsn  # a server was started here
        if self._previous is not None and not starts and batch.previous_lsn != self._previous:
            raise Broken(f"batches between LSN {self._previous} and {batch.lsn} are missing")
        payload = data[format.BATCH_HEADER_BYTES :][: batch.payload_bytes]
        entries = format.unpack_entries(payload, batch.entries)
        if entries is None:
            raise Broken(f"the batch at LSN {batch.lsn} is damaged")
        for entry in entries:
            if entry.kind == EntryKind.CREATE:
                self._create(unpack_create(entry.log_id, bytes(payload[entry.body_start : entry.body_end])))
            elif entry.kind == EntryKind.DELETE:
                self._delete(entry.log_id)
            elif entry.kind == EntryKind.REFERENCE and entry.log_id in self._paths:
                piece = pieces.get((entry.log_id, entry.offset))
                if piece is not None and piece.data is not None:
                    self.place(piece.log_id, piece.offset, piece.data)
        if starts and self._previous is not None:
            # Recovery follows batches by the one before, which a start cannot name.
            data = memoryview(format.with_previous(batch, data, self._previous))
        self._write(batch.lsn, data)
        self._previous, self.time_ms = batch.lsn, batch.time_ms
        self.batches += 1

    def _create(self, line: LogLine) -> None:
        if self._wanted(line):
            self._paths[line.id] = line.log_path
            self._disk.make_folder(line.namespace)
        else:
            self._unwanted.add(line.id)

    def _delete(self, log_id: int) -> None:
        """Remove a log's files: those of one made again by its name come in their place."""
        path = self._paths.pop(log_id, "")
        if path and path not in self._paths.values():
            for name in (path, path.removesuffix(".log") + ".idx"):
                with suppress(FileNotFoundError):
                    self._disk.unlink(name)

    def _write(self, lsn: int, data: bytes | bytearray | memoryview) -> None:
        """Write a batch to the journal; where LSNs jump a new segment begins."""
        if lsn != self.position:
            self._end_segment(lsn)
            self._segment = lsn
            self._fd = self._disk.open(segment_path(lsn), create=True, exclusive=True)
        write_all(self._disk, self._fd, data, lsn - self._segment)
        self.position = lsn + len(data)

    def _end_segment(self, lsn: int) -> None:
        """Make the newest segment reach to `lsn`, where the next one begins."""
        self._disk.truncate(self._fd, lsn - self._segment)
        self._disk.close(self._fd)
        self._fd = -1

    def finish(self, now_ms: int) -> int:
        """Make the folder whole: recovery can take it. Returns where it ends. Raises OSError."""
        end = self.position
        self._seal(now_ms)
        self._end_segment(self.position)
        disk, snapshot = self._disk, self._snapshot
        if not disk.sync_all():
            _sync_files(disk)
        write_file(disk, format.FORMAT_PATH, format.FORMAT_TEXT % format.FORMAT_NUMBER)
        whole = attrs.evolve(snapshot, clean=False, logs=sorted(self.lines.values()))
        replace_file(disk, catalog_file.PATH, whole.pack())
        return end

    def abandon(self) -> None:
        """Leave it as it is, not finished."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _seal(self, now_ms: int) -> None:
        """End the journal with a batch which says that all before it was synced: what is missing of it is
        damage and no torn tail. It deletes the logs that are not wanted and were made in the journal."""
        deletes = [format.pack_entry(EntryKind.DELETE, log_id) for log_id in sorted(self._unwanted)]
        lsn, size = self.position, sum(map(len, deletes))
        previous = lsn if self._previous is None else self._previous
        journal_id = self._snapshot.journal_id
        time_ms = self.time_ms or now_ms
        self._write(
            lsn, format.pack_batch(lsn, lsn, time_ms, journal_id, size, len(deletes), previous, deletes)
        )


def _gapless(
    line: LogLine, entries: Iterable[IndexEntry], missing: list[tuple[int, int]]
) -> Iterator[IndexEntry]:
    """The entries, and between them ones that say of what is missing that it is damaged."""
    position, time_ms = min(line.first, line.end), line.created_ms
    begun = False
    for entry in chain(entries, [IndexEntry(line.end, 0, 0, 0, 0, 0)]):
        if entry.offset < position and begun:
            continue
        if entry.offset > position:
            missing.append((position, entry.offset))
            for start in range(position, entry.offset, _DAMAGED_BYTES_MAX):
                length = min(entry.offset - start, _DAMAGED_BYTES_MAX)
                flags = EntryFlag.UNVERIFIED | EntryFlag.DAMAGED
                yield IndexEntry(start, time_ms, time_ms, length, 0, crc32c(b""), flags)
        if entry.length:
            yield entry
            position, time_ms, begun = entry.end, entry.last_ms, True


def _groups(entries: Iterable[IndexEntry]) -> Iterator[list[IndexEntry]]:
    found = iter(entries)
    while group := list(islice(found, _WRITTEN_ENTRIES)):
        yield group


def _sync_files(disk: Disk) -> None:
    """Sync each file, where the system cannot sync all at once."""
    for folder in disk.names(""):
        with suppress(NotADirectoryError):
            for name in disk.names(folder):
                with opened(disk, f"{folder}/{name}") as fd:
                    disk.sync_data(fd)
            disk.sync_folder(folder)

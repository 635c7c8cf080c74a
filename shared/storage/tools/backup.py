"""`brokers backup` and `brokers restore`: a data folder copied whole, checked, and put back (STORAGE.md,
"Backups").

`backup` copies a folder that no broker uses, as it stands. `backup_files` copies one that a running broker
serves. All logs are taken at one moment, between two commits, and copied while they grow. What happens to a
log meanwhile is left out, but for what takes bytes away: records that retention drops, and deleted logs.
"""

import errno
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import attrs
from crc32c import crc32c

from shared.errors import StoreError, StoreFormat
from shared.local_path import sync_folder
from shared.storage import catalog as catalog_file
from shared.storage import format, index
from shared.storage.catalog import Catalog, LogLine
from shared.storage.disk import Disk, opened, size_of, write_all, write_file
from shared.storage.format import FORMAT_PATH, MANIFEST_PATH, IndexEntry
from shared.storage.index import checked_from
from shared.storage.inventory import LogSnapshot
from shared.storage.journal import FOLDER as JOURNAL_FOLDER
from shared.storage.journal import segment_path
from shared.storage.os_disk import OsDisk
from shared.storage.rebuild import BACKUPS, LOST_AND_FOUND, QUARANTINE
from shared.storage.store import Store
from shared.storage.tools.fsck import FsckReport, check
from shared.storage.tools.view import FolderView, LogView, viewing

_NUMBER = 1
_PIECE_BYTES = 1 << 20
_FORMAT = format.FORMAT_TEXT % format.FORMAT_NUMBER


class FileLine(NamedTuple):
    """A file. `crc32c`: of the bytes from `start` to `end`, which is its length; below `start` is a hole."""

    path: str
    start: int
    end: int
    crc32c: int


@attrs.frozen
class Manifest:
    """`live`: taken from a running broker."""

    made_ms: int
    live: bool
    files: Sequence[FileLine]

    def pack(self) -> bytes:
        head = {"backup": _NUMBER, "made_ms": self.made_ms, "live": self.live}
        return format.pack_lines([head, *(line._asdict() for line in self.files)])


def read_manifest(backup: Path) -> Manifest:
    """Read a backup's manifest. Raises StoreFormat if it is missing, newer or damaged."""
    try:
        data = (backup / MANIFEST_PATH).read_bytes()
    except FileNotFoundError:
        raise StoreFormat(
            f"{backup} is not a backup, or one that was not finished: it has no file {MANIFEST_PATH}"
        ) from None
    lines = format.unpack_lines(data)
    if not lines:
        raise StoreFormat(f"{backup / MANIFEST_PATH} is damaged")
    try:
        head = lines[0]
        if head["backup"] > _NUMBER:
            raise StoreFormat(f"{backup} was made by a newer version")
        files = [FileLine(**line) for line in lines[1:]]
        made_ms = head["made_ms"]
        numbers = [made_ms, *(number for line in files for number in line[1:])]
        if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError
        if any(line.start > line.end for line in files) or len({line.path for line in files}) < len(files):
            raise ValueError
        if any(not _plain(line.path) for line in files):
            raise StoreFormat(f"{backup / MANIFEST_PATH} names a file outside of the backup")
        return Manifest(made_ms, bool(head["live"]), files)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise StoreFormat(f"{backup / MANIFEST_PATH} is damaged") from None


def _plain(path: str) -> bool:
    if not path.isprintable():
        raise ValueError
    return not os.path.isabs(path) and all(part not in ("", ".", "..") for part in path.split("/"))


HOST_FILES = frozenset({"bridges.json"})
"""What the host keeps beside its folders. Each is replaced as a whole, never written in place."""
_OWN = frozenset({catalog_file.PATH, FORMAT_PATH}) | HOST_FILES
"""The files beside the folders that are data. Any other belongs to a process, or says who may use it: users,
the admin port's token. A backup has none of these, and of one that has them they are left out."""
_NOT_COPIED = frozenset({BACKUPS, QUARANTINE, LOST_AND_FOUND})
"""Folders that are not of the data."""


def _is_data(path: str) -> bool:
    folder, slash, _ = path.partition("/")
    return folder not in _NOT_COPIED if slash else path in _OWN


@attrs.frozen
class BackupReport:
    """The content of a backup or a restored folder; `check`: what reading all of it found. `changed`: a line
    for each file that is not as it was when the backup was made.
    """

    folder: str
    files: int
    bytes: int
    check: FsckReport
    changed: tuple[str, ...] = ()


def backup(source: Path, target: Path, *, now_ms: int) -> BackupReport:
    """Copy the data folder `source` to `target`, which must be empty or not there.

    Damage does not stop it: what is damaged is copied as it is and named in the report. Raises StoreInUse
    while a broker runs, StoreFormat, also where `target` is not empty, and OSError.
    """
    check_target(source, target)
    with viewing(source, live_allowed=False) as view, _made(source, target) as copy:
        files = [_copy_file(view.disk, copy, *item) for item in _files(view)]
        return _finish(target, copy, Manifest(now_ms, False, files))


def _files(view: FolderView) -> Iterator[tuple[str, int, int]]:
    """What to copy, as (path, start, end); FORMAT comes last."""
    starts = {log.log_path: _start(view, log) for log in view.logs.values()}
    journal = view.journal
    assert journal is not None
    for name in view.disk.names(""):
        if name == FORMAT_PATH:
            continue
        try:
            inside = [f"{name}/{below}" for below in view.disk.names(name)]
        except NotADirectoryError:
            inside = [name]
        if name == JOURNAL_FOLDER:
            # Replay does not need segments before this.
            spent = {segment_path(s.lsn) for s in journal.segments if s.end <= view.catalog.replay_lsn}
            quiet = view.catalog.clean and not journal.batches and not journal.damage
            inside = [] if quiet else [path for path in inside if path not in spent]
        for path in filter(_is_data, inside):
            with opened(view.disk, path) as fd:
                size = view.disk.size(fd)
            yield path, min(starts.get(path, 0), size), size
    with opened(view.disk, FORMAT_PATH) as fd:
        yield FORMAT_PATH, 0, view.disk.size(fd)


def _start(view: FolderView, log: LogView) -> int:
    """What is checked must be complete, including what the journal refers to."""
    found = view.read_index(log)
    start = log.first if found is None else checked_from(found.entries, log.first)
    return max(min([start, *(reference.offset for reference in log.references)]), log.local)


def restore(source: Path, target: Path, *, strict: bool = False) -> BackupReport:
    """Make the data folder `target` (empty or not there) from the backup `source`.

    Every file is compared with its CRC in the manifest. One that has changed since is brought as it is, and
    one that is gone is left out. The report names them; what only they had is lost. With `strict` they are a
    StoreError. Raises StoreFormat where `source` is not a backup, or `target` is not empty; and
    OSError. A target that was left half-made has no FORMAT, and no broker takes it.
    """
    found = read_manifest(source)
    changed: list[str] = []
    found = attrs.evolve(found, files=[line for line in found.files if _is_data(line.path)])
    last = [line for line in found.files if line.path == FORMAT_PATH]
    with OsDisk(source, create=False, read_only=True) as disk, _made(source, target) as copy:
        for lines in [line for line in found.files if line.path != FORMAT_PATH], last:
            for line in lines:
                why = _restore_file(disk, copy, line)
                if why:
                    changed.append(f"{source / line.path} {why}")
                    if strict:
                        raise StoreError(changed[0])
            _sync_folders(copy, lines)
    return BackupReport(str(target), len(found.files), _bytes(found.files), check(target), tuple(changed))


def _restore_file(source: Disk, target: Disk, line: FileLine) -> str:
    """Bring a file, and return how it differs from the backup that was made; empty if it does not."""
    try:
        size = size_of(source, line.path)
        if line.path == FORMAT_PATH and crc32c(_FORMAT) == line.crc32c:
            write_file(target, FORMAT_PATH, _FORMAT)  # known without its file
            return ""
        copied = _copy_file(source, target, line.path, min(line.start, size), min(line.end, size))
    except FileNotFoundError:
        return "is gone since the backup was made"
    if size < line.end:
        return f"has {size} of the {line.end} bytes that it had when the backup was made"
    return "" if copied.crc32c == line.crc32c else "is not as it was when the backup was made"


def check_target(source: Path, target: Path) -> None:
    """Raise StoreFormat if the target is not empty, or is inside `source` and not among the backups there."""
    inside, folder = target.resolve(), source.resolve()  # a link may lead there, too
    if inside.is_relative_to(folder) and folder / BACKUPS not in inside.parents:
        raise StoreFormat(f"{target} is inside of {source}")
    if target.exists() and set(os.listdir(target)) - {LOST_AND_FOUND}:
        raise StoreFormat(f"{target} is not empty")


def _made(source: Path, target: Path) -> OsDisk:
    """A new folder with an empty journal. Raises StoreFormat as `check_target`."""
    check_target(source, target)
    with suppress(FileExistsError):
        os.mkdir(target, 0o700)
    (target / JOURNAL_FOLDER).mkdir(mode=0o700)
    sync_folder(target.absolute().parent)
    return OsDisk(target, create=False)


def _copy_file(source: Disk, target: Disk, path: str, start: int, end: int) -> FileLine:
    """Copy a file from `start` to `end` and sync it; below `start` the copy has a hole."""
    target.make_folder(path.rpartition("/")[0])
    with opened(source, path) as fd, opened(target, path, create=True, exclusive=True) as out:
        _copy_range(source, fd, target, out, start, end)
        target.sync_data(out)
        return FileLine(path, start, end, _crc_of_range(target, out, start, end))


def _copy_range(source: Disk, fd: int, target: Disk, out: int, start: int, end: int) -> None:
    """Copy [start, end) to the same place in an empty file, which is then `end` long; zeros become holes."""
    for position, piece in _pieces(source, fd, start, end):
        if any(piece):
            write_all(target, out, piece, position)
    target.truncate(out, end)


def _crc_of_range(disk: Disk, fd: int, start: int, end: int) -> int:
    crc = 0
    for _, piece in _pieces(disk, fd, start, end):
        crc = crc32c(piece, crc)
    return crc


def _pieces(disk: Disk, fd: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of [start, end). Raises OSError; EIO if the file is shorter."""
    for position in range(start, end, _PIECE_BYTES):
        length = min(end - position, _PIECE_BYTES)
        piece = disk.read(fd, length, position)
        if len(piece) < length:
            raise OSError(errno.EIO, "the file ended before its time")
        yield position, piece


def _finish(folder: Path, target: OsDisk, made: Manifest) -> BackupReport:
    """After copying: sync names, check the copy, write the manifest."""
    _sync_folders(target, made.files)
    report = check(folder)
    write_file(target, MANIFEST_PATH, made.pack())
    target.sync_folder("")
    return BackupReport(str(folder), len(made.files), _bytes(made.files), report)


def _sync_folders(target: OsDisk, files: Iterable[FileLine]) -> None:
    for folder in (*sorted({line.path.rpartition("/")[0] for line in files} - {""}), ""):
        target.sync_folder(folder)


def _bytes(files: Iterable[FileLine]) -> int:
    return sum(line.end - line.start for line in files)


async def backup_files(store: Store, source: Path, target: Path, *, now_ms: int) -> BackupReport:
    """Copy the folder `source`, which `store` has open, to `target`, which must be empty or not there.

    Raises StoreError and OSError; then what was copied so far stays, without a manifest. Damage does not stop
    it: what is damaged is copied as it is, and named in the report.
    """
    snapshots = await store.snapshot()
    report: BackupReport = await store.in_thread(_copy_all, snapshots, source, target, now_ms)
    return report


def _copy_all(snapshots: list[LogSnapshot], source: Path, target: Path, now_ms: int) -> BackupReport:
    files: list[FileLine] = []
    lines: list[LogLine] = []
    with _made(source, target) as copy, OsDisk(source, create=False, read_only=True) as disk:
        for snapshot in snapshots:
            copied = _copy_log(disk, snapshot, copy)
            if copied is not None:
                lines.append(copied[0])
                files.extend(copied[1])
        next_id = max((line.id for line in lines), default=0) + 1
        for name in sorted(HOST_FILES):
            with suppress(FileNotFoundError):
                files.append(_write(copy, name, (source / name).read_bytes()))
        whole = Catalog(secrets.randbits(64), 0, next_id, now_ms, True, lines)
        files.append(_write(copy, catalog_file.PATH, whole.pack()))
        files.append(_write(copy, FORMAT_PATH, _FORMAT))
        return _finish(target, copy, Manifest(now_ms, True, files))


def _copy_log(disk: OsDisk, snapshot: LogSnapshot, target: OsDisk) -> tuple[LogLine, list[FileLine]] | None:
    """Copy one log; None if it was deleted meanwhile."""
    line = snapshot.line
    if line.end == 0:
        return line, []  # nothing was ever written to it
    if len(snapshot.tail) == line.end and not snapshot.log.gone:  # it may have no file yet
        return _copy_opened(disk, snapshot, None, [], target)
    try:
        with opened(disk, line.log_path) as fd:
            # In this order: if the index is still this log's, so is the file that was opened before it.
            stored = _stored_entries(disk, line)
            if stored is None or snapshot.log.gone:
                return None
            return _copy_opened(disk, snapshot, fd, stored, target)
    except FileNotFoundError:
        if snapshot.log.gone:
            return None
        raise


def _stored_entries(disk: OsDisk, line: LogLine) -> list[IndexEntry] | None:
    """The good entries of a log's index file; None where it is another log's."""
    if index.owner(disk, line.index_path) not in (None, line.id):
        return None
    found = index.read_index_of(disk, line.index_path, line.id, line.created_ms)
    return [entry for entry in found.entries if entry is not None] if found is not None else []


def _copy_opened(
    disk: OsDisk, snapshot: LogSnapshot, fd: int | None, stored: list[IndexEntry], target: OsDisk
) -> tuple[LogLine, list[FileLine]]:
    """Returns the copy's line, and its files. Bad entries are made anew there."""
    line = snapshot.line
    behind = snapshot.entries[0].offset if snapshot.entries else line.end
    good = [entry for entry in stored if entry.offset < behind and entry.end <= line.end]
    good += snapshot.entries
    target.make_folder(line.namespace)
    with opened(target, line.log_path, create=True, exclusive=True) as out:
        start = max(index.checked_from(good, line.first), line.local)
        if fd is not None and (end := min(line.end, disk.size(fd))) > start:
            _copy_range(disk, fd, target, out, start, end)
        if snapshot.tail:
            write_all(target, out, snapshot.tail, line.end - len(snapshot.tail))
        target.truncate(out, line.end)
        target.sync_data(out)
        # Ask after the copy: holes are only below these.
        first = min(max(line.first, snapshot.log.first_kept), line.end)
        local = min(snapshot.log.local, line.end)
        start = max(index.checked_from(good, first), local)
        copied = FileLine(line.log_path, start, line.end, _crc_of_range(target, out, start, line.end))
        wanted, _ = index.whole(target, out, good, first, line.end, line.created_ms, local)
    packed = index.pack_index(line.id, line.created_ms, wanted)
    local = local if local > first else 0
    return line._replace(first=first, local=local), [copied, _write(target, line.index_path, packed)]


def _write(target: OsDisk, path: str, data: bytes) -> FileLine:
    write_file(target, path, data)
    return FileLine(path, 0, len(data), crc32c(data))

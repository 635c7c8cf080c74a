"""`brokers backup` and `brokers restore`: a data folder copied whole, checked, and put back.

A backup is itself a data folder, with one more file: BACKUP, the manifest, written last. So a backup that was
cut short is none, and `fsck`, `log dump` and the rest work on it as they do on any folder.

`backup` copies a folder that no broker uses, as it stands, journal included; `live_backup.py` is how a
running broker makes one. All calls block.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from shared.errors import StoreError, StoreFormat
from shared.storage import catalog as catalog_file
from shared.storage import syscalls
from shared.storage.format import FORMAT_PATH
from shared.storage.index import checked_from
from shared.storage.journal import FOLDER as JOURNAL_FOLDER
from shared.storage.journal import segment_path
from shared.storage.lock import LOCK_NAME
from shared.storage.rebuild import QUARANTINE
from shared.storage.tools import copying, manifest
from shared.storage.tools.fsck import FsckReport, check
from shared.storage.tools.manifest import FileLine, Manifest
from shared.storage.tools.view import FolderView, LogView, viewing

# Of the process that runs, not of the data.
_NOT_COPIED = frozenset({LOCK_NAME, "control.sock", manifest.PATH, catalog_file.NEW_PATH, QUARANTINE})


@attrs.frozen
class BackupReport:
    """What a backup or a restored folder holds; `check` is what reading all of it found."""

    folder: str
    files: int
    bytes: int
    check: FsckReport


def backup(source: Path, target: Path, *, now_ms: int) -> BackupReport:
    """Copy the data folder `source` to `target`, which must be empty or not there.

    Damage does not stop it: what is damaged is copied as it is and named in the report. Raises StoreInUse
    while a broker runs, StoreFormat, also where `target` is not empty, and OSError.
    """
    make_target(source, target)
    with viewing(source, live_allowed=False) as view:
        files = [copy_file(source, target, *item) for item in _files(view)]
    return finish(target, Manifest(now_ms, False, files))


def _files(view: FolderView) -> Iterator[tuple[str, int, int]]:
    """What to copy, as (path, start, end); FORMAT comes last."""
    starts = {log.log_path: _start(view, log) for log in view.logs.values()}
    journal = view.journal
    assert journal is not None
    for name in view.disk.names(""):
        if name in _NOT_COPIED or name == FORMAT_PATH:
            continue
        try:
            inside = [f"{name}/{below}" for below in view.disk.names(name)]
        except NotADirectoryError:
            inside = [name]
        if name == JOURNAL_FOLDER:
            # Segments that replay would not look at stay behind.
            spent = {segment_path(s.lsn) for s in journal.segments if s.end <= view.catalog.replay_lsn}
            quiet = view.catalog.clean and not journal.batches and not journal.damage
            inside = [] if quiet else [path for path in inside if path not in spent]
        for path in inside:
            fd = view.disk.open(path)
            try:
                size = view.disk.size(fd)
            finally:
                view.disk.close(fd)
            yield path, min(starts.get(path, 0), size), size
    fd = view.disk.open(FORMAT_PATH)
    try:
        yield FORMAT_PATH, 0, view.disk.size(fd)
    finally:
        view.disk.close(fd)


def _start(view: FolderView, log: LogView) -> int:
    found = view.read_index(log)
    return log.first if found is None else checked_from(found.entries, log.first)


def restore(source: Path, target: Path) -> BackupReport:
    """Make the data folder `target` (empty or not there) from the backup `source`.

    Every file is compared with its CRC in the manifest. Raises StoreFormat where `source` is not a backup or
    is not as it was made, or `target` is not empty; and OSError. A target that was left half-made has no
    FORMAT, and no broker takes it.
    """
    found = manifest.read(source)
    make_target(source, target)
    last = [line for line in found.files if line.path == FORMAT_PATH]
    for lines in [line for line in found.files if line.path != FORMAT_PATH], last:
        for line in lines:
            copied = copy_file(source, target, line.path, line.start, line.end)
            if copied.crc32c != line.crc32c:
                raise StoreError(f"{source / line.path} is not as it was when the backup was made")
        _sync_folders(target, lines)
    return BackupReport(str(target), len(found.files), _bytes(found.files), check(target))


def make_target(source: Path, target: Path) -> None:
    """A folder with an empty journal. Raises StoreFormat where it is not empty, or inside `source`."""
    if target.absolute().is_relative_to(source.absolute()):
        raise StoreFormat(f"{target} is inside of {source}")
    try:
        os.mkdir(target, 0o700)
    except FileExistsError:
        if os.listdir(target):
            raise StoreFormat(f"{target} is not empty") from None
    (target / JOURNAL_FOLDER).mkdir(mode=0o700)
    copying.sync_folder(target.absolute().parent)


def copy_file(source: Path, target: Path, path: str, start: int, end: int) -> FileLine:
    """Copy a file from `start` to `end` and sync it; below `start` the copy has a hole."""
    out_path = target / path
    out_path.parent.mkdir(mode=0o700, exist_ok=True)
    fd = copying.open_source(source, path)
    try:
        out = copying.create_target(out_path)
        try:
            copying.copy_range(fd, out, start, end)
            syscalls.sync_data(out)
            return FileLine(path, start, end, copying.crc_of_range(out, start, end))
        finally:
            os.close(out)
    finally:
        os.close(fd)


def finish(target: Path, made: Manifest) -> BackupReport:
    """Everything is copied: sync names, check the copy, write the manifest."""
    _sync_folders(target, made.files)
    report = check(target)
    copying.write_file(target / manifest.PATH, made.pack())
    copying.sync_folder(target)
    return BackupReport(str(target), len(made.files), _bytes(made.files), report)


def _sync_folders(target: Path, files: Iterable[FileLine]) -> None:
    for folder in sorted({line.path.rpartition("/")[0] for line in files} - {""}):
        copying.sync_folder(target / folder)
    copying.sync_folder(target)


def _bytes(files: Iterable[FileLine]) -> int:
    return sum(line.end - line.start for line in files)

"""A backup of a data folder while a broker serves it.

All logs are taken at one moment, between two commits; what is visible then never changes any more, so it can
be copied at leisure while the logs grow. The copy needs no journal: its catalog says how far each log goes,
and its indexes are written to match. What happens to a log meanwhile is left out of the copy, but for two
things that take bytes away: records that retention drops are dropped there too, and a log that is deleted is
not in it.
"""

import os
import secrets
from pathlib import Path

from crc32c import crc32c

from shared.storage import catalog as catalog_file
from shared.storage import format, index, syscalls
from shared.storage.catalog import Catalog, LogLine
from shared.storage.format import IndexEntry
from shared.storage.os_disk import OsDisk
from shared.storage.snapshot import LogSnapshot
from shared.storage.store import Store
from shared.storage.tools import copying
from shared.storage.tools.backup import BackupReport, finish, make_target
from shared.storage.tools.manifest import FileLine, Manifest


async def backup_files(store: Store, source: Path, target: Path, *, now_ms: int) -> BackupReport:
    """Copy the folder `source`, which `store` has open, to `target`, which must be empty or not there.

    Raises StoreError and OSError; then what was copied so far stays, without a manifest. Damage does not stop
    it: what is damaged is copied as it is, and named in the report.
    """
    snapshots = await store.snapshot()
    report: BackupReport = await store.in_thread(_copy_all, snapshots, source, target, now_ms)
    return report


def _copy_all(snapshots: list[LogSnapshot], source: Path, target: Path, now_ms: int) -> BackupReport:
    make_target(source, target)
    files: list[FileLine] = []
    lines: list[LogLine] = []
    with OsDisk(source, create=False, read_only=True) as disk:
        for snapshot in snapshots:
            copied = _copy_log(disk, snapshot, source, target)
            if copied is not None:
                lines.append(copied[0])
                files.extend(copied[1])
    next_id = max((line.id for line in lines), default=0) + 1
    whole = Catalog(secrets.randbits(64), 0, next_id, now_ms, True, lines)
    files.append(_write(target, catalog_file.PATH, whole.pack()))
    files.append(_write(target, format.FORMAT_PATH, format.FORMAT_TEXT % format.FORMAT_NUMBER))
    return finish(target, Manifest(now_ms, True, files))


def _copy_log(
    disk: OsDisk, snapshot: LogSnapshot, source: Path, target: Path
) -> tuple[LogLine, list[FileLine]] | None:
    """Copy one log; None where it was deleted meanwhile."""
    line = snapshot.line
    if line.end == 0:
        return line, []  # nothing was ever written to it
    paths = [f"{line.namespace}/{line.file}{ending}" for ending in (".log", ".idx")]
    try:
        fd = disk.open(paths[0])
    except FileNotFoundError:
        if snapshot.log.gone:
            return None
        raise
    try:
        # In this order: if the index is still this log's, so is the file that was opened before it.
        stored = _stored_entries(disk, paths[1], line.id)
        if stored is None or snapshot.log.gone:
            return None
        first, files = _copy_opened(disk, snapshot, fd, stored, target, paths)
    finally:
        disk.close(fd)
    return line._replace(first=first), files


def _stored_entries(disk: OsDisk, path: str, log_id: int) -> list[IndexEntry] | None:
    """The good entries of an index file; None where it is another log's."""
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return []  # all are in memory yet
    try:
        found = index.read_index(disk, fd)
        if found is not None and found.log_id != log_id:
            return None
        if found is not None:
            return [entry for entry in found.entries if entry is not None]
        data = disk.read(fd, disk.size(fd), format.INDEX_HEADER_BYTES)  # its header is damaged
    finally:
        disk.close(fd)
    found_entries = (
        format.unpack_index_entry(data, log_id, at) for at in range(0, len(data), format.INDEX_ENTRY_BYTES)
    )
    return [entry for entry in found_entries if entry is not None]


def _copy_opened(
    disk: OsDisk, snapshot: LogSnapshot, fd: int, stored: list[IndexEntry], target: Path, paths: list[str]
) -> tuple[int, list[FileLine]]:
    """Returns the first offset of the copy, and its files. Entries that are not good are made anew there."""
    line = snapshot.line
    behind = snapshot.entries[0].offset if snapshot.entries else line.end
    good = [entry for entry in stored if entry.offset < behind and entry.end <= line.end]
    good += snapshot.entries
    (target / paths[0]).parent.mkdir(mode=0o700, exist_ok=True)
    out = copying.create_target(target / paths[0])
    try:
        start = index.checked_from(good, line.first)
        copying.copy_range(fd, out, start, min(line.end, os.fstat(fd).st_size))
        for offset, data in snapshot.unapplied:
            copying.write_at(out, data[: max(line.end - offset, 0)], offset)
        os.ftruncate(out, line.end)
        syscalls.sync_data(out)
        # Asked after the copy: retention punches only below it.
        first = min(max(line.first, snapshot.log.first_kept), line.end)
        start = index.checked_from(good, first)
        copied = FileLine(paths[0], start, line.end, copying.crc_of_range(out, start, line.end))
        wanted, _ = index.whole(disk, out, good, first, line.end, line.created_ms)
    finally:
        os.close(out)
    header = format.pack_index_header(line.id, line.created_ms)
    packed = header + b"".join(format.pack_index_entry(entry, line.id) for entry in wanted)
    return first, [copied, _write(target, paths[1], packed)]


def _write(target: Path, path: str, data: bytes) -> FileLine:
    copying.write_file(target / path, data)
    return FileLine(path, 0, len(data), crc32c(data))

"""Opening a data folder: what the catalog says, and after an unclean end what the journal adds to it.

Everything here blocks, and runs before anything is served. It ends with a state that needs no journal: every
touched file and folder is synced, a new catalog says that replay starts in a segment that does not exist yet.
Until that catalog is in place nothing that a second attempt needs has been changed. Source: STORAGE.md.
"""

import secrets
from collections.abc import Iterable

import attrs
import structlog

from shared.errors import StoreFormat
from shared.storage import catalog, format, journal, replay
from shared.storage.catalog import Catalog, LogLine
from shared.storage.clock import Clock
from shared.storage.damage import Damage
from shared.storage.disk import Disk
from shared.storage.files import describe
from shared.storage.format import INDEX_HEADER_BYTES, Entry, Kind
from shared.storage.journal import segment_path, write_all
from shared.storage.log_recovery import Piece, Pieces, RecoveredLog, Segments, recover_log
from shared.storage.replay import Found, Replay, SegmentFile
from shared.storage.settings import Durability

logger = structlog.stdlib.get_logger("brokers.storage")

_SKIPPED_IDS = 1 << 20
"""After an unclean end so many log ids are skipped: a log whose CREATE was lost may have left files."""


@attrs.frozen
class Recovered:
    """A folder ready to be served. `next_lsn`: where the journal begins anew, in a segment to be made;
    `segments`: those that may be reused for it. The numbers say what recovery had to do; `in_files`: where it
    found logs or indexes damaged."""

    journal_id: int
    next_log_id: int
    next_lsn: int
    written_ms: int
    logs: list[LogLine]
    segments: list[SegmentFile]
    clean: bool
    batches: int
    torn_bytes: int
    damage: list[replay.Damage]
    in_files: Damage
    seconds: float = 0.0


def recover(disk: Disk, clock: Clock, sync_all_logs: int) -> Recovered:
    """Bring the folder into order. Raises StoreFormat, and OSError where the disk fails."""
    began = clock.monotonic()
    _check_format(disk)
    try:
        found = catalog.read(disk)
    except ValueError as error:
        raise StoreFormat(f"{error}: brokers fsck --repair can rebuild it from the logs") from None
    if found is None:
        found = _begin(disk, clock)
    segments = replay.segment_files(disk)
    kept: list[tuple[SegmentFile, str]] = []
    in_files = Damage()
    next_lsn = max([found.replay_lsn, *(segment.end for segment in segments)])
    if found.clean:
        scanned = Replay([], segments, [], found.replay_lsn, 0)
        logs: list[LogLine] = list(found.logs)
        next_log_id = found.next_log_id
    else:
        scanned = replay.scan(disk, found.journal_id, found.replay_lsn)
        _report(scanned)
        kept = _keep_damaged(disk, scanned)
        logs, seen_id = _replay(disk, found, scanned, sync_all_logs, in_files)
        next_log_id = max(found.next_log_id, seen_id + 1) + _SKIPPED_IDS
    after = Catalog(found.journal_id, next_lsn, next_log_id, clock.wall_ms(), False, logs)
    catalog.replace(disk, after.pack())
    segments = _move_damaged(disk, segments, kept)
    seconds = clock.monotonic() - began
    if not found.clean:
        logger.info(
            "the last run ended without a word: its journal was replayed",
            batches=len(scanned.batches),
            logs=len(logs),
            seconds=round(seconds, 3),
        )
    return Recovered(
        journal_id=found.journal_id,
        next_log_id=next_log_id,
        next_lsn=next_lsn,
        written_ms=found.written_ms,
        logs=logs,
        segments=segments,
        clean=found.clean,
        batches=len(scanned.batches),
        torn_bytes=scanned.torn_bytes,
        damage=scanned.damage,
        in_files=in_files,
        seconds=seconds,
    )


def _check_format(disk: Disk) -> None:
    try:
        fd = disk.open(format.FORMAT_PATH)
    except FileNotFoundError:
        if catalog.PATH in disk.names(""):
            raise StoreFormat("the data folder has a catalog and no FORMAT file") from None
        return
    try:
        data = disk.read(fd, 200, 0)
    finally:
        disk.close(fd)
    number = format.format_number(data)
    if number is None and catalog.PATH not in disk.names(""):
        return  # the first start was cut short
    if number is None:
        raise StoreFormat("not a data folder: its FORMAT file says something else")
    if number > format.FORMAT_NUMBER:
        raise StoreFormat(
            f"the data folder has format {number}, written by a newer version; this one knows "
            f"{format.FORMAT_NUMBER}"
        )


def _begin(disk: Disk, clock: Clock) -> Catalog:
    """A new folder, or one whose first start was cut short: nothing was ever acknowledged in it."""
    if journal.segment_lsns(disk):
        raise StoreFormat("the data folder has a journal and no CATALOG: brokers fsck can look into it")
    if _holds_logs(disk):
        raise StoreFormat(
            "the data folder has logs and no CATALOG: a copy that was cut short (make it anew), or something "
            "that brokers fsck --repair can rebuild"
        )
    disk.make_folder(journal.FOLDER)
    fd = disk.open(format.FORMAT_PATH, create=True)
    try:
        disk.truncate(fd, 0)
        write_all(disk, fd, format.FORMAT_TEXT % format.FORMAT_NUMBER, 0)
        disk.sync_data(fd)
    finally:
        disk.close(fd)
    disk.sync_folder("")
    return Catalog(secrets.randbits(64), 0, 1, clock.wall_ms(), True, [])


def _holds_logs(disk: Disk) -> bool:
    """Whether this was a data folder, or a copy of one: before the first log there is always a catalog."""
    names = disk.names("")
    if journal.FOLDER not in names:
        return False  # somebody else's: its files are none of our business
    for name in names:
        try:
            inside = disk.names(name)
        except NotADirectoryError:
            continue
        if any(file.endswith((".log", ".idx")) for file in inside):
            return True
    return False


def _report(scanned: Replay) -> None:
    if scanned.torn_bytes:
        logger.warning("a torn tail of the journal was cut", bytes=scanned.torn_bytes, lsn=scanned.end_lsn)
    for damage in scanned.damage:
        logger.error("the journal is damaged: what stood there is lost", lsn=damage.lsn, end=damage.end_lsn)


def _keep_damaged(disk: Disk, scanned: Replay) -> list[tuple[SegmentFile, str]]:
    """Copy damaged segments aside; returns those that there was no room for, and the names they get."""
    names = set(disk.names(journal.FOLDER))
    left = []
    for segment in scanned.damaged_segments():
        path = segment_path(segment.lsn)
        number = 1
        while f"{path}.damaged-{number}".rpartition("/")[2] in names:
            number += 1
        aside = f"{path}.damaged-{number}"
        try:
            _copy(disk, path, aside, segment.size)
        except OSError as error:
            logger.error("no copy of a damaged segment: it is renamed", path=path, reason=describe(error))
            left.append((segment, aside))
    return left


def _copy(disk: Disk, path: str, to: str, size: int) -> None:
    source = disk.open(path)
    try:
        target = disk.open(to, create=True)
        try:
            for position in range(0, size, 1 << 20):
                write_all(disk, target, disk.read(source, 1 << 20, position), position)
            disk.sync_data(target)
        finally:
            disk.close(target)
    finally:
        disk.close(source)


def _move_damaged(
    disk: Disk, segments: list[SegmentFile], left: list[tuple[SegmentFile, str]]
) -> list[SegmentFile]:
    for segment, aside in left:
        disk.rename(segment_path(segment.lsn), aside)
    gone = {segment for segment, _ in left}
    return [segment for segment in segments if segment not in gone]


@attrs.define
class _Changes:
    """What the replayed part of the journal says, by log id."""

    created: dict[int, LogLine] = attrs.Factory(dict)
    deleted: set[int] = attrs.Factory(set)
    first: dict[int, int] = attrs.Factory(dict)
    mode: dict[int, str] = attrs.Factory(dict)
    direct: set[int] = attrs.Factory(set)
    pieces: dict[int, Pieces] = attrs.Factory(dict)
    seen_id: int = 0

    def take(self, found: Found, entry: Entry, payload: bytes) -> None:
        """What an entry of the batch says, whose payload this is."""
        log_id = entry.log_id
        self.seen_id = max(self.seen_id, log_id)
        if entry.kind == Kind.APPEND:
            position = found.position + format.BATCH_HEADER_BYTES + entry.body_start
            length, time_ms = entry.body_end - entry.body_start, found.batch.time_ms
            piece = Piece(found.segment, position, length, entry.offset, entry.records, time_ms)
            self.pieces.setdefault(log_id, []).append(piece)
        elif entry.kind == Kind.CREATE:
            line = catalog.unpack_create(log_id, payload[entry.body_start : entry.body_end])
            self.created[log_id] = line
            self._change_mode(log_id, line.mode)
        elif entry.kind == Kind.DELETE:
            self.deleted.add(log_id)
        elif entry.kind == Kind.FIRST:
            self.first[log_id] = max(self.first.get(log_id, 0), entry.offset)
        elif entry.kind == Kind.MODE:
            self._change_mode(log_id, payload[entry.body_start : entry.body_end].decode())

    def _change_mode(self, log_id: int, mode: str) -> None:
        self.mode[log_id] = mode
        if Durability.parse(mode).direct:
            self.direct.add(log_id)


def _gather(disk: Disk, scanned: Replay) -> _Changes:
    changes = _Changes()
    for found, payload in replay.read_payloads(disk, scanned.batches):
        for entry in format.unpack_entries(payload, found.batch.entries) or []:
            changes.take(found, entry, payload)
    return changes


def _replay(
    disk: Disk, found: Catalog, scanned: Replay, sync_all_logs: int, in_files: Damage
) -> tuple[list[LogLine], int]:
    """Apply the journal to the logs' files; returns the logs there are, and the highest id seen."""
    changes = _gather(disk, scanned)
    lines = {line.id: line for line in found.logs} | changes.created
    gone = [lines.pop(log_id) for log_id in sorted(changes.deleted) if log_id in lines]
    folders = {line.namespace for line in lines.values()} | {line.namespace for line in gone}
    for folder in sorted(folders):
        disk.make_folder(folder)
    taken = {(line.namespace, line.file) for line in lines.values()}
    for line in gone:
        if (line.namespace, line.file) not in taken:
            _unlink(disk, line)
    touched: list[RecoveredLog] = []
    with Segments(disk) as segments:
        for line in sorted(lines.values()):
            log = _recover_log(disk, segments, line, changes, in_files, damaged=bool(scanned.damage))
            if log is None:
                continue
            lines[line.id] = log.line
            if log.changed or line.id in changes.created:
                touched.append(log)
    _set_strays_aside(disk, lines.values())
    _sync(disk, touched, folders, sync_all_logs)
    return sorted(lines.values()), changes.seen_id


def _recover_log(
    disk: Disk, segments: Segments, line: LogLine, changes: _Changes, in_files: Damage, *, damaged: bool
) -> RecoveredLog | None:
    """Apply to one log what the journal says of it; None where it can only be as the catalog has it."""
    direct = Durability.parse(line.mode).direct or line.id in changes.direct
    new = line.id in changes.created
    weak = direct or line.mode != "always"
    journaled = line.id in changes.pieces or line.id in changes.first
    if not (new or weak or damaged or journaled or _is_longer(disk, line)):
        return None
    first = max(line.first, changes.first.get(line.id, 0))
    line = line._replace(first=first, mode=changes.mode.get(line.id, line.mode))
    pieces = changes.pieces.get(line.id, [])
    log = recover_log(disk, segments, line, pieces, in_files, new=new, direct=direct, damaged=damaged)
    if log.kept_bytes:
        text = "the journal has lost what a log file still holds: kept"
        logger.error(text, path=log.paths[0], bytes=log.kept_bytes)
    return log


def _is_longer(disk: Disk, line: LogLine) -> bool:
    """Whether a log's file goes on behind what the catalog vouches for."""
    try:
        fd = disk.open(f"{line.namespace}/{line.file}.log")
    except FileNotFoundError:
        return False
    try:
        return disk.size(fd) > line.end
    finally:
        disk.close(fd)


def _unlink(disk: Disk, line: LogLine) -> None:
    for suffix in (".idx", ".log"):
        try:
            disk.unlink(f"{line.namespace}/{line.file}{suffix}")
        except FileNotFoundError:
            pass


def _set_strays_aside(disk: Disk, lines: Iterable[LogLine]) -> None:
    """Files of logs whose CREATE was lost with the tail. Files that say nothing of an id are left alone."""
    known = {(line.namespace, line.file) for line in lines}
    ids = {line.id for line in lines}
    for folder in disk.names(""):
        try:
            names = disk.names(folder)
        except OSError:
            continue  # a file
        for name in names:
            if not name.endswith(".idx") or (folder, name[:-4]) in known:
                continue
            fd = disk.open(f"{folder}/{name}")
            try:
                header = format.unpack_index_header(disk.read(fd, INDEX_HEADER_BYTES, 0))
            finally:
                disk.close(fd)
            if header is not None and header[0] not in ids:
                _set_aside(disk, f"{folder}/{name[:-4]}", header[0])


def _set_aside(disk: Disk, path: str, log_id: int) -> None:
    logger.warning("files of a log that nothing else tells of are set aside", path=path, id=log_id)
    for suffix in (".idx", ".log"):
        try:
            disk.rename(path + suffix, f"{path}{suffix}.stray-{log_id}")
        except FileNotFoundError:
            pass


def _sync(disk: Disk, touched: list[RecoveredLog], folders: set[str], sync_all_logs: int) -> None:
    """What was acknowledged must not depend on the journal, or on a page cache that a failed sync left."""
    if len(touched) > sync_all_logs and disk.sync_all():
        return
    for log in touched:
        for path in log.paths:
            fd = disk.open(path)
            try:
                disk.sync_data(fd)
            finally:
                disk.close(fd)
    for folder in sorted(folders):
        disk.sync_folder(folder)
    disk.sync_folder("")

"""Opening a data folder: read the catalog, and after an unclean end replay the journal.

Everything here blocks, and runs before anything is served. It ends in a state that needs no journal. Every
touched file and folder is synced, and a new catalog says that replay starts in a segment that does not exist
yet. Until that catalog is in place, nothing that a second attempt needs is changed. Source: STORAGE.md.
"""

import secrets
from collections.abc import Container, Iterable
from contextlib import suppress

import attrs
import structlog

from shared.errors import StoreFormat
from shared.storage import catalog, format, index, journal, rebuild, replay
from shared.storage.catalog import Catalog, LogLine
from shared.storage.disk import Clock, Disk, copy_file, opened, replace_file, size_of, write_file
from shared.storage.files import DamagedPlaces, describe
from shared.storage.journal import segment_path
from shared.storage.log_recovery import recover_log
from shared.storage.replay import JournalChanges, Replay, SegmentFile, Segments

logger = structlog.stdlib.get_logger("brokers.storage")

MISSING = (
    "the journal's segment where replay begins is not there, or empty: what only it had is lost, perhaps all "
    "of the last second before the server ended; nothing is lost if it ended while it started"
)


@attrs.frozen
class Recovered:
    """A folder ready to be served. `next_lsn`: where the journal begins anew, in a segment to be made;
    `end_lsn`: where its last batch ends.
    `segments`: those that may be reused. `in_files`: where logs or indexes were found damaged. `lost_of` and
    `torn_of`: the logs of which the journal's damage, and its torn tail, seem to have told.
    """

    journal_id: int
    next_log_id: int
    next_lsn: int
    end_lsn: int
    written_ms: int
    logs: list[LogLine]
    segments: list[SegmentFile]
    batches: int
    torn_bytes: int
    damage: list[replay.Damage]
    in_files: DamagedPlaces
    lost_of: str
    torn_of: str
    is_journal_missing: bool = False
    seconds: float = 0.0


def recover(disk: Disk, clock: Clock, sync_all_logs: int) -> Recovered:
    """Bring the folder into a consistent state. Raises StoreFormat, and OSError if the disk fails."""
    began = clock.monotonic()
    in_files = DamagedPlaces()
    try:
        found = catalog.read(disk)
        reason = "is missing"
    except ValueError:
        found = None
        reason = "is damaged"
    _check_format(disk, found, in_files)
    if found is None:
        found = _rebuild(disk, clock, reason, in_files) if _has_begun(disk) else _begin(disk, clock)
    if found.clean and has_gone_on(disk, found):
        found = attrs.evolve(found, clean=False)
        in_files.in_file(
            catalog.PATH,
            f"{catalog.PATH} is older than the files beside it (an earlier copy?): what journal and files "
            "have is served, what only the journal had may be lost, deletes too; "
            "if you restored it, restore all of the folder",
        )
    segments = replay.segment_files(disk)
    uncopied: dict[SegmentFile, str] = {}
    lost_of = torn_of = ""
    next_lsn = max([found.replay_lsn, *(segment.end for segment in segments)])
    if found.clean:
        scanned = Replay([], segments, [], found.replay_lsn, 0)
        changes = JournalChanges()
    else:
        scanned = replay.scan(disk, found.journal_id, found.replay_lsn, found.logs)
        changes = _gather(disk, scanned)
        lines = [*found.logs, *changes.created.values()]
        paths = {line.id: line.log_path for line in lines if line.id not in changes.deleted}
        lost_of, torn_of = scanned.hinted.named(paths), scanned.torn.named(paths)
        _report(scanned, lost_of, torn_of)
        if scanned.missing:
            in_files.in_file(segment_path(found.replay_lsn), MISSING)
        uncopied = _keep_damaged(disk, scanned)
    # also after a clean end: a copied folder may have files newer than its catalog
    logs, seen_id = _replay(disk, found, changes, sync_all_logs, in_files, damaged=bool(scanned.damage))
    next_log_id = found.next_log_id
    if not found.clean or seen_id >= next_log_id:
        next_log_id = max(next_log_id, seen_id + 1) + rebuild.SKIPPED_IDS
    after = Catalog(found.journal_id, next_lsn, next_log_id, clock.wall_ms(), False, logs)
    replace_file(disk, catalog.PATH, after.pack())
    for segment, name in uncopied.items():
        disk.rename(segment_path(segment.lsn), name)
    return Recovered(
        journal_id=found.journal_id,
        next_log_id=next_log_id,
        next_lsn=next_lsn,
        end_lsn=scanned.end_lsn,
        written_ms=found.written_ms,
        logs=logs,
        segments=[segment for segment in segments if segment not in uncopied],
        batches=len(scanned.batches),
        torn_bytes=scanned.torn_bytes,
        damage=scanned.damage,
        in_files=in_files,
        lost_of=lost_of,
        torn_of=torn_of,
        is_journal_missing=scanned.missing,
        seconds=clock.monotonic() - began,
    )


def has_gone_on(disk: Disk, found: Catalog) -> bool:
    """Whether the catalog of a cleanly closed folder is older than the folder.

    A start replaces the catalog before it writes anything else, so an old one has been put back.
    """
    return replay.begins_behind(disk, found.journal_id, found.replay_lsn) or any(
        size_of(disk, line.log_path) > line.end for line in found.logs
    )


def format_number(disk: Disk) -> int | None:
    """The number in FORMAT; 0 if damaged, None if missing."""
    try:
        with opened(disk, format.FORMAT_PATH) as fd:
            return format.format_number(disk.read(fd, 200, 0)) or 0
    except FileNotFoundError:
        return None


def check_number(number: int) -> None:
    """Raises StoreFormat for a folder of a newer version."""
    if number > format.FORMAT_NUMBER:
        raise StoreFormat(
            f"the data folder has format {number}, written by a newer version; this one knows "
            f"{format.FORMAT_NUMBER}"
        )


def _check_format(disk: Disk, found: Catalog | None, in_files: DamagedPlaces) -> None:
    """Check FORMAT; a good catalog replaces a damaged one. Raises StoreFormat."""
    number = format_number(disk) or 0
    check_number(number)
    if found is not None:
        if number != format.FORMAT_NUMBER:
            in_files.in_file(
                format.FORMAT_PATH,
                "FORMAT was missing or damaged: it is written anew, as the catalog tells it",
            )
            _write_format(disk)
    elif not number and _has_begun(disk):
        raise StoreFormat(
            "the data folder has neither a good FORMAT nor a good CATALOG: a copy that was cut short (make "
            "it anew), or something that brokers fsck --repair can rebuild"
        )


def _begin(disk: Disk, clock: Clock) -> Catalog:
    """A new folder, or one whose first start was interrupted: nothing was ever acknowledged in it."""
    disk.make_folder(journal.FOLDER)
    _write_format(disk)
    return Catalog(secrets.randbits(64), 0, 1, clock.wall_ms(), True, [])


def _write_format(disk: Disk) -> None:
    write_file(disk, format.FORMAT_PATH, format.FORMAT_TEXT % format.FORMAT_NUMBER)
    disk.sync_folder("")


def _rebuild(disk: Disk, clock: Clock, reason: str, in_files: DamagedPlaces) -> Catalog:
    """The catalog is lost: rebuild it from logs and journal."""
    names = disk.names("")
    if catalog.PATH in names:
        copy_file(disk, catalog.PATH, _quarantined(catalog.PATH, names))
    made = rebuild.rebuild_catalog(disk, clock.wall_ms())
    in_files.in_file(
        catalog.PATH,
        f"{catalog.PATH} {reason}: {len(made.logs)} logs were found by their files; where they had another "
        "mode than always it is lost (a copy that was cut short: make it anew)",
    )
    return made


def _has_begun(disk: Disk) -> bool:
    """Whether something may have been acknowledged here: a first start ends with a catalog."""
    return bool(journal.segment_lsns(disk)) or catalog.PATH in disk.names("") or _holds_logs(disk)


def _holds_logs(disk: Disk) -> bool:
    """Whether this was a data folder or a copy of one: before the first log there is always a catalog."""
    # Without a journal folder these are somebody else's files.
    return journal.FOLDER in disk.names("") and any(rebuild.log_files(disk))


def _report(scanned: Replay, lost_of: str, torn_of: str) -> None:
    """Say what is cut and what is lost, and of which logs as it seems."""
    if scanned.torn_bytes:
        logger.warning(
            "unclean shutdown: an unfinished write at the journal's end was cut; "
            "nothing that was acknowledged in mode always was in it",
            bytes=scanned.torn_bytes,
            lsn=scanned.end_lsn,
            of=torn_of,
        )
    for damage in scanned.damage:
        logger.error(
            "the journal is damaged: records between `lsn` and `end` are lost unless log files have them; "
            "`of`: whose they seem to be; look at the disk, and keep the segment's copy in journal/",
            lsn=damage.lsn,
            end=damage.end_lsn,
            of=lost_of,
        )


def _keep_damaged(disk: Disk, scanned: Replay) -> dict[SegmentFile, str]:
    """Copy damaged segments; returns those that could not be copied, with the names to rename them to."""
    names = {f"{journal.FOLDER}/{name}" for name in disk.names(journal.FOLDER)}
    uncopied = {}
    for segment in scanned.damaged_segments():
        path = segment_path(segment.lsn)
        try:
            copy_file(disk, path, _quarantined(path, names))
        except OSError as error:
            logger.error(
                "a damaged journal segment cannot be copied, so it is renamed; nothing more is lost",
                path=path,
                reason=describe(error),
            )
            uncopied[segment] = _quarantined(path, names)
    return uncopied


def _quarantined(path: str, names: Container[str]) -> str:
    """A free name for a damaged file; `names` are taken."""
    number = 1
    while f"{path}.damaged-{number}" in names:
        number += 1
    return f"{path}.damaged-{number}"


def _gather(disk: Disk, scanned: Replay) -> JournalChanges:
    changes = JournalChanges.of(disk, scanned.batches, scanned.synced_lsn)
    changes.hint(scanned.hinted)
    return changes


def _replay(
    disk: Disk,
    found: Catalog,
    changes: JournalChanges,
    sync_all_logs: int,
    in_files: DamagedPlaces,
    *,
    damaged: bool,
) -> tuple[list[LogLine], int]:
    """Apply the journal to the logs' files; returns the logs, and the highest id seen.

    After a clean end the catalog's logs are as it says; only unknown logs are looked at.
    """
    lines = {line.id: line for line in found.logs} | changes.created
    gone = [lines.pop(log_id) for log_id in sorted(changes.deleted) if log_id in lines]
    folders = {line.namespace for line in lines.values()} | {line.namespace for line in gone}
    for folder in sorted(folders):
        disk.make_folder(folder)
    taken = {line.log_path for line in lines.values()}
    for line in gone:
        if line.log_path not in taken:
            for path in (line.index_path, line.log_path):
                with suppress(FileNotFoundError):
                    disk.unlink(path)
    touched: list[LogLine] = []
    with Segments(disk) as segments:
        orphans, replaced = rebuild.find_orphans(
            disk, segments, lines, changes, found.next_log_id, damaged=damaged
        )
        for log_id in replaced:
            del lines[log_id]
        lines |= orphans
        for line in orphans.values():
            disk.make_folder(line.namespace)
            folders.add(line.namespace)
            if damaged:
                in_files.in_file(line.log_path)
        for line in sorted((orphans if found.clean else lines).values()):
            adopted = line.id in orphans
            doubted = damaged or (not found.all_journaled and replay.may_lack(line, changes))
            log = recover_log(disk, segments, line, changes, in_files, damaged=doubted, adopted=adopted)
            if log is not None:
                lines[line.id], changed = log
                if changed or line.id in changes.created or adopted:
                    touched.append(line)
    _set_strays_aside(disk, lines.values())
    if touched or not found.clean:
        _sync(disk, touched, folders, sync_all_logs)
    return sorted(lines.values()), max([changes.seen_id, *orphans])


def _set_strays_aside(disk: Disk, lines: Iterable[LogLine]) -> None:
    """Rename files that no log owns, so that replay never removes one of them."""
    owned = {(line.namespace, line.file) for line in lines}
    namespaces = {namespace for namespace, _ in owned}
    for folder, file in sorted({(folder, name[:-4]) for folder, name in rebuild.log_files(disk)} - owned):
        log_id = index.owner(disk, f"{folder}/{file}.idx")
        if log_id is not None or folder in namespaces:  # otherwise the file may be anybody's
            _set_aside(disk, f"{folder}/{file}", log_id or 0)


def _set_aside(disk: Disk, path: str, log_id: int) -> None:
    logger.warning(
        "orphaned log files are renamed to .stray: no catalog or journal knows their log; look at them, "
        "then remove them",
        path=path,
        id=log_id,
    )
    folder = path.partition("/")[0]
    names = {f"{folder}/{name}" for name in disk.names(folder)}
    ending = f"stray-{log_id}"
    number = 0
    while {f"{path}.idx.{ending}", f"{path}.log.{ending}"} & names:
        number += 1
        ending = f"stray-{log_id}-{number}"
    for suffix in (".idx", ".log"):
        with suppress(FileNotFoundError):
            disk.rename(path + suffix, f"{path}{suffix}.{ending}")


def _sync(disk: Disk, touched: list[LogLine], folders: set[str], sync_all_logs: int) -> None:
    """Sync what was recovered: it must not depend on the journal, or on a page cache after a failed sync."""
    if len(touched) > sync_all_logs and disk.sync_all():
        return
    for line in touched:
        for path in (line.log_path, line.index_path):
            with opened(disk, path) as fd:
                disk.sync_data(fd)
    for folder in sorted(folders):
        disk.sync_folder(folder)
    disk.sync_folder("")

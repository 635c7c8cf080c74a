"""Rebuilding a lost catalog from the logs' indexes and the journal."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

import structlog

from shared.storage import format, index, replay
from shared.storage.catalog import Catalog, LogLine, name_of
from shared.storage.disk import Disk, opened, read_file, size_of
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.journal import FOLDER as JOURNAL_FOLDER
from shared.storage.replay import JournalChanges, Pieces, Segments

QUARANTINE = "quarantine"
"""Where `brokers fsck --repair` puts what it replaces and what nobody owns."""
BACKUPS = "backups"
"""Files written at a network client's request: copies of the folder, exported queues."""
SHIP = "SHIP"
"""The file that says how far a bucket has this folder, and which logs have left bytes to it."""
LOST_AND_FOUND = "lost+found"
"""The file system's own folder at the top of a volume, which only its owner may read."""
NO_LOGS = frozenset({JOURNAL_FOLDER, QUARANTINE, BACKUPS, LOST_AND_FOUND})
"""Folders of the data folder that hold no logs of the store."""
SKIPPED_IDS = 1 << 20
"""Log ids that are skipped, because logs that nothing remembers had ids too, and may have left files."""

_LOG_ID_AT = 40  # in an index entry


def rebuild_catalog(disk: Disk, now_ms: int) -> Catalog:
    """The catalog of a folder that has lost its own. Raises OSError.

    Replay starts at the oldest batch in the journal; replaying too much writes bytes to where they already
    are. What only the catalog knew is lost. A log's mode becomes `always` unless the journal says otherwise,
    and its first offset is where the hole at its head ends, or begins where the log has left bytes to a
    bucket.
    """
    batches = sorted((batch.lsn, batch.journal_id) for batch in replay.every_batch(disk))
    journal_id = random.getrandbits(64)
    replay_lsn = max((segment.end for segment in replay.segment_files(disk)), default=0)
    if batches:
        journal_id = Counter(found for _, found in batches).most_common(1)[0][0]
        replay_lsn = next(lsn for lsn, found in batches if found == journal_id)
    changes = JournalChanges.of(disk, replay.scan(disk, journal_id, replay_lsn).batches)
    made = (line for line in changes.created.values() if line.id not in changes.deleted)
    created = {(line.namespace, line.file): line.id for line in made}
    lines: dict[int, LogLine] = {}
    unknown: list[tuple[str, str]] = []
    for namespace, file in files(disk):
        line = line_of(disk, namespace, file)
        owner = created.get((namespace, file))
        if owner is not None and (line is None or line.id != owner):
            continue  # replay creates its files
        if line is None or line.id in lines:
            unknown.append((namespace, file))
        else:
            lines[line.id] = line
    next_id = max(lines, default=0) + SKIPPED_IDS
    for namespace, file in unknown:
        size = size_of(disk, f"{namespace}/{file}.log")
        lines[next_id] = LogLine(next_id, namespace, name_of(file), file, "always", now_ms, 0, size)
        next_id += 1
    made_anew = [lines[log_id] for log_id in sorted(lines)]
    return Catalog(journal_id, replay_lsn, next_id, now_ms, False, made_anew, all_journaled=False)


def files(disk: Disk) -> Iterator[tuple[str, str]]:
    """(namespace, file name without its ending) of every log that has a file."""
    for namespace, name in log_files(disk):
        if name.endswith(".log"):
            yield namespace, name.removesuffix(".log")


def log_files(disk: Disk) -> Iterator[tuple[str, str]]:
    """(namespace, file name) of every file named like a log or an index."""
    for namespace in disk.names(""):
        if namespace not in NO_LOGS:
            with suppress(OSError):  # it is a file
                for name in disk.names(namespace):
                    if name.endswith((".log", ".idx")):
                        yield namespace, name


def line_of(disk: Disk, namespace: str, file: str) -> LogLine | None:
    """What a log's index tells about it; None without a readable one."""
    try:
        with opened(disk, f"{namespace}/{file}.idx") as fd:
            header = index.header_of(disk, fd)
            log_id = header[0] if header is not None else _owner(disk, fd)
            if log_id is None:
                return None
            entries = [entry for entry in index.stored_entries(disk, fd, log_id) if entry is not None]
    except FileNotFoundError:
        return None
    created_ms = header[1] if header is not None else entries[0].first_ms
    first = _first(disk, f"{namespace}/{file}.log", entries)
    end = max((entry.end for entry in entries), default=first)
    local = 0
    if entries and entries[0].offset < first and _left_bytes(disk, log_id):
        first, local = entries[0].offset, first
    return LogLine(log_id, namespace, name_of(file), file, "always", created_ms, first, end, local)


def _left_bytes(disk: Disk, log_id: int) -> bool:
    """Whether a log has left bytes to a bucket; also where the file that says so is damaged."""
    data = read_file(disk, SHIP)
    if data is None:
        return False
    lines = format.unpack_lines(data)
    return not lines or log_id in lines[0].get("left", ())


def _owner(disk: Disk, fd: int) -> int | None:
    """The log id that the first good entry of an index names."""
    data = disk.read(fd, disk.size(fd), index.entry_position(0))
    for at in range(0, len(data) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
        log_id = int.from_bytes(data[at + _LOG_ID_AT : at + _LOG_ID_AT + 8], "big")
        if format.unpack_index_entry(data, log_id, at) is not None:
            return log_id
    return None


def _first(disk: Disk, path: str, entries: list[IndexEntry]) -> int:
    """Where the kept bytes begin: bytes freed by retention read as zeros, and match no CRC. The file keeps
    its length then, so a short one is damage.
    """
    with opened(disk, path) as fd:
        size = disk.size(fd)
        for entry in entries:
            head = disk.read(fd, format.LENGTH_BYTES, entry.offset)
            if entry.end > size or any(head) or index.entry_matches(disk, fd, entry):
                return entry.offset
    return entries[-1].end if entries else 0


logger = structlog.stdlib.get_logger("brokers.storage")

RECOVERED = "recovered"


def find_orphans(
    disk: Disk,
    segments: Segments,
    lines: Mapping[int, LogLine],
    changes: JournalChanges,
    next_log_id: int,
    *,
    damaged: bool,
) -> tuple[dict[int, LogLine], set[int]]:
    """Find logs created since the catalog was written; their ids begin at `next_log_id`.

    `lines`: the known logs. `damaged`: the journal has a hole, so a file under a known log's name may be
    another's. Returns the found logs by id, and the ids of deleted logs whose files a found one has.
    """
    orphans: dict[int, LogLine] = {}
    replaced: set[int] = set()
    known = lines.keys() | changes.deleted
    owners = {(line.namespace, line.file): line.id for line in lines.values()}
    nameless: list[tuple[str, str]] = []
    for namespace, file in files(disk):
        owner = owners.get((namespace, file))
        if owner is not None and not damaged:
            continue
        log_id = index.owner(disk, f"{namespace}/{file}.idx")
        if log_id is None:
            if owner is None:
                nameless.append((namespace, file))
            continue
        if log_id < next_log_id or log_id in known:
            continue
        line = line_of(disk, namespace, file)
        if line is None or line.end == line.first:
            continue
        if owner is not None:
            replaced.add(owner)
        orphans[log_id] = line._replace(end=line.first)
    for log_id, those in sorted(changes.pieces.items()):
        if log_id >= next_log_id and log_id not in known and log_id not in orphans:
            namespace, file = next(_holding(disk, segments, nameless, those), (RECOVERED, f"log-{log_id}"))
            created_ms = those[0].time_ms
            orphans[log_id] = LogLine(log_id, namespace, name_of(file), file, "always", created_ms, 0, 0)
    say = logger.error if damaged else logger.warning  # a cut may have come before it was synced
    for line in orphans.values():
        say(
            "the record of a log's creation is lost: the log is back, as its files and the journal have it",
            log=f"{line.namespace}/{line.name}",
            id=line.id,
        )
    return orphans, replaced


def _holding(
    disk: Disk, segments: Segments, nameless: list[tuple[str, str]], pieces: Pieces
) -> Iterator[tuple[str, str]]:
    """Files of no log, without an index, that have what the journal has."""
    for namespace, file in nameless:
        with opened(disk, f"{namespace}/{file}.log") as fd:
            if pieces[0].is_in(disk, fd, segments):
                yield namespace, file

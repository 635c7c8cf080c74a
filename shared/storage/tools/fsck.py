"""`brokers fsck`: read everything in a data folder that no broker is using, and say what is wrong with it.

Nothing is written here; what can be put right is put right by `repair.py`.
"""

from collections.abc import Iterator
from enum import Enum
from pathlib import Path

import attrs
from crc32c import crc32c

from shared.storage import catalog
from shared.storage.disk import Disk
from shared.storage.format import FORMAT_PATH, INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES, MANIFEST_PATH
from shared.storage.index import entry_position
from shared.storage.journal import FOLDER as JOURNAL_FOLDER
from shared.storage.journal import segment_path
from shared.storage.lock import LOCK_NAME
from shared.storage.rebuild import NO_LOGS
from shared.storage.recovery import MISSING
from shared.storage.replay import seeming_end
from shared.storage.reserve_file import PATH as RESERVE_PATH
from shared.storage.tools.view import (
    CheckedRange,
    DamagedFile,
    FolderView,
    LogReader,
    LogView,
    Trust,
    check_format,
    held,
    look,
    ranges,
)

_READ_BYTES = 1 << 20
_OURS = frozenset(
    {FORMAT_PATH, LOCK_NAME, RESERVE_PATH, catalog.PATH, catalog.NEW_PATH, MANIFEST_PATH, "SHIP", "FOLLOW"}
    | {"control.sock", "admin.token", "admin.sessions", "bridges.json", "charts", "users.toml"}
    | NO_LOGS
)


class Severity(Enum):
    """DAMAGE: bytes are lost or cannot be served. WARNING: look at it. NOTE: nothing is wrong."""

    DAMAGE = "damage"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(Enum):
    """The kind of a finding, for programs; `text` is for people. The methods make one; `where`: its offset
    and length."""

    FORMAT = "format"
    CATALOG = "catalog"
    JOURNAL = "journal"
    LOG = "log"
    INDEX = "index"
    ORPHAN = "orphan"

    def damage(self, path: str, text: str, *where: int) -> "Finding":
        return Finding(Severity.DAMAGE, self, path, text, *where)

    def warning(self, path: str, text: str, *where: int) -> "Finding":
        return Finding(Severity.WARNING, self, path, text, *where)

    def note(self, path: str, text: str, *where: int) -> "Finding":
        return Finding(Severity.NOTE, self, path, text, *where)


@attrs.frozen
class Finding:
    """A finding; `offset` and `length`, in bytes of `path`, if it is about a range."""

    severity: Severity
    kind: FindingKind
    path: str
    text: str
    offset: int | None = None
    length: int | None = None


@attrs.frozen
class FsckReport:
    """What was read and found. `repairs`: what was done, in words."""

    findings: tuple[Finding, ...]
    logs: int
    records: int
    bytes_read: int
    repairs: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No data is damaged."""
        return all(finding.severity is not Severity.DAMAGE for finding in self.findings)


def check(folder: Path) -> FsckReport:
    """Read all of a data folder. Raises StoreInUse, StoreFormat for a newer format, and OSError."""
    with held(folder, live_allowed=False) as (disk, _):
        return check_disk(disk)


def check_disk(disk: Disk) -> FsckReport:
    """As `check`, for a folder that the caller has locked."""
    try:
        check_format(disk)
        view = look(disk)
    except DamagedFile as error:
        kind = FindingKind.FORMAT if error.path == FORMAT_PATH else FindingKind.CATALOG
        text = f"{error}; nothing else can be checked"
        return FsckReport((kind.damage(error.path, text),), 0, 0, 0)
    findings = list(_journal(view))
    records = bytes_read = 0
    for log in view.sorted_logs():
        with view.reader(log) as reader:
            for item in _log(view, log, reader):
                if isinstance(item, Finding):
                    findings.append(item)
                else:
                    records += item[0]
                    bytes_read += item[1]
    findings.extend(orphans(view))
    return FsckReport(tuple(findings), len(view.logs), records, bytes_read)


def _journal(view: FolderView) -> Iterator[Finding]:
    journal = view.journal
    assert journal is not None
    paths = {log.id: log.log_path for log in view.logs.values()}
    for damage in journal.damage:
        text = "bytes that were once synced no longer parse; what they held is lost"
        text = naming(text, journal.hinted.named(paths))
        yield FindingKind.JOURNAL.damage(JOURNAL_FOLDER, text, damage.lsn, damage.end_lsn - damage.lsn)
    if journal.missing and not view.catalog.clean:
        yield FindingKind.JOURNAL.warning(segment_path(view.catalog.replay_lsn), MISSING)
    if view.bad_entries:
        yield FindingKind.JOURNAL.damage(JOURNAL_FOLDER, f"{view.bad_entries} entries cannot be read")
    for log_id, size in view.unmade.items():
        text = f"it has {size} bytes of log {log_id}, whose making is lost: the next start recovers them"
        yield FindingKind.JOURNAL.damage(JOURNAL_FOLDER, text)
    if journal.torn_bytes:
        text = "a batch at the end is torn (never acknowledged in mode always): the next start cuts it off"
        text = naming(text, journal.torn.named(paths))
        yield FindingKind.JOURNAL.warning(JOURNAL_FOLDER, text, journal.end_lsn, journal.torn_bytes)
    if journal.batches:
        text = f"{len(journal.batches)} batches wait to be applied by the next start"
        yield FindingKind.JOURNAL.note(JOURNAL_FOLDER, text)
    segments = {segment_path(segment.lsn) for segment in journal.segments}
    for name in view.disk.names(JOURNAL_FOLDER):
        if f"{JOURNAL_FOLDER}/{name}" not in segments:
            text = "kept from an earlier recovery" if ".damaged-" in name else "not a segment of the journal"
            yield FindingKind.JOURNAL.warning(f"{JOURNAL_FOLDER}/{name}", text)


def naming(text: str, logs: str) -> str:
    """`text`, and of which logs that is, as far as that can be told."""
    return f"{text}; it seems to be of {logs}" if logs else text


def _log(view: FolderView, log: LogView, reader: LogReader) -> Iterator[Finding | tuple[int, int]]:
    """Findings, and (records, bytes) for each good range."""
    size = reader.file_size
    if size is None and log.synced_end > log.first:
        yield FindingKind.LOG.damage(log.log_path, "the file is missing")
    elif size is not None and size < log.synced_end:
        yield FindingKind.LOG.damage(
            log.log_path, f"the file is {size} bytes long, and should be {log.synced_end}"
        )
    for reference in log.references:
        data = reader.read(reference.offset, reference.length)
        if crc32c(data) != reference.crc32c and reference.end > log.first:
            text = "these are not the bytes that the journal refers to"
            yield FindingKind.LOG.damage(log.log_path, text, reference.offset, reference.length)
    end = max(log.end, size or 0)
    missed = seeming_end(log.hinted, end, size or 0) - end
    if missed:
        text = "the journal is damaged, and seems to have had its newest records"
        yield FindingKind.LOG.damage(log.log_path, text, end, missed)
    elif kept := _kept_bytes(view, log, reader, size or 0):
        text = "the journal has lost this, which the file still has: the next start keeps it"
        yield FindingKind.LOG.warning(log.log_path, text, log.end, kept)
    yield from _index(view, log)
    remote: list[CheckedRange] = []
    for part in ranges(view, log, reader, log.first, log.end):
        if part.state is Trust.DAMAGED:
            yield FindingKind.LOG.damage(log.log_path, part.text, part.offset, part.length)
            continue
        if part.state is Trust.REMOTE:
            remote.append(part)
            continue
        yield part.records, part.length
        if part.state is Trust.UNVERIFIED:
            text = "the index was rebuilt: nothing says that these are the bytes that were written"
            yield FindingKind.LOG.note(log.log_path, text, part.offset, part.length)
        elif part.state is Trust.UNCOVERED and part.offset < log.synced_end:
            text = "no index entry covers this; nothing says that these are the bytes that were written"
            yield FindingKind.INDEX.warning(log.index_path, text, part.offset, part.length)
    if remote:
        text = "these bytes are in the bucket only: brokers ship verify reads them"
        start, end = remote[0].offset, remote[-1].end
        yield FindingKind.LOG.note(log.log_path, text, start, end - start)


def _kept_bytes(view: FolderView, log: LogView, reader: LogReader, size: int) -> int:
    """How much the next start finds in a log's file behind all that the journal tells, and keeps."""
    ahead = any(piece.ahead for piece in (*log.patches, *log.references))
    if log.mode != "always" or ahead or log.id >= view.catalog.next_log_id:
        return 0  # such a file may have more
    while size > log.end:  # zeros at the file's end never came to the disk
        start = max(size - _READ_BYTES, log.end)
        if data := reader.read(start, size - start).rstrip(b"\0"):
            return start + len(data) - log.end
        size = start
    return 0


def _index(view: FolderView, log: LogView) -> Iterator[Finding]:
    found = view.read_index(log)
    if found is None:
        if log.synced_end > log.first:
            yield FindingKind.INDEX.damage(log.index_path, "the index is missing, or nothing in it is good")
        return
    if not view.header_is_good(log):
        text = "the header is damaged; the entries say whose they are"
        yield FindingKind.INDEX.damage(log.index_path, text, 0, INDEX_HEADER_BYTES)
    last_end = None
    last_ms = 0
    for number, entry in enumerate(found.entries):
        place = entry_position(found.dropped + number), INDEX_ENTRY_BYTES
        if entry is None:
            # Behind the last good entry a torn one is what a crash leaves; before it, it was once good.
            torn = all(later is None for later in found.entries[number:]) and not view.catalog.clean
            tell = FindingKind.INDEX.note if torn else FindingKind.INDEX.damage
            yield tell(log.index_path, "an entry is not good", *place)
            last_end = None
            continue
        if last_end is not None and entry.offset != last_end and entry.offset > log.first:
            text = f"an entry begins at {entry.offset}, and the one before ends at {last_end}"
            yield FindingKind.INDEX.damage(log.index_path, text, *place)
        if entry.first_ms < last_ms or entry.last_ms < entry.first_ms:
            yield FindingKind.INDEX.warning(log.index_path, "times go down", *place)
        last_end, last_ms = entry.end, entry.last_ms


def orphans(view: FolderView) -> Iterator[Finding]:
    """Files that no log owns."""
    owned = {path for log in view.logs.values() for path in (log.log_path, log.index_path)}
    leaving = {path for log in view.deleted for path in (log.log_path, log.index_path)}
    namespaces = {log.namespace for log in [*view.logs.values(), *view.deleted]}
    for name in view.disk.names(""):
        if name in _OURS:
            continue
        try:
            inside = view.disk.names(name)
        except OSError:
            if name not in namespaces:
                yield FindingKind.ORPHAN.note(name, "not a file of the store")
            continue
        for below in inside:
            path = f"{name}/{below}"
            if path in owned:
                continue
            if path in leaving:
                yield FindingKind.ORPHAN.note(path, "its log is deleted; the next start removes it")
            else:
                yield FindingKind.ORPHAN.warning(path, "no log owns this file")

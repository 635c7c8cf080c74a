"""A drill: the bucket is restored to a temporary folder, and compared with the server that shipped it.

All logs are noted at one instant, between two commits. Once the bucket has it, a folder is restored as of
that LSN. It must have the same logs with the same offsets, and every byte must be the same, as far as the
server still has it; what only the bucket has stays there. How long it took is what a real restore would take
from here.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio
from crc32c import crc32c

from brokers.errors import ExitCode, Failure, copy_errors
from brokers.ship.assembling import Cut
from brokers.ship.bucket import Bucket
from brokers.ship.restore import Restore
from shared.storage import catalog as catalog_file
from shared.storage import index
from shared.storage.catalog import LogLine
from shared.storage.disk import Disk, opened
from shared.storage.inventory import LogSnapshot
from shared.storage.os_disk import OsDisk
from shared.storage.store import Store

SHIPPED_SECONDS = 60.0
"""So long a drill waits until the bucket has its instant."""
_PIECE_BYTES = 1 << 20
_SHOWN_MAX = 20


@attrs.frozen
class Drilled:
    """What a drill found. `seconds`: the restore's. `differences`: one line a log, the first of many."""

    lsn: int = 0
    logs: int = 0
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    compared_seconds: float = 0.0
    differences: Sequence[str] = ()
    missing: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        return not self.differences and not self.missing


async def drill(
    store: Store, bucket: Bucket, shipped_lsn: Callable[[], int], *, below: Path | None = None
) -> Drilled:
    """Restore, compare, and remove what was restored. `below`: the folder for it; the system's own for
    temporary files else. Raises Failure where the bucket does not come to have the instant, and as `Restore`.
    """
    assert store.folder is not None
    lsn, snapshots = await store.instant()
    with trio.move_on_after(SHIPPED_SECONDS) as waited:
        while shipped_lsn() < lsn:  # noqa: ASYNC110 - a drill is rare
            await trio.sleep(0.05)
    if waited.cancelled_caught:
        raise Failure(f"the bucket has nothing after LSN {shipped_lsn()} yet", ExitCode.TEMPORARY)
    place = Path(await store.in_thread(lambda: tempfile.mkdtemp(prefix="brokers-drill-", dir=below)))
    try:
        with copy_errors(place, "temporary folder"):
            report = await Restore(bucket, place / "data", cut=Cut(lsn=lsn), whole=False).run()
        began = time.monotonic()
        differences = await store.in_thread(_compare, store.folder, place / "data", snapshots)
    finally:
        with trio.CancelScope(shield=True):
            await store.in_thread(shutil.rmtree, place, True)
    return Drilled(
        lsn=lsn,
        logs=len(snapshots),
        records=sum(each.records for each in report.stands),
        bytes=sum(each.bytes for each in report.stands),
        seconds=report.seconds,
        compared_seconds=time.monotonic() - began,
        differences=differences[:_SHOWN_MAX],
        missing=report.missing,
    )


def _compare(live: Path, restored: Path, snapshots: Sequence[LogSnapshot]) -> list[str]:
    """A line for each log that is not the same. In a thread."""
    found: list[str] = []
    with (
        OsDisk(live, create=False, read_only=True) as ours,
        OsDisk(restored, create=False, read_only=True) as theirs,
    ):
        catalog = catalog_file.read(theirs)
        assert catalog is not None
        lines = {line.id: line for line in catalog.logs}
        for snapshot in snapshots:
            name = f"{snapshot.line.namespace}/{snapshot.line.name}"
            there = lines.pop(snapshot.line.id, None)
            if there is None:
                found.append(f"{name}: not in the bucket")
            elif differs := _differs(ours, theirs, snapshot, there):
                found.append(f"{name}: {differs}")
        found += [f"{line.namespace}/{line.name}: only in the bucket" for line in lines.values()]
    return found


def _differs(ours: Disk, theirs: Disk, snapshot: LogSnapshot, there: LogLine) -> str:
    """How a restored log differs from the live one; empty if it does not."""
    here = snapshot.line
    if there._replace(local=here.local) != here:
        return f"{_told(there)}, and here {_told(here)}"
    if here.end == here.first or snapshot.log.gone:
        return ""
    try:
        crc, first = _crc_of(ours, snapshot, there.local)
    except FileNotFoundError:
        return "" if snapshot.log.gone else "its file is gone here"
    if snapshot.log.gone:  # another's file may have been read
        return ""
    with opened(theirs, there.log_path) as fd:
        if _crc(theirs, fd, first, there.end) != crc:
            return f"other bytes between offset {first} and {there.end}"
    if index.read_index_of(theirs, there.index_path, there.id, there.created_ms) is None:
        return "it has no index"
    return ""


def _told(line: LogLine) -> str:
    return f"id {line.id}, mode {line.mode}, offsets {line.first} to {line.end}"


def _crc_of(disk: Disk, snapshot: LogSnapshot, local: int) -> tuple[int, int]:
    """The CRC of a live log's bytes up to the instant, and from where on: retention may have dropped some,
    and those below `local` are in the bucket only.
    """
    line, tail = snapshot.line, snapshot.tail
    start = max(line.first, line.local, local)
    in_file = line.end - len(tail)
    if in_file <= start:
        return crc32c(tail[start - in_file :]), start
    with opened(disk, line.log_path) as fd:
        crc = _crc(disk, fd, start, in_file)
        first = max(snapshot.log.first_kept, snapshot.log.local, start)
        if first > start:  # what was read may be a hole by now
            crc = _crc(disk, fd, min(first, in_file), in_file)
            return crc32c(tail[max(first - in_file, 0) :], crc), first
        return crc32c(tail, crc), first


def _crc(disk: Disk, fd: int, start: int, end: int) -> int:
    crc = 0
    for position in range(start, end, _PIECE_BYTES):
        crc = crc32c(disk.read(fd, min(_PIECE_BYTES, end - position), position), crc)
    return crc

"""A data folder made from a bucket, as of one instant of all protocols.

The newest snapshot that is not too late says of which parts the logs consist. These are fetched in pieces,
several at once, and go straight to their places. Then come the WAL objects behind the snapshot, one number
after the other, up to the instant. `Assembler` makes a folder of it, and the store's own recovery opens it.

What cannot be had is not guessed. Bytes that no part has are an error to read; where a WAL object is missing
or damaged, the folder ends before it. `Restored.missing` names all of it.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import trio
from crc32c import crc32c

from brokers.errors import ExitCode, Failure
from brokers.ship import epochs
from brokers.ship.assembling import ALL, Assembler, Broken, Cut, clear, is_empty, say_finished
from brokers.ship.bucket import Bucket, Missing
from brokers.ship.folder_files import put_back
from brokers.ship.follow import pack_follow
from brokers.ship.formats import (
    MANIFEST_KEY,
    SHIP_PATH,
    WAL_PREFIX,
    BadObject,
    FolderMark,
    Manifest,
    Section,
    Snapshot,
    SnapshotLine,
    Wal,
    WalHead,
    continues,
    left_in,
    section_entries,
    unpack_snapshot,
    unpack_wal,
    wal_key,
    wal_number,
)
from brokers.ship.names import FOLLOW_PATH
from shared.errors import StoreFormat, UsageError
from shared.globs import matcher
from shared.storage import catalog as catalog_file
from shared.storage import index
from shared.storage.catalog import Catalog, LogLine
from shared.storage.disk import replace_file
from shared.storage.following import Position
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry, unpack_index_entry
from shared.storage.os_disk import OsDisk
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from shared.storage.threads import Threads
from shared.storage.tools.fsck import FsckReport, check
from shared.units import KIB, MIB

FETCHES = 8
"""Pieces on their way at once."""
PIECE_BYTES = 4 * MIB
"""A piece is of so many bytes, or of one longer index entry."""
APART_BYTES_MAX = 64 * KIB
"""What lies between two wanted places is fetched with them, if it is no longer."""
WAL_BYTES_MAX = 16 * MIB
"""WAL objects are fetched ahead up to so many bytes, while as many are put in place."""
_STORAGE = StorageSettings(
    segment_bytes=64 * KIB,
    zero_fill=False,
    scrub_bytes_per_second=0,
    reserve_bytes_min=0,
    reserve_bytes_max=0,
)


class Wanted:
    """Which logs a restore brings, by globs as `logmq:orders*`; without any, all.

    A protocol's logs are in namespaces that begin with its name. Those that stand for its objects (topics,
    queues) are asked for by their names; what else it has comes with them.
    """

    def __init__(self, only: Sequence[str]) -> None:
        """Raises UsageError."""
        self.all = not only
        self._only = only
        globs: dict[str, list[str]] = {}
        for text in only:
            protocol, colon, glob = text.partition(":")
            if not colon or not protocol or not glob:
                raise UsageError("--only", f"{text!r} is not PROTOCOL:NAME, as logmq:orders*")
            globs.setdefault(protocol, []).append(glob)
        self._named = {protocol: matcher(each) for protocol, each in globs.items()}

    def __call__(self, line: LogLine) -> bool:
        if self.all:
            return True
        protocol, _, part = line.namespace.partition("-")
        named = self._named.get(protocol)
        return named is not None and (part not in ("", "queues") or bool(named(line.name)))

    def unmet(self, lines: Sequence[LogLine]) -> list[str]:
        """What was asked for by a name that nothing has."""
        return [text for text in self._only if not any(map(Wanted([text]).names, lines))]

    def names(self, line: LogLine) -> bool:
        """Whether the log is asked for by its name."""
        return line.namespace.partition("-")[2] in ("", "queues") and self(line)


@attrs.frozen
class Stands:
    """What a folder has of a protocol."""

    protocol: str
    logs: int
    records: int
    bytes: int


@attrs.frozen
class Restored:
    """The end of a restore. All below `lsn` is there, and nothing else; `time_ms` is that of its last batch.

    `missing`: what could not be had, by name. `files`: those that were made beside the logs. `check`: what
    reading all of it found, if that was asked for.
    """

    folder: str
    journal_id: str
    epoch: int
    lsn: int
    time_ms: int
    snapshot: str
    wal_objects: int
    fetched_bytes: int
    stays_in_bucket_bytes: int
    stands: Sequence[Stands]
    missing: Sequence[str]
    files: Sequence[str]
    seconds: float
    check: FsckReport | None = None


@attrs.frozen
class RestorePlan:
    """What a restore would do. `wal`: (number, stored bytes) of the objects to read, as far as listed."""

    manifest: Manifest
    line: SnapshotLine
    snapshot: Snapshot
    wal: Sequence[tuple[int, int]]

    def parts(self, wanted: Wanted) -> dict[str, list[Section]]:
        """By part object, the sections to read."""
        lines = {line.id: line for line in self.snapshot.catalog.logs if wanted(line)}
        found: dict[str, list[Section]] = {}
        for log_id, sections in self.snapshot.sections.items():
            for key, section in sections if log_id in lines else ():
                found.setdefault(key, []).append(section)
        return found


async def read_manifest(bucket: Bucket) -> Manifest:
    """Raises Failure where nothing was ever shipped there, BadObject, and as `Bucket.get`."""
    found = await bucket.retried(lambda: epochs.read_manifest(bucket))
    if found is None:
        raise Failure(
            f"there is no {MANIFEST_KEY} in the bucket: nothing was shipped there, or the prefix is another",
            ExitCode.MISSING,
        )
    return found[0]


async def plan(bucket: Bucket, cut: Cut) -> RestorePlan:
    """Choose the snapshot for an instant. Raises Failure where it cannot be had, and as `read_manifest`."""
    manifest = await read_manifest(bucket)
    lines = sorted(manifest.snapshots, key=lambda line: (line.epoch, line.lsn), reverse=True)
    for line in lines:
        if cut.lsn is not None and line.whole_from > cut.lsn:
            continue
        if cut.time_ms is not None and line.time_ms > cut.time_ms:
            continue
        snapshot = unpack_snapshot((await bucket.retried(lambda key=line.key: bucket.get(key)))[0], line.key)  # type: ignore[misc]
        listed = await bucket.retried(lambda: bucket.listed(WAL_PREFIX))
        numbers = [(wal_number(each.key), each.bytes) for each in listed]
        wal = [(number, size) for number, size in numbers if number is not None and number >= snapshot.wal]
        return RestorePlan(manifest, line, snapshot, sorted(wal))
    if not lines:
        text = "the bucket has no snapshot yet: the first one was not finished"
    else:
        oldest = lines[-1]
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(oldest.time_ms / 1000))
        text = f"the bucket has nothing of that instant: it begins at {when}, LSN {oldest.whole_from}"
    raise Failure(text, ExitCode.MISSING)


class _PartRange(NamedTuple):
    """A part of an object, and the index entries that it has, with their places in the piece."""

    key: str
    at: int
    length: int
    entries: list[tuple[int, int, IndexEntry]]
    """(place, log id, entry)"""


class Restore:
    """One restore. `follows`: the folder is to follow the bucket. `progress` is called with bytes, so far and
    in all.

    What the server had in the bucket only stays there, unless `whole`: then logs come with all of their
    bytes. So they do, unless told otherwise, where the folder will not go on with the bucket, as it is of an
    older instant or has only some logs.
    """

    def __init__(
        self,
        bucket: Bucket,
        folder: Path,
        *,
        cut: Cut = ALL,
        only: Sequence[str] = (),
        follows: bool = False,
        whole: bool | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Raises UsageError."""
        self.missing: list[str] = []
        self._gaps: list[tuple[LogLine, list[tuple[int, int]]]] = []
        """Ranges of the logs in the snapshot that no part has whole, as (start, end)."""
        self._damaged: list[tuple[str, int, int]] = []
        """The same as (key, log id, end), where a part has other bytes."""
        self.head: WalHead | None = None
        """Of the newest object that was put in place."""
        self._bucket = bucket
        self._folder = folder
        self._cut = cut
        self._wanted = Wanted(only)
        self._follows = follows
        self._whole = (cut != ALL or bool(only)) if whole is None else whole
        self._progress = progress
        self._in_thread = Threads()
        self._entries: dict[int, list[tuple[int, bytes]]] = {}
        self._bad: set[tuple[int, int]] = set()
        self._done = self._total = 0
        self._assembler: Assembler

    async def look(self) -> Mapping[str, Any]:
        """What `run` would do. Raises as `run`, and does nothing."""
        found = await plan(self._bucket, self._cut)
        if not is_empty(self._folder):
            raise StoreFormat(f"{self._folder} is not empty")
        parts = found.parts(self._wanted)
        logs = Counter(
            line.namespace.partition("-")[0] for line in found.snapshot.catalog.logs if self._wanted(line)
        )
        return {
            "snapshot": found.line.key,
            "snapshot_lsn": found.line.lsn,
            "snapshot_ms": found.line.time_ms,
            "part_objects": len(parts),
            "part_bytes": self._to_fetch(found, parts),
            "stays_in_bucket_bytes": sum(self._remote(found).values()),
            "wal_objects_most": len(found.wal),
            "wal_bytes_most": sum(size for _, size in found.wal),
            "logs": ", ".join(f"{name} {count}" for name, count in sorted(logs.items())),
        }

    async def run(self, *, verify_full: bool = False) -> Restored:
        """Make the folder. Raises StoreFormat where it is not empty, Failure, BadObject, BucketErrors, and
        OSError; then it is not finished, and no server takes it."""
        began = time.monotonic()
        found = await plan(self._bucket, self._cut)
        clear(self._folder)
        parts = found.parts(self._wanted)
        self._total = self._to_fetch(found, parts)
        self._total += sum(size for _, size in found.wal)
        with OsDisk(self._folder) as disk:
            made = self._assembler = Assembler(
                disk, found.snapshot.catalog, self._cut, self._wanted, whole=self._whole
            )
            try:
                await self._in_thread(made.begin)
                await self._fetch_parts(parts)
                await self._in_thread(self._complete)
                await self._follow_wal(found.snapshot.wal, dict(found.wal))
                if made.position < found.line.whole_from:
                    self.missing.append(f"{found.line.key} is whole from LSN {found.line.whole_from} on only")
                if self.head is None:  # nothing came behind the snapshot
                    self.head = await epochs.wal_head(self._bucket, found.snapshot.wal - 1)
                lsn = await self._in_thread(made.finish, time.time_ns() // 1_000_000)
            finally:
                made.abandon()
        time_ms = made.time_ms or found.snapshot.time_ms
        store = await Store.open(self._folder, _STORAGE)
        try:
            files = await put_back(store, self._folder)
        finally:
            await store.close()
        self.missing += await self._in_thread(self._still_missing)
        catalog = await self._in_thread(self._mark, found, lsn)
        self.missing += [f"{text}: nothing has such a name" for text in self._wanted.unmet(catalog.logs)]
        report = await self._in_thread(check, self._folder) if verify_full else None
        return Restored(
            folder=str(self._folder),
            journal_id=f"{catalog.journal_id:016x}",
            epoch=found.manifest.epoch if self.head is None else self.head.epoch,
            lsn=lsn,
            time_ms=time_ms,
            snapshot=found.line.key,
            wal_objects=0 if self.head is None else self.head.number - found.snapshot.wal + 1,
            fetched_bytes=self._done,
            stays_in_bucket_bytes=sum(self._remote(found).values()),
            stands=await self._in_thread(_stands, self._folder, catalog),
            missing=self.missing,
            files=files,
            seconds=time.monotonic() - began,
            check=report,
        )

    def _remote(self, found: RestorePlan) -> dict[int, int]:
        """By log id, how many bytes are not brought, since they are in the bucket only."""
        lines = () if self._whole else found.snapshot.catalog.logs
        return {line.id: line.local - line.first for line in lines if line.local and self._wanted(line)}

    def _to_fetch(self, found: RestorePlan, parts: Mapping[str, Sequence[Section]]) -> int:
        """Bytes of parts that are brought."""
        below = {line.id: 0 if self._whole else line.local for line in found.snapshot.catalog.logs}
        sections = [section for each in parts.values() for section in each]
        return sum(max(each.end - max(each.first, below[each.log_id]), 0) for each in sections)

    # -- parts

    async def _fetch_parts(self, parts: dict[str, list[Section]]) -> None:
        send, receive = trio.open_memory_channel[_PartRange](FETCHES)
        try:
            async with trio.open_nursery() as nursery:
                for _ in range(FETCHES):
                    nursery.start_soon(self._place_pieces, receive.clone())
                receive.close()
                async with send:
                    for key, sections in parts.items():
                        for piece in await self._pieces(key, sorted(sections, key=attrgetter("at"))):
                            await send.send(piece)
        except ExceptionGroup as group:  # they ask the same bucket, and write to the same disk
            raise group.exceptions[0] from None

    async def _pieces(self, key: str, sections: list[Section]) -> Sequence[_PartRange]:
        """Read the index entries of an object's sections, and cut what they cover into pieces."""
        start = min(section.entries_at for section in sections)
        end = max(section.entries_at + section.entries * INDEX_ENTRY_BYTES for section in sections)
        try:
            raw = await self._bucket.retried(lambda: self._bucket.get_range(key, start, end - start))
            places: list[tuple[int, int, IndexEntry]] = []
            for section in sections:
                at = section.entries_at - start
                own = raw[at : at + section.entries * INDEX_ENTRY_BYTES]
                local = self._assembler.lines[section.log_id].local
                for entry in section_entries(own, section, key):
                    if entry.offset < local:
                        continue
                    places.append((section.at + entry.offset - section.first, section.log_id, entry))
                self._entries.setdefault(section.log_id, []).append((section.first, own))
        except (Missing, BadObject) as error:
            self.missing.append(f"{key}: {error}")
            return ()
        return list(_cut_into_pieces(key, places))

    async def _place_pieces(self, pieces: trio.MemoryReceiveChannel[_PartRange]) -> None:
        async with pieces:
            async for piece in pieces:
                await self._place(piece)

    async def _place(self, piece: _PartRange) -> None:
        key, at, length = piece.key, piece.at, piece.length
        try:
            data = await self._bucket.retried(lambda: self._bucket.get_range(key, at, length))
        except Missing as error:
            data = b""
            self.missing.append(f"{key}: {error}")
        bad = await self._in_thread(self._put, piece, memoryview(data))
        self._damaged += [(key, *each) for each in bad if data]
        self._done += length
        self._progress(self._done, self._total)

    def _put(self, piece: _PartRange, data: memoryview) -> list[tuple[int, int]]:
        """Put a piece's bytes in their places, those whose CRC is good; the others, as (log id, end). In a
        thread."""
        bad: list[tuple[int, int]] = []
        for log_id, places in groupby(piece.entries, key=lambda place: place[1]):
            runs: list[tuple[int, int, int]] = []  # (offset, start in the piece, end)
            for at, _, entry in places:
                start = at - piece.at
                if not entry.damaged and crc32c(data[start : start + entry.length]) != entry.crc32c:
                    bad.append((log_id, entry.end))
                    self._bad.add((log_id, entry.offset))
                elif runs and runs[-1][2] == start:
                    runs[-1] = (runs[-1][0], runs[-1][1], start + entry.length)
                else:
                    runs.append((entry.offset, start, start + entry.length))
            for offset, start, end in runs:
                self._assembler.place(log_id, offset, data[start:end])
        return bad

    def _complete(self) -> None:
        """Write all indexes. In a thread."""
        for log_id, line in self._assembler.lines.items():
            sections = sorted(self._entries.pop(log_id, []))
            if gone := self._assembler.complete(log_id, self._good(log_id, sections)):
                self._gaps.append((line, gone))

    def _still_missing(self) -> list[str]:
        """What no part has, and the folder should: the journal says of the rest that it is dropped, or that
        its log is deleted. In a thread."""
        with OsDisk(self._folder, create=False, read_only=True) as disk:
            catalog = catalog_file.read(disk)
        assert catalog is not None
        firsts = {line.id: line.first for line in catalog.logs}
        damaged = Counter(key for key, log_id, end in self._damaged if end > firsts.get(log_id, end))
        lines = [f"{key}: {count} ranges are damaged: their CRCs differ" for key, count in damaged.items()]
        for line, ranges in self._gaps:
            first = firsts.get(line.id)
            left = [] if first is None else [(max(start, first), end) for start, end in ranges if end > first]
            if left:
                lost = sum(end - start for start, end in left)
                lines.append(f"{line.namespace}/{line.name}: {lost} bytes from offset {left[0][0]} on")
        return lines

    def _good(self, log_id: int, sections: list[tuple[int, bytes]]) -> Iterator[IndexEntry]:
        for _, raw in sections:
            yield from (entry for entry in _unpacked(log_id, raw) if (log_id, entry.offset) not in self._bad)

    # -- the journal

    async def _follow_wal(self, number: int, listed: dict[int, int]) -> None:
        """Put the journal in place, up to the cut, or as far as it goes."""
        group: list[Wal | None] = await self._fetch_wal(self._group(number, listed))
        while group:
            number += len(group)
            ahead: list[Wal | None] = []

            async def fetch(numbers: list[int], into: list[Wal | None]) -> None:
                into += await self._fetch_wal(numbers)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(fetch, self._group(number, listed), ahead)
                goes_on = await self._in_thread(self._take, group)
                if not goes_on:
                    nursery.cancel_scope.cancel()
            if not goes_on:
                break
            group = ahead
        if not self._assembler.reached:
            self._tell_later(listed)

    def _group(self, number: int, listed: dict[int, int]) -> list[int]:
        """The numbers that are fetched together; beyond those listed one by one."""
        numbers, size = [number], listed.get(number, 0)
        while len(numbers) < FETCHES and number + 1 in listed:
            number += 1
            size += listed[number]
            if size > WAL_BYTES_MAX:
                break
            numbers.append(number)
        return numbers

    async def _fetch_wal(self, numbers: list[int]) -> list[Wal | None]:
        """The objects of consecutive numbers; None ends them, where one is not there, or damaged."""
        found: list[Wal | None] = [None] * len(numbers)

        async def fetch(at: int, key: str) -> None:
            try:
                data, _ = await self._bucket.retried(lambda: self._bucket.get(key))
                found[at] = await self._in_thread(unpack_wal, data, key)
            except Missing:
                pass
            except BadObject as error:
                self.missing.append(str(error))

        async with trio.open_nursery() as nursery:
            for at, number in enumerate(numbers):
                nursery.start_soon(fetch, at, wal_key(number))
        return found

    def _take(self, group: list[Wal | None]) -> bool:
        """Put objects in place; whether more may follow. In a thread."""
        for wal in group:
            if wal is None:
                return False
            head = wal.head
            if self.head is not None and not continues(self.head, head):
                self.missing.append(f"{wal_key(head.number)} does not go on where the object before it ends")
                return False
            try:
                self._assembler.take(wal)
            except Broken as error:
                self.missing.append(f"{wal_key(head.number)}: {error}")
                return False
            self.head = head
            self._done += len(wal.data)
            self._progress(self._done, self._total)
            if self._assembler.reached:
                return False
        return True

    def _tell_later(self, listed: dict[int, int]) -> None:
        """Name what is behind the end."""
        last = -1 if self.head is None else self.head.number
        later = sorted(number for number in listed if number > last)
        if later:
            self.missing.append(
                f"{len(later)} WAL objects from {wal_key(later[0])} on cannot be used: "
                f"the folder ends at LSN {self._assembler.position}"
            )

    # -- the folder

    def _mark(self, found: RestorePlan, lsn: int) -> Catalog:
        """Have the folder ship on where the bucket ends; one that is not all of it begins a journal of its
        own, so that nothing takes it for the bucket's. Returns its catalog. In a thread."""
        whole = self._wanted.all and not self._assembler.reached and not self.missing
        with OsDisk(self._folder, create=False) as disk:
            catalog = catalog_file.read(disk)
            assert catalog is not None
            if self._follows:
                if self.head is None:
                    raise Failure("the bucket has no WAL object to follow from", ExitCode.TEMPORARY)
                at = self.head
                position = Position(
                    at.journal_id,
                    at.epoch,
                    at.number,
                    at.next_lsn,
                    lsn,
                    self._assembler.time_ms or found.snapshot.time_ms,
                    catalog.next_log_id,
                )
                replace_file(disk, FOLLOW_PATH, pack_follow(found.manifest.url, position))
            if whole and self.head is not None and not self._follows:
                mark = FolderMark(
                    found.manifest.url,
                    f"{catalog.journal_id:016x}",
                    found.manifest.epoch,
                    self.head.number,
                    self.head.next_lsn,
                    starts=((lsn, catalog.replay_lsn),),
                    left=left_in(catalog),
                )
                replace_file(disk, SHIP_PATH, mark.pack())
            else:
                catalog = attrs.evolve(catalog, journal_id=secrets.randbits(64))
                replace_file(disk, catalog_file.PATH, catalog.pack())
            say_finished(disk)
        return catalog


def _unpacked(log_id: int, raw: bytes) -> Iterator[IndexEntry]:
    for at in range(0, len(raw), INDEX_ENTRY_BYTES):
        entry = unpack_index_entry(raw, log_id, at)
        assert entry is not None, "it was unpacked before"
        yield entry


def _cut_into_pieces(key: str, places: Iterable[tuple[int, int, IndexEntry]]) -> Iterator[_PartRange]:
    start = end = 0
    group: list[tuple[int, int, IndexEntry]] = []
    for at, log_id, entry in sorted(places):
        if not entry.length:
            continue
        behind = at + entry.length
        if group and (behind - start > PIECE_BYTES or at - end > APART_BYTES_MAX):
            yield _PartRange(key, start, end - start, group)
            group = []
        if not group:
            start = at
        group.append((at, log_id, entry))
        end = behind
    if group:
        yield _PartRange(key, start, end - start, group)


def _stands(folder: Path, catalog: Catalog) -> list[Stands]:
    """What a folder that was closed in order has, by protocol."""
    logs, records, size = Counter[str](), Counter[str](), Counter[str]()
    with OsDisk(folder, create=False, read_only=True) as disk:
        for line in catalog.logs:
            protocol = line.namespace.partition("-")[0]
            logs[protocol] += 1
            size[protocol] += line.end - line.first
            found = index.read_index_of(disk, line.index_path, line.id, line.created_ms)
            for entry in [] if found is None else found.entries:
                if entry is not None and entry.end > line.first:
                    records[protocol] += entry.records
    return [Stands(protocol, logs[protocol], records[protocol], size[protocol]) for protocol in sorted(logs)]

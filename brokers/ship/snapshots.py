"""Snapshots of all logs, which the manifest names; and what is deleted once no snapshot needs it.

A snapshot is made at a checkpoint. It needs the parts of its logs in the bucket, and the journal up to where
it is whole. Then the manifest names it, and no longer those that retention passed. What only these needed is
deleted some time later. A part that has what this disk has no longer is named by every snapshot.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import structlog
import trio
from crc32c import crc32c

from brokers.ship import epochs
from brokers.ship.bucket import Bucket, Exists, Missing, Stale
from brokers.ship.epochs import Fenced, ForeignBucket
from brokers.ship.folding import Fold, Sections
from brokers.ship.formats import (
    MANIFEST_KEY,
    PARTS_PREFIX,
    SNAPSHOTS_PREFIX,
    BadObject,
    Manifest,
    Section,
    Snapshot,
    SnapshotLine,
    part_key,
    snapshot_key,
    unpack_snapshot,
    wal_key,
    wal_number,
)
from brokers.ship.settings import ShipSettings
from shared.errors import StoreError
from shared.storage.catalog import unpack as unpack_catalog
from shared.storage.files import FileGone
from shared.storage.format import IndexEntry
from shared.storage.inventory import KEEP_ALL
from shared.storage.log import Log
from shared.storage.shipping import Shipping
from shared.storage.store import Store
from shared.task_turns import TaskTurn

if TYPE_CHECKING:
    from brokers.ship.shipper import Shipper

GRACE_SECONDS = 600.0
"""What the manifest no longer names is deleted so much later: somebody may be reading it."""
THIN_SECONDS = 3600.0
"""Of older snapshots one is kept for each span of this length; the journal has what is between."""
DELETED_AT_ONCE = 1000
JOINED_FOLDS = 12
"""A small section stays on the disk for so many folds, an hour usually: it is joined to what follows."""
_SMALL_SHARE = 4
"""A section is small that is shorter than this share of `part_bytes`."""
STALE_LEAST_BYTES = 1 << 20
"""A smaller object is not sent anew for what it has of no use."""


@attrs.define(eq=False)
class Snapshots:
    """Of one epoch. `asking`: repeats a request until the bucket does it."""

    _store: Store
    _shipping: Shipping
    _settings: ShipSettings
    _bucket: Bucket
    _asking: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    _wall_ms: Callable[[], int]
    manifest: Manifest
    _etag: str
    _log: structlog.stdlib.BoundLogger
    made: int = 0
    folded_lsn: int = -1
    """Where the journal was synced to when the last snapshot was begun."""
    loaded: bool = False
    """Whether it is known what the newest snapshot consists of."""
    _sections: Sections = attrs.Factory(dict)
    _sizes: dict[str, int] = attrs.Factory(dict)
    """Of objects of parts."""
    _named: dict[str, frozenset[str]] = attrs.Factory(dict)
    """By snapshot: the keys of its parts."""
    _doomed: deque[tuple[float, list[str]]] = attrs.Factory(deque)

    async def load(self, *, go_on: bool) -> None:
        """Doom what an earlier run left behind. `go_on`: with the parts of the newest snapshot. What this
        disk has no longer is in parts of an earlier one in any case.
        """
        lines = self.manifest.snapshots
        if go_on and lines:
            self._sections = await self._sections_in(lines[-1])
        await self._find_remote()
        self.loaded = True
        listed = await self._asking(partial(self._bucket.listed, PARTS_PREFIX))
        self._sizes = {each.key: each.bytes for each in listed}
        if not self._settings.delete:
            return
        ours = part_key(self.manifest.epoch, 0, 0)
        left = {each.key for each in listed if each.key < ours}
        for line in lines if left else ():
            names = await self._names_of(line.key)
            if names is None:  # it may need any of them
                return
            self._named[line.key] = names
            left -= names
        snapshots = await self._asking(partial(self._bucket.listed, SNAPSHOTS_PREFIX))
        left |= {each.key for each in snapshots if each.key < snapshot_key(self.manifest.epoch, 0)}
        left -= {line.key for line in lines}
        left |= {wal_key(number) for number in range(self.manifest.wal_deleted, self.manifest.wal_first)}
        if left:
            self._doomed.append((trio.current_time() + GRACE_SECONDS, sorted(left)))

    async def _sections_in(self, line: SnapshotLine) -> Sections:
        """The sections of a snapshot; none where it cannot be read."""
        with suppress(Missing, BadObject):
            data, _ = await self._asking(partial(self._bucket.get, line.key))
            snapshot = await self._store.in_thread(unpack_snapshot, data, line.key)
            sections: Sections = snapshot.sections
            return sections
        return {}

    async def _find_remote(self) -> None:
        """Find the sections of what this disk has no longer, in the newest snapshots that have them."""
        lacking = {log.id: log for log in self._shipping.logs_left()}
        journal_id = f"{self._shipping.journal_id:016x}"
        looked_at = set[str]()
        while True:
            for log in list(lacking.values()):
                if _reach(self._sections.get(log.id, ()), log.first) >= log.local:
                    del lacking[log.id]
            newest = reversed(self.manifest.snapshots)
            left = [line for line in newest if line.key not in looked_at]
            if not lacking or not left:
                break
            line = next((line for line in left if line.journal_id == journal_id), left[0])
            looked_at.add(line.key)
            sections = await self._sections_in(line)
            for log_id, log in lacking.items():
                remote = [placed for placed in sections.get(log_id, ()) if placed[1].first < log.local]
                if _reach(remote, log.first) > _reach(self._sections.get(log_id, ()), log.first):
                    self._sections[log_id] = remote
        for log in lacking.values():
            self._log.error(
                "the bucket lacks what this disk has no longer: reading that is an error; look whether "
                "ship.url named another bucket before, or somebody deleted objects in this one",
                log=log.name,
                offset=_reach(self._sections.get(log.id, ()), log.first),
                end=log.local,
            )

    def sections_of(self, log_id: int) -> Sequence[tuple[str, Section]]:
        """The sections of a log in the newest snapshot, in order."""
        return self._sections.get(log_id, ())

    async def refresh(self) -> None:
        """Look where another server, which has fenced this one, put the parts. Raises BadObject and
        BucketErrors."""
        snapshot = await epochs.newest_snapshot(self._bucket, self._store.in_thread)
        if snapshot.catalog.journal_id == self._shipping.journal_id:  # else its logs are others
            self._sections = snapshot.sections

    async def make(self, journal: "Shipper") -> int | None:
        """Make a snapshot, and have the manifest name it; its LSN, or None where it is of no use any more.

        Raises Fenced, ForeignBucket, OSError.
        """
        shipping = self._shipping
        began_lsn = shipping.synced_lsn
        if not await self._store.checkpoint():
            raise OSError("there was no checkpoint")
        await shipping.sync()
        reached = shipping.synced_lsn
        text = await self._store.in_thread(shipping.catalog)
        catalog = await self._store.in_thread(unpack_catalog, text)
        if catalog is None:
            raise OSError("the catalog is damaged")
        lsn: int = catalog.replay_lsn
        fold = Fold(
            shipping,
            catalog.logs,
            self._sections,
            self._settings.part_bytes,
            self.manifest.epoch,
            self._stale(),
        )
        try:
            await self._send_parts(fold, lsn)
        finally:  # what was sent is there, though there be no snapshot yet
            self._sections = self._sections | fold.sections
        whole_from = lsn
        if await self._store.in_thread(fold.has_dropped):
            whole_from = max(shipping.synced_lsn, lsn)
            reached = shipping.synced_lsn
        if not await journal.reach(min(reached, whole_from), lsn):
            return None
        snapshot = Snapshot(
            self.manifest.epoch,
            journal.number_of(lsn),
            self._wall_ms(),
            whole_from,
            catalog,
            text,
            fold.sections,
        )
        line = await self._send_snapshot(snapshot)
        await self._name(line, journal.number)
        self._sections, self.folded_lsn = fold.sections, began_lsn
        self.made += 1
        return lsn

    async def _send_parts(self, fold: Fold, lsn: int) -> None:
        parts = fold.parts()
        number = 0
        while (part := await self._store.in_thread(next, parts, None)) is not None:
            left_alone = self._bucket.left_alone
            while True:
                key = part_key(fold.epoch, lsn, number)
                number += 1
                with suppress(Exists):  # of a fold that was cut short, and had other bytes
                    await self._asking(partial(self._bucket.create, key, part.data))
                    break
            if self._bucket.left_alone != left_alone:
                fold.memory = bytearray()
            self._sizes[key] = len(part.data)
            fold.sent(key, part.directory)

    async def _send_snapshot(self, snapshot: Snapshot) -> SnapshotLine:
        """The snapshot's line for the manifest."""
        key = snapshot_key(snapshot.epoch, snapshot.lsn)
        data = await self._store.in_thread(snapshot.pack)
        try:
            await self._asking(partial(self._bucket.create, key, data))
        except Exists:  # of a fold that was cut short: it is as good
            data, _ = await self._asking(partial(self._bucket.get, key))
            snapshot = await self._store.in_thread(unpack_snapshot, data, key)
        self._named[key] = names = snapshot.part_keys
        size = len(data) + sum(self._sizes.get(name, 0) for name in names)
        journal_id = f"{self._shipping.journal_id:016x}"
        return SnapshotLine(
            key,
            snapshot.lsn,
            snapshot.whole_from,
            snapshot.time_ms,
            snapshot.wal,
            snapshot.epoch,
            journal_id,
            size,
        )

    async def _name(self, line: SnapshotLine, number: int) -> None:
        """Have the manifest name a snapshot, and no longer those that retention passed."""
        now_ms = self._wall_ms()
        lines = (*(each for each in self.manifest.snapshots if each.key != line.key), line)
        kept = lines
        if self._settings.delete:
            kept = kept_snapshots(lines, now_ms, self._settings)
        gone = [each.key for each in lines if each not in kept]
        doomed = await self._parts_of_none(gone, kept)
        if doomed is None:  # a snapshot cannot be read: it may need any of them
            gone, kept, doomed = [], lines, []
        wal_first = self.manifest.wal_first
        if self._settings.delete:
            wal_first = max(wal_first, min(min(each.wal for each in kept), number))
        wal_gone = [wal_key(each) for each in range(self.manifest.wal_first, wal_first)]
        manifest = attrs.evolve(
            self.manifest,
            snapshots=kept,
            wal_first=wal_first,
            wal_next=number + 1,
            wal_deleted=self._wal_deleted(),
            retained_from_ms=kept[0].time_ms,
            retained_to_ms=now_ms,
            written_ms=now_ms,
        )
        try:
            self._etag = await self._asking(
                partial(epochs.write_manifest, self._bucket, manifest, self._etag)
            )
        except Stale:
            raise Fenced from None
        except Missing:
            raise _without_manifest() from None
        self.manifest = manifest
        due = trio.current_time() + GRACE_SECONDS
        if names := [*doomed, *gone, *wal_gone]:
            self._doomed.append((due, names))

    def _wal_deleted(self) -> int:
        """Below this number all objects are deleted."""
        waiting = [wal_number(name) for _, names in self._doomed for name in names]
        return min((number for number in waiting if number), default=self.manifest.wal_first)

    async def _parts_of_none(self, gone: Sequence[str], kept: Sequence[SnapshotLine]) -> list[str] | None:
        """Objects of parts that only snapshots name which are gone; None where a snapshot is not readable."""
        if not gone:
            return []
        for key in [*gone, *(each.key for each in kept)]:
            if key not in self._named:
                names = await self._names_of(key)
                if names is None and key in gone:
                    names = frozenset()
                if names is None:
                    return None
                self._named[key] = names
        needed = frozenset[str]().union(*(self._named[each.key] for each in kept))
        unneeded = frozenset[str]().union(*(self._named.pop(key) for key in gone)) - needed
        for name in unneeded:
            self._sizes.pop(name, None)
        return sorted(unneeded)

    async def _names_of(self, key: str) -> frozenset[str] | None:
        """The parts that a snapshot needs; None where it cannot be read."""
        try:
            data, _ = await self._asking(partial(self._bucket.get, key))
            snapshot = await self._store.in_thread(unpack_snapshot, data, key)
        except (Missing, BadObject):
            return None
        names: frozenset[str] = snapshot.part_keys
        return names

    async def delete_doomed(self) -> None:
        now = trio.current_time()
        while self._doomed and self._doomed[0][0] <= now:
            needed = self._only_here()
            names = [name for name in self._doomed[0][1] if name not in needed]
            for at in range(0, len(names), DELETED_AT_ONCE):
                await self._asking(partial(self._bucket.delete, names[at : at + DELETED_AT_ONCE]))
            self._doomed.popleft()

    def _only_here(self) -> frozenset[str]:
        """Objects that have what no disk has any more."""
        return frozenset(
            key
            for log in self._shipping.logs_left()
            for key, section in self._sections.get(log.id, ())
            if section.first < log.local
        )

    # -- what this disk need not keep

    async def leave(self, journal: "Shipper") -> None:
        """Have logs leave to the bucket what their local retention lets go, as far as the snapshot that the
        manifest names has it: whole sections, whose bytes are compared, and found in the bucket.
        """
        turn = TaskTurn()
        for log in self._shipping.logs():
            await turn.item()
            if log.deleted or log.local_retention == KEEP_ALL:
                continue
            try:
                limit = await self._store.retention.local_limit(log)
                start = max(log.first, log.local)
                place = start
                for key, section in self._sections.get(log.id, ()):
                    if section.end <= place:
                        continue
                    if section.first > place or section.end > limit or self._may_be_joined(log, section):
                        break
                    if not await self._is_there(log, key, section):
                        break
                    place = section.end
                if place > start and not log.deleted:
                    await self._require_ours()
                    await journal.note_left(log.id)
                    if place > log.first and not log.deleted:  # retention or somebody else was faster
                        self._store.retention.leave_to_bucket(log, place)
            except (StoreError, FileGone, FileNotFoundError) as error:
                if not log.deleted:
                    self._log.warning(
                        "a log keeps all of its bytes on this disk for now", log=log.name, reason=str(error)
                    )

    async def _require_ours(self) -> None:
        """Raise Fenced or ForeignBucket unless the bucket's manifest is still ours."""
        found = await self._asking(partial(epochs.read_manifest, self._bucket))
        if found is None:
            raise _without_manifest()
        if (found[0].epoch, found[0].writer) != (self.manifest.epoch, self.manifest.writer):
            raise Fenced

    def _may_be_joined(self, log: Log, section: Section) -> bool:
        """Whether a section is a small one of late: what follows is joined to it, so that a log has few."""
        if section.length * _SMALL_SHARE >= self._settings.part_bytes:
            return False
        newest = log.index_entries(section.end - 1, section.end)
        if not newest:  # it was dropped just now
            return True
        return self._wall_ms() - newest[-1].last_ms < JOINED_FOLDS * self._settings.fold * 1000

    async def _is_there(self, log: Log, key: str, section: Section) -> bool:
        """Whether the disk has a section's bytes as they were written, and the bucket has them, too."""
        entries = log.index_entries(section.first, section.end)
        if not entries or entries[-1].end != section.end:
            return False
        last = entries[-1]
        if not await self._store.in_thread(self._is_same, section, entries):
            if log.first > entries[0].offset:
                return False  # retention was faster, and made a hole
            self._log.error(
                "a log's bytes on this disk and in the bucket are not the same: this disk keeps its own; "
                "brokers fsck and brokers ship verify say which are damaged",
                log=log.name,
                offset=section.first,
                end=section.end,
            )
            return False
        try:
            at = section.at + last.offset - section.first
            data = await self._asking(partial(self._bucket.get_range, key, at, last.length))
        except Missing:
            data = b""
        if last.damaged or (len(data) == last.length and crc32c(data) == last.crc32c):
            return bool(data)
        self._log.error(
            "an object of the bucket is gone, or has other bytes: this disk keeps what it should have; "
            "brokers ship verify says more",
            key=key,
            log=log.name,
        )
        return False

    def _is_same(self, section: Section, entries: Sequence[IndexEntry]) -> bool:
        """Whether a section's bytes are those that were sent, and written; `entries` say which are kept."""
        data = memoryview(self._shipping.log_bytes(section.log_id, section.first, section.length))
        start = section.first
        if entries[0].offset <= start and crc32c(data) != section.crc32c:
            return False
        return all(
            entry.damaged
            or entry.offset < start
            or crc32c(data[entry.offset - start : entry.end - start]) == entry.crc32c
            for entry in entries
        )

    def _stale(self) -> frozenset[str]:
        """Objects of parts less than half of which the last snapshot uses, up to the size of one object."""
        live: dict[str, int] = {}
        for each in self._sections.values():
            for key, section in each:
                live[key] = live.get(key, 0) + section.length
        found, room = [], self._settings.part_bytes
        for key in self._only_here():
            live.pop(key, None)
        for key, used in sorted(live.items()):
            size = self._sizes.get(key, 0)
            if size > STALE_LEAST_BYTES and 2 * used < size and used <= room:
                found.append(key)
                room -= used
        return frozenset(found)


def _reach(sections: Sequence[tuple[str, Section]], offset: int) -> int:
    """Up to where the sections go on from an offset without a gap."""
    for _, section in sections:
        if section.first <= offset < section.end:
            offset = section.end
    return offset


def kept_snapshots(
    lines: Sequence[SnapshotLine], now_ms: int, settings: ShipSettings
) -> tuple[SnapshotLine, ...]:
    """The snapshots that retention keeps, of all, the oldest first. The newest stays."""
    oldest_ms = now_ms - settings.retention_seconds * 1000
    thin_ms = now_ms - THIN_SECONDS * 1000
    kept: list[SnapshotLine] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else None
        if following is not None and following.time_ms <= oldest_ms:
            continue  # instants from the next one on are enough
        near = bool(kept) and line.time_ms - kept[-1].time_ms < THIN_SECONDS * 1000
        if following is not None and line.time_ms < thin_ms and near:
            continue
        kept.append(line)
    while settings.retention_bytes and len(kept) > 1:
        # Parts are shared: the largest has nearly all, and the journal's own bytes come on top.
        size = max(line.bytes for line in kept) + kept[-1].lsn - kept[0].lsn
        if size <= settings.retention_bytes:
            break
        del kept[0]
    return tuple(kept)


def _without_manifest() -> ForeignBucket:
    return ForeignBucket(
        f"somebody has deleted the bucket's {MANIFEST_KEY}: put it back from the bucket's versions, or name "
        "an empty prefix"
    )

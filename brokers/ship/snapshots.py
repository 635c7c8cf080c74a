"""Snapshots of all logs, which the manifest names; and what is deleted once no snapshot needs it.

A snapshot is made at a checkpoint. It needs the parts of its logs in the bucket, and the journal up to where
it is whole. Then the manifest names it, and no longer those that retention passed. What only these needed is
deleted some time later.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import attrs
import trio

from brokers.ship import epochs
from brokers.ship.bucket import Bucket, Exists, Missing, Stale
from brokers.ship.epochs import Fenced
from brokers.ship.folding import Fold, Sections
from brokers.ship.formats import (
    PARTS_PREFIX,
    SNAPSHOTS_PREFIX,
    BadObject,
    Manifest,
    Snapshot,
    SnapshotLine,
    part_key,
    snapshot_key,
    unpack_snapshot,
    wal_key,
    wal_number,
)
from brokers.ship.settings import ShipSettings
from shared.storage.catalog import unpack as unpack_catalog
from shared.storage.shipping import Shipping
from shared.storage.store import Store

GRACE_SECONDS = 600.0
"""What the manifest no longer names is deleted so much later: somebody may be reading it."""
THIN_SECONDS = 3600.0
"""Of older snapshots one is kept for each span of this length; the journal has what is between."""
DELETED_AT_ONCE = 1000
STALE_LEAST_BYTES = 1 << 20
"""A smaller object is not sent anew for what it has of no use."""


class ShippedJournal(Protocol):
    """What a snapshot asks of the journal's shipping. `number`: of the newest WAL object."""

    number: int

    async def reach(self, lsn: int, snapshot_lsn: int) -> bool:
        """Wait until the bucket has all below `lsn`; False where a snapshot at `snapshot_lsn` is of no use,
        since shipping began anew behind it.
        """

    def number_of(self, lsn: int) -> int:
        """The number of the WAL object with the first batch from `lsn` on, which need not be there yet."""


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
    made: int = 0
    folded_lsn: int = -1
    """Where the journal was synced to when the last snapshot was begun."""
    _sections: Sections = attrs.Factory(dict)
    _sizes: dict[str, int] = attrs.Factory(dict)
    """Of objects of parts."""
    _named: dict[str, frozenset[str]] = attrs.Factory(dict)
    """By snapshot: the keys of its parts."""
    _doomed: deque[tuple[float, list[str]]] = attrs.Factory(deque)

    async def load(self, *, go_on: bool) -> None:
        """Doom what an earlier run left behind. `go_on`: with the parts of the newest snapshot."""
        lines = self.manifest.snapshots
        if go_on and lines:
            with suppress(Missing, BadObject):
                data, _ = await self._asking(partial(self._bucket.get, lines[-1].key))
                self._sections = (await self._store.in_thread(unpack_snapshot, data, lines[-1].key)).sections
        listed = await self._asking(partial(self._bucket.listed, PARTS_PREFIX))
        self._sizes = {each.key: each.bytes for each in listed}
        if not self._settings.delete:
            return
        ours = part_key(self.manifest.epoch, 0, 0)
        left = {each.key for each in listed if each.key < ours}
        for line in lines if left else ():
            self._named[line.key] = await self._names_of(line.key)
            left -= self._named[line.key]
        snapshots = await self._asking(partial(self._bucket.listed, SNAPSHOTS_PREFIX))
        left |= {each.key for each in snapshots if each.key < snapshot_key(self.manifest.epoch, 0)}
        left -= {line.key for line in lines}
        left |= {wal_key(number) for number in range(self.manifest.wal_deleted, self.manifest.wal_first)}
        if left:
            self._doomed.append((trio.current_time() + GRACE_SECONDS, sorted(left)))

    async def make(self, journal: ShippedJournal) -> int | None:
        """Make a snapshot, and have the manifest name it; its LSN, or None where it is of no use any more.

        Raises Fenced, OSError.
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
            while True:
                key = part_key(fold.epoch, lsn, number)
                number += 1
                with suppress(Exists):  # of a fold that was cut short, and had other bytes
                    await self._asking(partial(self._bucket.create, key, part.data))
                    break
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
        except (Stale, Missing):
            raise Fenced from None
        self.manifest = manifest
        due = trio.current_time() + GRACE_SECONDS
        if names := [*doomed, *gone, *wal_gone]:
            self._doomed.append((due, names))

    def _wal_deleted(self) -> int:
        """Below this number all objects are deleted."""
        waiting = [wal_number(name) for _, names in self._doomed for name in names]
        return min((number for number in waiting if number), default=self.manifest.wal_first)

    async def _parts_of_none(self, gone: Sequence[str], kept: Sequence[SnapshotLine]) -> list[str]:
        """Objects of parts that only snapshots name which are gone."""
        if not gone:
            return []
        for key in [*gone, *(each.key for each in kept)]:
            if key not in self._named:
                self._named[key] = await self._names_of(key)
        needed = frozenset[str]().union(*(self._named[each.key] for each in kept))
        unneeded = frozenset[str]().union(*(self._named.pop(key) for key in gone)) - needed
        for name in unneeded:
            self._sizes.pop(name, None)
        return sorted(unneeded)

    async def _names_of(self, key: str) -> frozenset[str]:
        try:
            data, _ = await self._asking(partial(self._bucket.get, key))
            snapshot = await self._store.in_thread(unpack_snapshot, data, key)
        except (Missing, BadObject):
            return frozenset()
        names: frozenset[str] = snapshot.part_keys
        return names

    async def delete_doomed(self) -> None:
        now = trio.current_time()
        while self._doomed and self._doomed[0][0] <= now:
            _, names = self._doomed[0]
            for at in range(0, len(names), DELETED_AT_ONCE):
                await self._asking(partial(self._bucket.delete, names[at : at + DELETED_AT_ONCE]))
            self._doomed.popleft()

    def _stale(self) -> frozenset[str]:
        """Objects of parts less than half of which the last snapshot uses, up to the size of one object."""
        live: dict[str, int] = {}
        for each in self._sections.values():
            for key, section in each:
                live[key] = live.get(key, 0) + section.length
        found, room = [], self._settings.part_bytes
        for key, used in sorted(live.items()):
            size = self._sizes.get(key, 0)
            if size > STALE_LEAST_BYTES and 2 * used < size and used <= room:
                found.append(key)
                room -= used
        return frozenset(found)


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

"""A live folder, taken apart by hand as a shipper does."""

from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from brokers.ship.assembling import ALL, Assembler, Cut, say_finished
from brokers.ship.bucket import Bucket
from brokers.ship.formats import (
    MANIFEST_KEY,
    Manifest,
    NewSection,
    Piece,
    Section,
    Snapshot,
    SnapshotLine,
    Wal,
    WalHead,
    pack_part,
    pack_wal,
    part_key,
    snapshot_key,
    unpack_wal,
    wal_key,
)
from shared.storage import catalog, format, index, replay
from shared.storage.catalog import Catalog
from shared.storage.disk import opened
from shared.storage.format import EntryKind
from shared.storage.os_disk import OsDisk
from shared.storage.store import Store
from tests.support.stores import ALWAYS, open_store, read_all

TIME_MS = 1_700_000_000_000
"""Of all that the stores of tests write."""
Content = dict[str, tuple[int, list[bytes]]]
"""By log: its first offset and its records."""


def reads(texts: Mapping[int, bytes]) -> Callable[[NewSection, memoryview], None]:
    """What has `pack_part` read sections: their bytes by log id."""

    def read(new: NewSection, target: memoryview) -> None:
        target[:] = texts[new.log_id]

    return read


@attrs.define
class Apart:
    """What was shipped of a folder. `instants`: what there was, by the LSN behind it."""

    folder: Path
    snapshot: Catalog = attrs.field(init=False)
    sections: dict[int, tuple[bytes, list[format.IndexEntry]]] = attrs.Factory(dict)
    batches: list[bytes] = attrs.Factory(list)
    pieces: list[list[Piece]] = attrs.Factory(list)
    lsn: int = 0
    instants: list[tuple[int, Content]] = attrs.Factory(list)

    async def snap(self, store: Store) -> None:
        assert await store.checkpoint()
        with OsDisk(self.folder, read_only=True) as disk:
            found = catalog.read(disk)
            assert found is not None
            self.snapshot, self.lsn = found, found.replay_lsn
            for line in [line for line in found.logs if line.end]:
                stored = index.read_index_of(disk, line.index_path, line.id, line.created_ms)
                assert stored is not None
                entries = [entry for entry in stored.entries if entry is not None and entry.end <= line.end]
                start = index.checked_from(entries, line.first)
                with opened(disk, line.log_path) as fd:
                    data = disk.read(fd, line.end - start, start)
                self.sections[line.id] = data, [entry for entry in entries if entry.offset >= start]

    def started(self) -> None:
        with OsDisk(self.folder, read_only=True) as disk:
            found = catalog.read(disk)
            assert found is not None
            assert found.replay_lsn > self.lsn
            self.lsn = found.replay_lsn

    async def ship(self, store: Store) -> None:
        store.commit_pending()
        with OsDisk(self.folder, read_only=True) as disk, replay.Segments(disk) as segments:
            paths = {line.id: line.log_path for line in self.snapshot.logs}
            for found in replay.scan(disk, self.snapshot.journal_id, self.lsn).batches:
                data = segments.read(found.segment, found.batch.size, found.position)
                self.batches.append(data)
                self.pieces.append([])
                self.lsn = found.batch.lsn + found.batch.size
                payload = data[format.BATCH_HEADER_BYTES :][: found.batch.payload_bytes]
                for entry in format.unpack_entries(payload, found.batch.entries) or []:
                    body = payload[entry.body_start : entry.body_end]
                    if entry.kind == EntryKind.CREATE:
                        paths[entry.log_id] = catalog.unpack_create(entry.log_id, body).log_path
                    elif entry.kind == EntryKind.REFERENCE:
                        length, crc = format.unpack_reference(payload, entry) or (0, 0)
                        with opened(disk, paths[entry.log_id]) as fd:
                            there = disk.read(fd, length, entry.offset)
                        self.pieces[-1].append(Piece(entry.log_id, entry.offset, length, crc, there))
        self.instants.append((self.lsn, await content(store)))

    def unpacked(self, at: int) -> Wal:
        data = self.batches[at]
        lsn = batch_lsn(data)
        packed = self._packed(at, lsn, lsn + len(data), [data], self.pieces[at])
        return unpack_wal(packed)

    async def fill(self, bucket: Bucket, every: int = 1) -> None:
        """Put it into a bucket as a shipper does: one snapshot, parts of two logs each, and a WAL object for
        every so many batches, behind the empty one of the epoch."""
        logs = [line for line in self.snapshot.logs if line.id in self.sections]
        sections: dict[int, list[tuple[str, Section]]] = {}
        for number in range(0, len(logs), 2):
            new, texts = [], {}
            for line in logs[number : number + 2]:
                data, entries = self.sections[line.id]
                start = line.end - len(data)
                new.append(NewSection(line.id, line.namespace, line.name, start, line.end, entries))
                texts[line.id] = data
            key = part_key(1, self.snapshot.replay_lsn, number)
            packed, directory = pack_part(new, reads(texts), journal_id=self.snapshot.journal_id, epoch=1)
            await bucket.create(key, packed)
            for section in directory:
                sections[section.log_id] = [(key, section)]
        lsn = self.snapshot.replay_lsn
        key = snapshot_key(1, lsn)
        found = self.snapshot
        packed = Snapshot(1, 3, TIME_MS, lsn, found, found.pack(), sections).pack()
        await bucket.create(key, packed)
        journal_id = f"{self.snapshot.journal_id:016x}"
        snapshots = (SnapshotLine(key, lsn, lsn, TIME_MS, 3, 1, journal_id, len(packed)),)
        manifest = Manifest(1, "writer", journal_id, 3, 4, snapshots=snapshots, url="file:///bucket")
        await bucket.create(MANIFEST_KEY, manifest.pack())
        await bucket.create(wal_key(3), self._packed(3, lsn, lsn, [], []))
        for number, at in enumerate(range(0, len(self.batches), every), 4):
            batches = self.batches[at : at + every]
            end = batch_lsn(batches[-1]) + len(batches[-1])
            pieces = [piece for each in self.pieces[at : at + every] for piece in each]
            await bucket.create(wal_key(number), self._packed(number, lsn, end, batches, pieces))
            lsn = end

    def _packed(
        self, number: int, first: int, end: int, batches: list[bytes], pieces: list[Piece]
    ) -> bytearray:
        head = WalHead(number, 1, self.snapshot.journal_id, first, end, TIME_MS, TIME_MS)
        return pack_wal(head, batches, pieces)

    def put_together(self, target: Path, cut: Cut = ALL, without: int = -1) -> None:
        with OsDisk(target) as disk:
            made = Assembler(disk, self.snapshot, cut)
            made.begin()
            for log_id, line in made.lines.items():
                data, entries = self.sections.get(log_id, (b"", []))
                made.place(log_id, line.end - len(data), data)
                made.complete(log_id, entries)
            try:
                for at in range(len(self.batches)):
                    if at != without and not made.reached:
                        made.take(self.unpacked(at))
            finally:
                made.finish(0)
                say_finished(disk)


def batch_lsn(data: bytes) -> int:
    batch = format.unpack_batch(data)
    assert batch is not None
    return batch.lsn


async def content(store: Store) -> Content:
    found: Content = {}
    for namespace in ("one", "two"):
        for name, log in store.namespace(namespace, ALWAYS).logs.items():
            found[f"{namespace}/{name}"] = log.first, await read_all(log)
    return found


async def restored(target: Path) -> Content:
    store = await open_store(folder=target)
    try:
        assert not store.statistics().journal_damages
        assert not store.statistics().torn_bytes
        return await content(store)
    finally:
        await store.close()

"""A live folder, taken apart by hand as a shipper does."""

from pathlib import Path

import attrs

from brokers.ship.assembling import ALL, Assembler, Cut
from brokers.ship.formats import Piece, Wal, pack_wal, unpack_wal
from shared.storage import catalog, format, index, replay
from shared.storage.catalog import Catalog
from shared.storage.disk import opened
from shared.storage.format import EntryKind
from shared.storage.os_disk import OsDisk
from shared.storage.store import Store
from tests.support.stores import ALWAYS, open_store, read_all

Content = dict[str, tuple[int, list[bytes]]]
"""By log: its first offset and its records."""


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
                    self.sections[line.id] = disk.read(fd, line.end - start, start), entries

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
        packed = pack_wal(
            number=at,
            epoch=1,
            journal_id=self.snapshot.journal_id,
            first_lsn=lsn,
            next_lsn=lsn + len(data),
            now_ms=0,
            batches=[data],
            pieces=self.pieces[at],
        )
        return unpack_wal(packed)

    def put_together(
        self, target: Path, cut: Cut = ALL, only: str = "", without: tuple[int, ...] = ()
    ) -> int:
        with OsDisk(target) as disk:
            made = Assembler(disk, self.snapshot, cut, lambda line: only in line.name)
            made.begin()
            for log_id, line in made.lines.items():
                data, entries = self.sections.get(log_id, (b"", []))
                made.place(log_id, line.end - len(data), data)
                made.complete(log_id, entries)
            try:
                for at in range(len(self.batches)):
                    if at not in without and not made.reached:
                        made.take(self.unpacked(at))
            finally:
                end = made.finish(0)
            return end


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

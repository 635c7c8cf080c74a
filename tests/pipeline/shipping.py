"""A data folder's logs in a bucket, as a shipper's fold leaves them: in several parts each."""

from itertools import pairwise
from pathlib import Path

import trio

from brokers.ship.bucket import Bucket, Missing
from brokers.ship.formats import (
    MANIFEST_KEY,
    Manifest,
    NewSection,
    Section,
    Snapshot,
    SnapshotLine,
    pack_part,
    part_key,
    snapshot_key,
    unpack_manifest,
)
from brokers.ship.settings import ShipSettings
from brokers.ship.stores import open_bucket
from shared.storage import catalog, index
from shared.storage.disk import opened
from shared.storage.os_disk import OsDisk
from tests.brokers.ship.apart import reads

PARTS = 3


def ship(data: Path, url: str, time_ms: int = 1000, encrypt: Path | None = None, endpoint: str = "") -> None:
    """Add a snapshot of a folder whose store is closed, with its own parts."""
    settings = ShipSettings(url=url, encrypt=encrypt, endpoint=endpoint)
    trio.run(_ship, data, open_bucket(settings), time_ms)


async def _ship(data: Path, bucket: Bucket, time_ms: int) -> None:
    with OsDisk(data, create=False, read_only=True) as disk:
        found = catalog.read(disk)
        assert found is not None
        sections: dict[int, list[tuple[str, Section]]] = {}
        for line in found.logs:
            if line.end == line.first:
                continue
            stored = index.read_index_of(disk, line.index_path, line.id, line.created_ms)
            assert stored is not None
            entries = [entry for entry in stored.entries if entry is not None and entry.end > line.first]
            edges = sorted({len(entries) * number // PARTS for number in range(PARTS + 1)})
            for low, high in pairwise(edges):
                some = entries[low:high]
                first, end = some[0].offset, some[-1].end
                with opened(disk, line.log_path) as fd:
                    records = disk.read(fd, end - first, first)
                new = NewSection(line.id, line.namespace, line.name, first, end, some)
                key = part_key(1, found.replay_lsn, line.id * PARTS + low)
                packed, (section,) = pack_part(
                    [new], reads({line.id: records}), journal_id=found.journal_id, epoch=1
                )
                await bucket.create(key, packed)
                sections.setdefault(line.id, []).append((key, section))
    lsn = found.replay_lsn
    snapshot = Snapshot(1, 1, time_ms, lsn, found, found.pack(), sections).pack()
    key, journal_id = snapshot_key(1, lsn), f"{found.journal_id:016x}"
    await bucket.create(key, snapshot)
    line_of = SnapshotLine(key, lsn, lsn, time_ms, 1, 1, journal_id, len(snapshot))
    try:
        there, etag = await bucket.get(MANIFEST_KEY)
    except Missing:
        await bucket.create(MANIFEST_KEY, Manifest(1, "w", journal_id, 1, 1, snapshots=(line_of,)).pack())
        return
    before = unpack_manifest(there).snapshots
    await bucket.replace(
        MANIFEST_KEY, Manifest(1, "w", journal_id, 1, 1, snapshots=(*before, line_of)).pack(), etag
    )

"""Reading a whole bucket, and having a folder take one over."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import trio

from brokers.errors import ExitCode, Failure
from brokers.ship import epochs
from brokers.ship.bucket import Bucket, Missing, Stale
from brokers.ship.formats import (
    MANIFEST_KEY,
    PARTS_PREFIX,
    SHIP_PATH,
    SNAPSHOTS_PREFIX,
    WAL_PREFIX,
    BadObject,
    FolderMark,
    Manifest,
    WalHead,
    check_part,
    continues,
    left_in,
    unpack_snapshot,
    unpack_wal,
)
from brokers.ship.restore import read_manifest
from shared.storage import catalog as catalog_file
from shared.storage.disk import replace_file
from shared.storage.lock import FolderLock
from shared.storage.os_disk import OsDisk
from shared.storage.threads import Threads

_READS = 4
"""Objects in memory at once."""


@attrs.frozen
class BucketReport:
    """`faults`: what is damaged or missing, by name. `histories`: runs of WAL objects that go on from each
    other; more than one: shipping began anew between them."""

    objects: int
    bytes: int
    snapshots: int
    wal_objects: int
    histories: int
    faults: Sequence[str]


async def verify_bucket(bucket: Bucket, progress: Callable[[int, int], None]) -> BucketReport:
    """Read all objects. Raises Failure where there is no manifest, and BucketErrors."""
    manifest = await read_manifest(bucket)
    faults: list[str] = []
    heads: dict[str, WalHead] = {}
    named: dict[str, frozenset[str]] = {}
    listed = [
        each
        for prefix in (SNAPSHOTS_PREFIX, PARTS_PREFIX, WAL_PREFIX)
        for each in await bucket.retried(lambda prefix=prefix: bucket.listed(prefix))  # type: ignore[misc]
    ]
    total, done = sum(each.bytes for each in listed), 0
    in_thread, slots = Threads(), trio.CapacityLimiter(_READS)

    def look(key: str, data: bytes) -> None:
        if key.startswith(WAL_PREFIX):
            heads[key] = unpack_wal(data, key).head
        elif key.startswith(SNAPSHOTS_PREFIX):
            named[key] = unpack_snapshot(data, key).part_keys
        else:
            check_part(data, key)

    async def read(key: str, size: int) -> None:
        nonlocal done
        async with slots:
            try:
                data, _ = await bucket.retried(lambda: bucket.get(key))
                await in_thread(look, key, data)
            except BadObject as error:
                faults.append(str(error))
            except Missing:
                pass  # deleted meanwhile; it is missed below if it is needed
        done += size
        progress(done, total)

    async with trio.open_nursery() as nursery:
        for each in listed:
            nursery.start_soon(read, each.key, each.bytes)
    there = {each.key for each in listed}
    for line in manifest.snapshots:
        if line.key not in there:
            faults.append(f"{line.key}: missing, and the manifest names it")
        for key in sorted(named.get(line.key, frozenset()) - there):
            faults.append(f"{key}: missing, and {line.key} needs it")
    faults += _holes(manifest, there)
    ordered = [heads[key] for key in sorted(heads)]
    breaks = sum(not continues(*pair) for pair in pairwise(ordered))
    return BucketReport(
        objects=len(listed) + 1,
        bytes=total,
        snapshots=len(named),
        wal_objects=len(heads),
        histories=breaks + 1 if ordered else 0,
        faults=faults,
    )


def _holes(manifest: Manifest, there: set[str]) -> list[str]:
    numbers = sorted(int(key.removeprefix(WAL_PREFIX)) for key in there if key.startswith(WAL_PREFIX))
    wanted = range(manifest.wal_first, (numbers[-1] if numbers else 0) + 1)
    return [f"{WAL_PREFIX}{number:020d}: missing" for number in sorted({*wanted} - {*numbers})]


async def adopt_bucket(bucket: Bucket, url: str, folder: Path) -> Mapping[str, Any]:
    """Have the next server on a folder ship to the bucket, whatever that has. Raises StoreInUse, Failure,
    BadObject, BucketErrors, OSError."""
    lock = FolderLock.take(folder)
    try:
        with OsDisk(folder, create=False) as disk:
            catalog = catalog_file.read(disk)
            if catalog is None:
                raise Failure(f"{folder} is not a data folder", ExitCode.DATA_FOLDER)
            journal_id, writer = f"{catalog.journal_id:016x}", epochs.new_writer()
            while True:
                found = await epochs.read_manifest(bucket)
                if found is None:
                    raise Failure(
                        f"there is no {MANIFEST_KEY} in the bucket: a start takes it as it is",
                        ExitCode.MISSING,
                    )
                number = await epochs.newest_wal(bucket, found[0].wal_next - 1)
                now_ms = time.time_ns() // 1_000_000
                new = Manifest(1, writer, journal_id, 1, number + 1, written_ms=now_ms, url=url)
                try:
                    manifest, _ = await epochs.take_epoch(bucket, found, new)
                except Stale:
                    continue
                break
            mark = FolderMark(
                url,
                journal_id,
                manifest.epoch,
                number,
                0,
                anew=True,
                writers=(writer,),
                left=left_in(catalog),
            )
            replace_file(disk, SHIP_PATH, mark.pack())
    finally:
        lock.release()
    return {"folder": str(folder), "url": url, "epoch": manifest.epoch, "wal_objects": number}

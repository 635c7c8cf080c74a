"""Logs whose head is in a bucket only: what is read, what a crash leaves, what the tools say."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import BucketAway, CorruptRecord, OutOfRange, StoreError
from shared.storage import catalog, format
from shared.storage.disk import replace_file
from shared.storage.log import Log
from shared.storage.os_disk import OsDisk
from shared.storage.store import Retention, Store
from shared.storage.tools.backup import backup, backup_files
from shared.storage.tools.fsck import Severity, check
from shared.storage.tools.logs import DamagedRow, RecordRow, log_dump
from shared.units import KIB
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    SMALL,
    HandClock,
    append,
    ask,
    open_store,
    payloads,
    read_all,
    reopen,
)


class Bucket:
    """The bytes of one log, as a bucket has them. `error`: what it answers instead."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.error: StoreError | None = None
        self.asked: list[tuple[int, int]] = []

    def read(self, log: Log, offset: int, length: int, done: object) -> None:
        self.asked.append((offset, length))
        assert callable(done)
        done(self.data[offset : offset + length] if self.error is None else self.error)


async def filled(store: Store, sizes: list[int]) -> tuple[Log, Bucket, list[tuple[int, bytes]]]:
    """A log whose records are in its file; each with its offset."""
    log, _ = store.namespace("logmq", ALWAYS, plain_names=True).create("orders")
    written = []
    for number, size in enumerate(sizes):
        payload = b"%06d" % number + bytes([number % 251]) * size
        written.append((log.end, payload))
        await append(store, log, payload)
        assert isinstance(store.clock, HandClock)
        store.clock.advance(0.1)
    assert await store.checkpoint()
    data = b"".join(len(payload).to_bytes(4, "big") + payload for _, payload in written)
    bucket = Bucket(data)
    store.read_remotely(bucket.read)
    return log, bucket, written


async def leave(store: Store, log: Log, offset: int) -> None:
    store.retention.leave_to_bucket(log, offset)
    assert await store.checkpoint()
    await store.retain()


def boundaries(log: Log) -> list[int]:
    return [entry.end for entry in log.index_entries(0, log.end) if entry.end <= log.tail_start]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
async def test_any_offset_reads_what_was_written(data: st.DataObject) -> None:
    store = await open_store(disk := FakeDisk())
    sizes = data.draw(st.lists(st.sampled_from([0, 30, 3000, 40_000, 150_000]), min_size=3, max_size=25))
    log, bucket, written = await filled(store, sizes)
    for _ in range(data.draw(st.integers(1, 2))):
        await leave(store, log, max(data.draw(st.sampled_from(boundaries(log))), log.local))
        if data.draw(st.booleans()):
            store, disk = await reopen(store, disk)
            log = store.namespace("logmq", ALWAYS).logs["orders"]
            store.read_remotely(bucket.read)
    held = disk.contents()["logmq/orders.log"]
    assert not any(held[: log.local // 4096 * 4096]), "the space is given back"
    most = data.draw(st.sampled_from([1, 5000, 64 * KIB, 1 << 20, 64 << 20]))
    for number, (offset, payload) in enumerate(written):
        found = payloads(await ask(log.read, offset, most))
        assert found[0] == payload
        assert found == [each for _, each in written[number : number + len(found)]]
        chunk = await ask(log.read_chunk, offset, most)
        assert payloads(chunk.read(1 << 30))[0] == payload
        chunk.release()
        assert await ask(log.is_record_start, offset) is True
        assert isinstance(await ask(log.is_record_start, offset + 1), StoreError)
    assert await read_all(log) == [payload for _, payload in written]


async def test_one_request_has_many_records_and_local_ones_ask_nothing() -> None:
    store = await open_store(FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 100)
    await leave(store, log, boundaries(log)[-3])
    await ask(log.read, 0, 1 << 20)
    assert len(bucket.asked) == 1
    assert bucket.asked[0][1] > 900_000
    bucket.asked.clear()
    bucket.error = BucketAway("it does not answer")
    offset = next(offset for offset, _ in written if offset >= log.local)
    assert payloads(await ask(log.read, offset, 1 << 20))
    assert not bucket.asked
    assert await ask(log.read, 0, 100) is bucket.error
    assert log.seek(0) == 0
    assert log.index_entries(0, 1), "the index stays here"


async def test_wrong_bytes_of_a_bucket_are_no_records() -> None:
    store = await open_store(FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 30)
    await leave(store, log, boundaries(log)[-1])
    second = written[8][0]
    bucket.data = bucket.data[: second + 100] + b"X" + bucket.data[second + 101 :]
    good = await ask(log.read, 0, 1 << 20)
    assert payloads(good) == [payload for _, payload in written[: len(payloads(good))]]
    assert isinstance(await ask(log.read, second, 1 << 20), CorruptRecord)


async def test_nothing_is_dropped_before_the_catalog_says_so() -> None:
    """A crash between the drop and its record: then all is here, or it is said where it is."""
    store = await open_store(disk := FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 30)
    store.retention.leave_to_bucket(log, boundaries(log)[-1])
    await store.retain()
    assert log.local
    store, disk = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert log.local == 0
    assert await read_all(log) == [payload for _, payload in written]

    store.retention.leave_to_bucket(log, boundaries(log)[-1])
    assert await store.checkpoint()
    killed: list[FakeDisk] = []

    def before(operation: Operation) -> None:
        if operation.kind == "punch" and not killed:
            killed.append(disk.power_cut().boot())

    disk.before = before
    await store.retain()
    after = await open_store(killed[0])
    log = after.namespace("logmq", ALWAYS).logs["orders"]
    after.read_remotely(bucket.read)
    assert log.local
    assert await read_all(log) == [payload for _, payload in written]


async def test_space_stays_while_somebody_reads_there(tmp_path: Path) -> None:
    store = await Store.open(tmp_path, SMALL, clock=HandClock())
    log, _, written = await filled(store, [20_000] * 10)
    chunk = await ask(log.read_chunk, 0, 64 * KIB)
    await leave(store, log, boundaries(log)[-1])
    file = tmp_path / "logmq/orders.log"
    assert payloads(chunk.read(1 << 30))[0] == written[0][1]
    chunk.release()
    await store.retain()
    assert not any(file.read_bytes()[: log.local // 4096 * 4096])
    await store.close()


async def test_retention_passes_what_is_local_and_deletion_asks_no_bucket() -> None:
    store = await open_store(disk := FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 30)
    await leave(store, log, boundaries(log)[1])
    log.retention = Retention(bytes_kept=30_000)
    await store.retain()
    assert log.first > log.local
    assert isinstance(await ask(log.read, 0, 100), OutOfRange)
    assert await read_all(log) == [payload for offset, payload in written if offset >= log.first]
    assert await store.checkpoint()
    store, disk = await reopen(store, disk)
    line = catalog.read(disk)
    assert line is not None
    assert [each.local for each in line.logs if each.name == "orders"] == [0]
    await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))
    assert not bucket.asked


async def test_without_its_index_what_the_bucket_has_is_an_error_and_not_empty_records() -> None:
    store = await open_store(disk := FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 30)
    await leave(store, log, boundaries(log)[-3])
    await store.close()
    disk.unlink("logmq/orders.idx")
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    store.read_remotely(bucket.read)
    assert isinstance(await ask(log.read, 0, 100), CorruptRecord)
    found = payloads(await ask(log.read, log.local, 1 << 20))
    assert found == [payload for offset, payload in written if offset >= log.local][: len(found)]


@pytest.mark.parametrize("live", [False, True])
async def test_tools_say_what_is_in_the_bucket_only(tmp_path: Path, live: bool) -> None:
    folder = tmp_path / "data"
    store = await Store.open(folder, SMALL, clock=HandClock())
    log, _, written = await filled(store, [20_000] * 30)
    await leave(store, log, local := boundaries(log)[-3])
    if live:
        report = await backup_files(store, folder, tmp_path / "copy", now_ms=0)
    await store.close()
    if not live:
        report = backup(folder, tmp_path / "copy", now_ms=0)
    for each in (folder, tmp_path / "copy"):
        found = check(each)
        assert found.ok
        notes = [finding for finding in found.findings if finding.severity is Severity.NOTE]
        assert [(note.offset, note.length) for note in notes if "bucket" in note.text] == [(0, local)]
        rows = list(log_dump(each, "logmq", "orders"))
        assert sum(row.length for row in rows if isinstance(row, DamagedRow)) == local
        told = [row.payload for row in rows if isinstance(row, RecordRow)]
        assert told == [payload for offset, payload in written if offset >= local]
    assert report.check.ok
    with OsDisk(tmp_path / "copy", create=False) as disk:
        lines = catalog.read(disk)
    assert lines is not None
    assert lines.logs[0].local == local


@pytest.mark.parametrize("says", ["left", "nothing", "damaged"])
async def test_a_catalog_that_is_lost_keeps_what_the_bucket_has(says: str) -> None:
    """The folder's mark says whether the hole at a log's head is retention's."""
    store = await open_store(disk := FakeDisk())
    log, bucket, written = await filled(store, [20_000] * 30)
    await leave(store, log, local := boundaries(log)[-3])
    await store.close()
    disk.unlink("CATALOG")
    mark = format.pack_lines([{"ship": 1, **({"left": [log.id]} if says == "left" else {})}])
    replace_file(disk, "SHIP", b"?" if says == "damaged" else mark)
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    store.read_remotely(bucket.read)
    first = local if says == "nothing" else 0
    assert (log.first, log.local) == (first, local - first)
    assert await read_all(log) == [payload for offset, payload in written if offset >= first]

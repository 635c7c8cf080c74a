"""Logs whose head is in the bucket only: what leaves the disk, what is read, and what the bucket keeps."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import attrs
import pytest
import structlog.testing
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from brokers.ship.assembling import Cut
from brokers.ship.cipher import Cipher
from brokers.ship.follow import Follow, read_follow
from brokers.ship.formats import (
    MANIFEST_KEY,
    PARTS_PREFIX,
    SHIP_PATH,
    unpack_manifest,
    unpack_mark,
    unpack_snapshot,
)
from brokers.ship.remote import ANSWER_SECONDS, BLOCK_BYTES, CACHE_BYTES, RemoteReader
from brokers.ship.restore import Restore
from shared.budget import Account
from shared.errors import BucketAway, CorruptRecord, StoreError
from shared.storage import catalog, format
from shared.storage.disk import replace_file
from shared.storage.log import Log, read_records
from shared.storage.os_disk import OsDisk
from shared.storage.settings import Retention
from shared.storage.store import Store
from shared.units import KIB
from tests.brokers.ship.fake_bucket import FakeStore, bucket_of
from tests.brokers.ship.reassembled import assembled
from tests.brokers.ship.ships import ALWAYS, SETTINGS, Shipped, shipped
from tests.support.fake_disk import FakeDisk
from tests.support.stores import SMALL, inline, payloads, read_all

LEAVES = attrs.evolve(SETTINGS, part_bytes=64 * KIB, fold=30, interval=5, retention_seconds=60)
STORAGE = attrs.evolve(SMALL, retention_seconds=5.0)


def record(number: int, size: int = 5000) -> bytes:
    return b"%06d" % number + bytes([number % 251]) * size


async def fill(ship: Shipped, start: int, stop: int, size: int = 5000) -> None:
    for number in range(start, stop):
        await ship.append("a", record(number, size))


async def left(ship: Shipped, keep: int = 20_000) -> Log:
    """Wait until the log has left to the bucket what it may."""
    log = ship.log("a")
    log.local_retention = Retention(bytes_kept=keep)
    before = log.local
    with trio.fail_after(10_000):
        while log.local == before or log.local_kept < log.local:  # noqa: ASYNC110 - the clock jumps
            await trio.sleep(1)
        await trio.sleep(2 * STORAGE.retention_seconds)
    return log


def held(disk: FakeDisk) -> bytes:
    return next(data for name, data in disk.contents().items() if name.endswith("/a.log"))


@pytest.mark.parametrize("cipher", [None, Cipher(bytes(32))])
async def test_what_the_bucket_has_leaves_the_disk_and_is_read_there(
    autojump_clock: Any, cipher: Cipher | None
) -> None:
    disk, store = FakeDisk(), FakeStore()
    async with shipped(disk, store, LEAVES, STORAGE, cipher) as ship:
        await fill(ship, 0, 60)
        log = await left(ship)
        assert 200_000 < log.local < log.end
        assert not any(held(disk)[: log.local // 4096 * 4096])
        asked = len(store.asked)
        assert await read_all(log) == [record(number) for number in range(60)]
        assert len(store.asked) - asked < 20
        asked = len(store.asked)
        await read_records(log, 0, 1 << 20)
        assert len(store.asked) == asked, "it is kept"
    if cipher is not None:
        return
    assert assembled(store.objects).logs["logs", "a"] == b"".join(
        format.record(record(number)) for number in range(60)
    )


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_offset_is_what_was_written_however_the_bucket_fails(data: st.DataObject) -> None:
    """Kills, requests that fail, and much time: what was written is read, or it is an error by name."""
    trio.run(_model, data, clock=trio.testing.MockClock(autojump_threshold=0))


async def _model(data: st.DataObject) -> None:
    disk, store = FakeDisk(), FakeStore()
    written: list[bytes] = []
    offsets: list[int] = []
    for _ in range(data.draw(st.integers(2, 4))):
        faults = data.draw(st.sets(st.integers(0, 60), max_size=8))
        now = len(store.asked)
        kinds = st.sampled_from(["refused", "lost", "doubled"])
        store.faults |= {now + at: data.draw(kinds) for at in faults}
        async with shipped(disk, store, LEAVES, STORAGE, close=data.draw(st.booleans())) as ship:
            log = ship.log("a")
            keep = data.draw(st.sampled_from([0, 1, 30_000, 150_000]))
            log.local_retention = Retention(bytes_kept=keep or None, ms_kept=None if keep else 40_000)
            for _ in range(data.draw(st.integers(0, 15))):
                offsets.append(log.end)
                written.append(record(len(written), data.draw(st.sampled_from([0, 3000, 30_000]))))
                await ship.append("a", written[-1])
            await trio.sleep(data.draw(st.sampled_from([0, 40, 90])))
            for number in (
                data.draw(st.lists(st.sampled_from(range(len(offsets))), max_size=5)) if offsets else ()
            ):
                try:
                    found = payloads(await read_records(log, offsets[number], 40_000))
                except BucketAway:
                    continue
                assert found == written[number : number + len(found)]
                assert found
        disk = disk.kill()
    store.faults.clear()
    async with shipped(disk, store, LEAVES, STORAGE) as ship:
        await ship.even()
        assert await read_all(ship.log("a")) == written
    assert assembled(store.objects).logs.get(("logs", "a"), b"") == b"".join(map(format.record, written))


async def test_garbage_never_has_what_no_disk_has(autojump_clock: Any) -> None:
    disk, store = FakeDisk(), FakeStore()
    async with shipped(disk, store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        log = await left(ship)
        for number in range(60, 75):  # many snapshots, and what they pass is deleted
            await fill(ship, number, number + 1)
            await trio.sleep(60)
        assert any(operation == "delete" for operation, _ in store.asked)
        log.retention = Retention(bytes_kept=200_000)
        await trio.sleep(60)
        first = log.first
        assert 0 < first < log.local
        expected = [record(number) for number in range(75)][-len(await read_all(log)) :]
        assert await read_all(log) == expected
    async with shipped(disk.kill(), store, LEAVES, STORAGE) as ship:
        assert await read_all(ship.log("a")) == expected


async def test_a_bucket_that_is_away_is_an_error_and_local_readers_do_not_wait(autojump_clock: Any) -> None:
    store = FakeStore()
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        log = await left(ship)
        store.away = True
        began = trio.current_time()
        assert await read_records(log, log.local, 1 << 20)
        assert trio.current_time() == began
        with pytest.raises(BucketAway):
            await read_records(log, 0, 1 << 20)
        assert trio.current_time() - began <= ANSWER_SECONDS
        assert ship.remote.errors == 1
        store.away = False
        assert await read_all(log) == [record(number) for number in range(60)]


async def test_a_fenced_writer_drops_nothing(autojump_clock: Any) -> None:
    disk, store = FakeDisk(), FakeStore()
    async with shipped(disk, store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await ship.even()
        await trio.sleep(2 * LEAVES.fold)
        async with shipped(FakeDisk.kill(disk), store, LEAVES, STORAGE):  # takes the epoch
            ship.log("a").local_retention = Retention(bytes_kept=1)
            await trio.sleep(3 * LEAVES.fold)
        assert ship.shipper.state == "fenced"
        assert ship.log("a").local == 0


async def test_a_fenced_server_reads_what_only_the_bucket_has_wherever_the_other_one_puts_it(
    autojump_clock: Any,
) -> None:
    disk, store = FakeDisk(), FakeStore()
    async with shipped(disk, store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        log = await left(ship)
        async with shipped(disk.kill(), store, LEAVES, STORAGE, close=False):  # takes the epoch
            await fill(ship, 60, 61)
            await trio.sleep(5)
        assert ship.shipper.state == "fenced"
        manifest = unpack_manifest(store.objects[MANIFEST_KEY])
        newest = manifest.snapshots[-1]
        snapshot = unpack_snapshot(store.objects[newest.key])
        moved = {key: f"{PARTS_PREFIX}other-{key.removeprefix(PARTS_PREFIX)}" for key in snapshot.part_keys}
        for key, name in moved.items():
            store.objects[name] = store.objects.pop(key)
        sections = {
            log_id: [(moved[key], section) for key, section in placed]
            for log_id, placed in snapshot.sections.items()
        }
        store.objects[newest.key] = bytes(attrs.evolve(snapshot, sections=sections).pack())
        assert log.local
        assert await read_all(log) == [record(number) for number in range(61)]


@pytest.mark.parametrize("gone", [False, True])
async def test_what_the_bucket_does_not_have_stays(autojump_clock: Any, gone: bool) -> None:
    """An object that somebody has deleted or changed is no reason to drop what it should have."""
    store = FakeStore()
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await ship.even()
        await trio.sleep(2 * LEAVES.fold)
        for key in [key for key in store.objects if key.startswith("parts/")]:
            store.objects[key] = store.objects[key][:-70_000] + bytes(70_000)
            if gone:
                del store.objects[key]
        log = ship.log("a")
        log.local_retention = Retention(bytes_kept=1)
        await trio.sleep(5 * LEAVES.fold)
        assert log.local == 0
        assert await read_all(log) == [record(number) for number in range(60)]


async def test_memory_for_what_was_read_is_bounded_and_given_back(autojump_clock: Any) -> None:
    store = FakeStore()
    async with shipped(FakeDisk(), store, attrs.evolve(LEAVES, part_bytes=4 << 20), STORAGE) as ship:
        account = ship.remote.account = Account("bucket", 3 * BLOCK_BYTES // 2)
        await fill(ship, 0, 120, 40_000)
        log = await left(ship)
        assert log.local > 2 * BLOCK_BYTES
        assert len(await read_all(log)) == 120
        assert ship.remote.cached_bytes == account.used_bytes <= account.limit_bytes
        assert account.limit_bytes < CACHE_BYTES


def on_disk(store: FakeStore, folder: Path, **options: Any) -> Any:
    return Restore(bucket_of(store), folder, **options)


async def test_a_restore_leaves_it_in_the_bucket_unless_the_folder_is_to_stand_alone(
    autojump_clock: Any, tmp_path: Path
) -> None:
    store = FakeStore()
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await left(ship)
        await fill(ship, 60, 61)  # the next snapshot says what the disk has no longer
        await trio.sleep(2 * LEAVES.fold)
        local, lsn = ship.log("a").local, ship.shipper.shipping.shipped_lsn
    asks: dict[str, Callable[[Path], Any]] = {
        "stays": lambda folder: on_disk(store, folder),
        "whole": lambda folder: on_disk(store, folder, whole=True),
        "older": lambda folder: on_disk(store, folder, cut=Cut(lsn=lsn)),
        "some": lambda folder: on_disk(store, folder, only=["logs:a"]),
    }
    for name, ask in asks.items():
        report = await ask(tmp_path / name).run(verify_full=True)
        assert not report.missing
        assert report.check.ok
        assert report.stays_in_bucket_bytes == (local if name == "stays" else 0)
        with OsDisk(tmp_path / name, create=False) as disk:
            found = catalog.read(disk)
        assert found is not None
        assert [line.local for line in found.logs] == [local if name == "stays" else 0]
    data = (tmp_path / "stays/logs/a.log").read_bytes()
    assert not any(data[:local])
    opened = await Store.open(tmp_path / "whole", SMALL)
    log = opened.namespace("logs", ALWAYS).logs["a"]
    assert await read_all(log) == [record(number) for number in range(61)]
    await opened.close()
    opened = await Store.open(tmp_path / "stays", SMALL)
    log = opened.namespace("logs", ALWAYS).logs["a"]
    with pytest.raises(StoreError, match="in a bucket only") as caught:
        await read_records(log, 0, 100)
    assert not isinstance(caught.value, CorruptRecord)
    await opened.close()


async def test_a_follower_reads_it_in_the_bucket_wherever_snapshots_put_it(
    autojump_clock: Any, tmp_path: Path
) -> None:
    store, folder = FakeStore(), tmp_path / "follower"
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await left(ship)
        await fill(ship, 60, 61)
        await trio.sleep(2 * LEAVES.fold)
        await Restore(bucket_of(store), folder, follows=True).run()
        came = read_follow(folder)
        assert came is not None
        opened = await Store.open(folder, SMALL, in_thread=inline)  # for a thread the clock would not wait
        follow = Follow(opened, bucket_of(store), SETTINGS.url, came[1], ship.shipper.log)
        await follow.start()
        remote = RemoteReader.of(follow.bucket, follow.sections_of, follow.refresh, follow.log)
        opened.read_remotely(remote.read)
        log = opened.namespace("logs", ALWAYS).logs["a"]
        assert log.local
        async with trio.open_nursery() as nursery:
            nursery.start_soon(remote.run)
            await trio.sleep(1)
            assert await read_all(log) == [record(number) for number in range(61)]
            asked = len(store.asked)
            assert await read_all(log)
            assert len(store.asked) == asked
            nursery.cancel_scope.cancel()
        await opened.close()


async def test_a_follower_whose_disk_refuses_what_comes_stands_and_serves(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folder = FakeStore(), tmp_path / "follower"
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 10)
        await ship.even()
        await Restore(bucket_of(store), folder, follows=True).run()
        came = read_follow(folder)
        assert came is not None
        opened = await Store.open(folder, SMALL, in_thread=inline)
        follow = Follow(opened, bucket_of(store), SETTINGS.url, came[1], ship.shipper.log)
        await follow.start()

        def full(*_: object) -> Any:
            raise OSError(errno.ENOSPC, "full")

        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            monkeypatch.setattr(OsDisk, "write", full)
            await fill(ship, 10, 20)
            await ship.even()
            with structlog.testing.capture_logs() as told:
                await follow.run()
            assert follow.state == "standing"
            assert [line["event"] for line in told if "look at the disk" in line["event"]]
            log = opened.namespace("logs", ALWAYS).logs["a"]
            assert await read_all(log) == [record(number) for number in range(10)]
            monkeypatch.undo()
            nursery.cancel_scope.cancel()
        opened.abandon()


async def test_a_start_without_a_bucket_serves_what_is_local_and_the_rest_once_it_is_back(
    autojump_clock: Any,
) -> None:
    disk, store = FakeDisk(), FakeStore()
    async with shipped(disk, store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await left(ship)
    store.away = True
    async with shipped(disk.kill(), store, LEAVES, STORAGE) as ship:
        log = ship.log("a")
        assert await read_records(log, log.local, 1 << 20)
        with pytest.raises(BucketAway):
            await read_records(log, 0, 1 << 20)
        await fill(ship, 60, 70)
        store.away = False
        await ship.even()
        await trio.sleep(2 * LEAVES.fold)
        assert await read_all(log) == [record(number) for number in range(70)]
    assert assembled(store.objects).logs["logs", "a"] == b"".join(
        format.record(record(number)) for number in range(70)
    )


@pytest.mark.parametrize("waits", [False, True])
async def test_shipping_that_begins_anew_goes_on_with_what_only_the_bucket_has(
    autojump_clock: Any, waits: bool
) -> None:
    """After an adoption, and where more waited than may."""
    disk, store = FakeDisk(), FakeStore()
    settings = attrs.evolve(LEAVES, backlog=100_000)
    async with shipped(disk, store, settings, STORAGE) as ship:
        await fill(ship, 0, 60)
        await left(ship)
        if waits:
            store.away = True
            await fill(ship, 60, 100)
            await trio.sleep(100)
            assert ship.shipper.forgotten
            store.away = False
            await ship.even()
    after = disk.kill()
    if not waits:
        manifest = unpack_manifest(store.objects[MANIFEST_KEY])
        mark = unpack_mark(after.contents()[SHIP_PATH])
        assert mark is not None
        assert mark.left
        adopted = attrs.evolve(mark, anew=True, lsn=0, starts=())
        replace_file(after, SHIP_PATH, adopted.pack())
        assert manifest.epoch == mark.epoch
    async with shipped(after, store, settings, STORAGE) as ship:
        await ship.even()
        await trio.sleep(2 * LEAVES.fold)
        stop = 100 if waits else 60
        assert ship.log("a").local
        assert await read_all(ship.log("a")) == [record(number) for number in range(stop)]
    assert assembled(store.objects).logs["logs", "a"] == b"".join(
        format.record(record(number)) for number in range(stop)
    )


async def test_both_retentions_go_on_beside_each_other(autojump_clock: Any) -> None:
    store = FakeStore()
    async with shipped(FakeDisk(), store, LEAVES, STORAGE) as ship:
        await fill(ship, 0, 1)
        log = ship.log("a")
        log.retention, log.local_retention = Retention(bytes_kept=150_000), Retention(bytes_kept=20_000)
        with structlog.testing.capture_logs() as told:
            for number in range(1, 90, 3):
                await fill(ship, number, number + 3)
                await trio.sleep(LEAVES.fold)
        assert log.first > 200_000
        assert log.local > log.first
        assert await read_all(log) == [record(number) for number in range(91)][-len(await read_all(log)) :]
    assert [line for line in told if line["log_level"] in ("warning", "error")] == []


async def test_who_waits_at_a_shutdown_gets_an_error_which_is_no_fault_of_the_bucket(
    autojump_clock: Any,
) -> None:
    store = FakeStore()
    async with trio.open_nursery() as nursery:

        async def read(log: Log) -> None:
            with pytest.raises(BucketAway, match="shutting down"):
                await read_records(log, 0, 1 << 20)

        async with shipped(FakeDisk(), store, LEAVES, STORAGE, close=False) as ship:
            await fill(ship, 0, 60)
            log = await left(ship)
            store.away = True
            nursery.start_soon(read, log)
            await trio.sleep(1)
    assert (ship.remote.reads, ship.remote.errors) == (1, 0)


async def test_what_retention_dropped_while_it_was_compared_is_not_left_again(autojump_clock: Any) -> None:
    async with shipped(FakeDisk(), FakeStore(), LEAVES, STORAGE) as ship:
        await fill(ship, 0, 60)
        await ship.even()
        await trio.sleep(2 * LEAVES.fold)
        log = ship.log("a")
        log.local_retention = Retention(bytes_kept=20_000)
        journal = create_autospec(ship.shipper, instance=True)

        async def drop(_: int) -> None:
            await ship.store.wait(log.drop_below(log.visible))

        journal.note_left.side_effect = drop
        assert ship.shipper.snapshots is not None
        await ship.shipper.snapshots.leave(journal)
        assert journal.note_left.called
        assert (ship.store.statistics().left_to_bucket_bytes, log.local) == (0, 0)

"""Checkpoints: what they sync, what they free, and when they must be tried again."""

import errno
from itertools import pairwise

import attrs
import pytest
import trio
from trio.testing import MockClock

from shared.units import KIB
from tests.support.commits import fail, log_write, logs_of, watch
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    HandClock,
    open_store,
    read_all,
    records,
    reopen,
    running,
)


async def test_the_journal_stays_within_its_share_and_waits_for_checkpoints() -> None:
    disk = FakeDisk()
    disk.total = 64 * 64 * KIB
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        for _ in range(200):
            _, ticket = log.append(records(bytes(30 * KIB)), 1)
            await store.wait(ticket)
            assert store.statistics().journal_bytes <= disk.total / 8
    assert store.statistics().checkpoints > 5


async def test_checkpoints_free_segments_while_commits_go_on(autojump_clock: MockClock) -> None:
    disk = FakeDisk()
    store = await open_store(disk, clock=HandClock())
    logs = await logs_of(store, ALWAYS, INTERVAL, NONE)
    async with running(store):
        for n in range(300):
            for log in logs:
                log.append(records(b"%d" % n, bytes(1000)), 2)
            store.commit_pending()
            if n % 10 == 0:
                await trio.sleep(0.05)
        await trio.sleep(5)
    statistics = store.statistics()
    assert statistics.checkpoints >= 3
    assert statistics.journal_bytes <= 3 * 64 * KIB
    store, _ = await reopen(store, disk)
    for log in store.namespace("logmq", ALWAYS).logs.values():
        assert (await read_all(log))[::2] == [b"%d" % n for n in range(300)]
        assert not any(entry.unverified for entry in log.index_entries(0, log.end))


async def test_many_changed_logs_are_synced_in_one_call() -> None:
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, sync_all_logs=10))
    logs = await logs_of(store, *[ALWAYS] * 11)
    for count, expected in ((10, [20 + 1, 0]), (11, [1, 1])):  # the catalog's own sync comes in addition
        for log in logs[:count]:
            await store.wait(log.append(records(b"x"), 1)[1])
        found = watch(disk, "sync", "sync_all")
        assert await store.checkpoint()
        disk.before = None
        paths = [path for path in found[0] if not path.startswith("journal/")]
        assert [len(paths), len(found[1])] == expected


async def test_where_all_cannot_be_synced_in_one_call_each_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeDisk, "sync_all", lambda self: False)
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, sync_all_logs=10))
    logs = await logs_of(store, *[ALWAYS] * 11)
    for log in logs:
        await store.wait(log.append(records(b"x"), 1)[1])
    found = watch(disk, "sync")
    assert await store.checkpoint()
    synced = {path for path in found[0] if path.startswith("logmq/")}
    assert synced == {path for log in logs for path in (log.file.path, log.index_file.path)}


@pytest.mark.parametrize("kind", ["sync", "sync_folder"])
async def test_a_checkpoints_failed_sync_poisons_and_frees_nothing(kind: str) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    for n in range(5):
        await store.wait(log.append(records(b"%d" % n, bytes(30 * KIB)), 2)[1])
    segments = disk.names("journal")
    fail(disk, errno.EIO, lambda operation: operation.kind == kind)
    assert not await store.checkpoint()
    assert store.read_only is not None
    assert disk.names("journal") == segments
    disk.before = None
    store, _ = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["t0"]
    assert (await read_all(log))[::2] == [b"%d" % n for n in range(5)]


async def test_a_checkpoint_without_room_is_tried_again(autojump_clock: MockClock) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        await trio.sleep(0.1)
        fail(disk, errno.ENOSPC, lambda operation: operation.path == "CATALOG.new")
        for _ in range(5):
            await store.wait(log.append(records(bytes(30 * KIB)), 1)[1])
        await trio.sleep(5)
        assert store.read_only is None
        assert store.statistics().checkpoints == 0
        disk.before = None
        await trio.sleep(5)
        assert store.statistics().checkpoints >= 1


@pytest.mark.parametrize("by_bytes", [True, False])
async def test_much_since_the_last_brings_another_which_counts_anew(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, by_bytes: bool
) -> None:
    monkeypatch.setattr("shared.storage.checkpoint._BATCHES_MAX", 1000 if by_bytes else 3)
    store = await open_store(FakeDisk(), attrs.evolve(SMALL, checkpoint_direct_bytes=100 * KIB))
    (log,) = await logs_of(store, NONE if by_bytes else ALWAYS)
    found = []
    async with running(store):
        await trio.sleep(2)
        for _ in range(12):
            await store.wait(log.append(records(bytes(30 * KIB if by_bytes else 9)), 1)[1])
            await trio.sleep(2)
            found.append(store.statistics().checkpoints)
    made = [after - before for before, after in pairwise(found)]
    assert 2 <= sum(made) <= 3, "each fourth time"


async def test_there_is_none_while_the_journal_alone_holds_what_a_log_does_not_take() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    fail(disk, errno.ENOSPC, log_write)
    await store.wait(log.append(records(b"x"), 1)[1])
    assert store.statistics().unapplied_logs == 1
    assert not await store.checkpoint()
    machine = disk.kill()
    disk.before = None
    assert await store.checkpoint()
    for each in (machine, disk.kill()):
        again = await open_store(each)
        assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [b"x"]

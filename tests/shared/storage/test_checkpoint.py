"""Checkpoints: what they sync, what they free, and when they must be tried again."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from shared.storage.inventory import Namespace
from shared.storage.log import Log, Ticket
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.units import KIB
from tests.support.commits import fail, log_write, logs_of, watch
from tests.support.explore import every_state
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    HandClock,
    append,
    fresh_store,
    open_store,
    read_all,
    records,
    reopen,
    running,
)


@pytest.mark.parametrize("payload_max", [KIB, 20 * KIB, 60 * KIB, 100 * KIB, 8 << 20])
async def test_whatever_comes_at_once_waits_for_checkpoints_and_is_not_refused(
    payload_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.storage.committer.BATCH_PAYLOAD_MAX", payload_max)
    disk = FakeDisk()
    disk.total = 64 * 64 * KIB
    store = await open_store(disk)
    logs = await logs_of(store, *[ALWAYS] * 3)
    async with running(store):
        tickets: list[Ticket] = []
        for at_once in (1, 10, 30, 100):
            for number in range(at_once):
                tickets.append(logs[number % 3].append(records(bytes(10 * KIB)), 1)[1])
            store.commit_pending()
            await trio.testing.wait_all_tasks_blocked()
            tickets.append(logs[0].append(records(b"x"), 1)[1])
            await store.wait(tickets[-1])
    assert {str(ticket.error) for ticket in tickets} == {"None"}
    assert store.statistics().journal_bytes <= max(disk.total // 8, 64 * KIB + 2 * payload_max)


@pytest.mark.parametrize("outcome", ["begun", "not to be had", "failed"])
async def test_many_logs_are_begun_to_be_written_before_they_are_synced(
    monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    begun: list[int] = []

    def start(disk: FakeDisk, fd: int) -> bool:
        begun.append(fd)
        if outcome == "failed":  # the system tells of it once
            raise OSError(errno.EIO, "injected")
        return outcome == "begun"

    monkeypatch.setattr(FakeDisk, "start_write_back", start)
    disk, store = await fresh_store(attrs.evolve(SMALL, sync_all_logs=10))
    logs = await logs_of(store, *[ALWAYS] * 20)
    for log in logs:
        log.append(records(b"x"), 1)
    async with running(store):
        assert await store.flush()
        (syncs,) = watch(disk, "sync_all")
        assert await store.checkpoint() is (outcome != "failed")
    assert len(begun) == (40 if outcome == "begun" else 1)
    assert len(syncs) == (outcome != "failed")
    assert (store.read_only is not None) is (outcome == "failed")


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


@pytest.mark.parametrize("kind", ["sync", "sync_folder"])
async def test_a_checkpoints_failed_sync_poisons_and_frees_nothing(kind: str) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    for n in range(5):
        await append(store, log, b"%d" % n, bytes(30 * KIB))
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
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        await trio.sleep(0.1)
        fail(disk, errno.ENOSPC, lambda operation: operation.path == "CATALOG.new")
        for _ in range(5):
            await append(store, log, bytes(30 * KIB))
        await trio.sleep(5)
        assert store.read_only is None
        assert store.statistics().checkpoints == 0
        disk.before = None
        await trio.sleep(5)
        assert store.statistics().checkpoints >= 1


async def test_there_is_none_while_the_journal_alone_holds_what_a_log_does_not_take() -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    fail(disk, errno.ENOSPC, log_write)
    await append(store, log, b"x")
    assert not await store.checkpoint()
    assert store.statistics().unapplied_logs == 1
    assert not await store.checkpoint()
    machine = disk.kill()
    disk.before = None
    assert await store.checkpoint()
    for each in (machine, disk.kill()):
        again = await open_store(each)
        assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [b"x"]


# -- cancelled


async def test_one_that_is_cancelled_before_it_has_written_forgets_no_log() -> None:
    disk = FakeDisk()
    slow = False
    gate = trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if slow:
            with trio.CancelScope(shield=True):  # a thread that has begun is waited for
                await gate.wait()
        return work(*args)

    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=in_thread)
    log, _ = store.namespace("things", ALWAYS).create("a")
    await append(store, log, b"acknowledged")
    slow = True
    async with trio.open_nursery() as checkpoints:
        checkpoints.start_soon(store.checkpoint)
        await trio.testing.wait_all_tasks_blocked()
        checkpoints.cancel_scope.cancel()
        gate.set()
    await store.close()
    runs = 0
    for after in every_state(disk.power_cut(), 1000):
        again = await open_store(after)
        assert await read_all(again.namespace("things", ALWAYS).logs["a"]) == [b"acknowledged"]
        again.abandon()
        runs += 1
    assert runs


# -- many logs: their lines of the catalog are packed in turns


async def many_logs(disk: FakeDisk) -> tuple[Store, list[Log]]:
    """Of 1,200 every second one has a record, so some are dirty, some only new."""
    store = await open_store(disk, clock=HandClock())
    logs = await logs_of(store, *[ALWAYS] * 1200)
    for log in logs[::2]:
        log.append(records(b"first"), 1)
    await append(store, logs[0], b"last")
    return store, logs


async def test_what_changes_while_a_checkpoint_goes_through_many_logs_is_not_lost() -> None:
    store, logs = await many_logs(disk := FakeDisk())
    things = store.namespace(logs[0].namespace, ALWAYS)
    left, made, over = list(logs), 0, False

    async def change() -> None:
        nonlocal made
        while not over:
            left[-1].append(records(b"more"), 1)
            left[1].drop_below(left[1].end)
            things.delete(left.pop(-2).name)
            made += 1
            _, created = things.create(f"new-{made}")
            await store.wait(created)

    async with trio.open_nursery() as nursery:
        for _ in range(4):  # so that some commit ends in each turn
            nursery.start_soon(change)
        assert await store.checkpoint()
        over = True
    assert made > 3
    expected = {log.name: (log.first, await read_all(log)) for log in things.logs.values()}
    await require_logs(disk.kill(), things.name, expected)
    await require_logs(next(every_state(disk.power_cut(), 1000)), things.name, expected)
    await store.close()
    await require_logs(disk, things.name, expected)


async def require_logs(disk: FakeDisk, namespace: str, expected: dict[str, tuple[int, list[bytes]]]) -> None:
    again = await open_store(disk)
    logs = again.namespace(namespace, ALWAYS).logs
    assert {log.name: (log.first, await read_all(log)) for log in logs.values()} == expected
    again.abandon()


# -- what is asked for and not yet durable


def after_a_crash(disk: FakeDisk) -> Iterator[FakeDisk]:
    """What the next start may find: the process died, or the power went off."""
    yield disk.kill()
    yield from every_state(disk.power_cut(), 1000)


async def require(disk: FakeDisk, *payloads: bytes) -> None:
    again = await open_store(disk)
    assert await read_all(again.namespace("things", ALWAYS).logs["a"]) == [*payloads]
    again.abandon()


async def one_log(mode: Durability) -> tuple[FakeDisk, Store, Namespace, Log]:
    """A store with one log, `a` of the namespace `things`, and a record in it."""
    disk, store = await fresh_store()
    things = store.namespace("things", mode)
    log, _ = things.create("a")
    await append(store, log, b"first")
    return disk, store, things, log


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_a_log_whose_deletion_was_refused_is_in_the_next_checkpoint(mode: Durability) -> None:
    disk, store, things, log = await one_log(mode)
    assert await store.checkpoint()
    await append(store, log, b"second")
    deleted = things.delete("a")
    assert await store.checkpoint()
    fail(disk, errno.ENOSPC, lambda operation: True, times=1)
    store.commit_pending()
    assert deleted.error is not None
    assert things.logs["a"] is log
    assert await store.checkpoint()
    for after in after_a_crash(disk):
        await require(after, b"first", b"second")
    store.abandon()


async def test_index_entries_of_a_log_whose_deletion_was_refused_still_reach_its_index() -> None:
    disk, store, things, log = await one_log(ALWAYS)
    deleted = things.delete("a")
    assert await store.checkpoint()  # it writes what entries there are
    fail(disk, errno.ENOSPC, lambda operation: True, times=1)
    store.commit_pending()
    assert deleted.error is not None
    await store.close()
    again = await open_store(disk)
    (entry,) = again.namespace("things", ALWAYS).logs["a"].index_entries(0, log.end)
    assert not entry.flags, "verified since it was written, not rebuilt from what was found"
    again.abandon()

"""What a commit that fails takes back, and after which failures nothing more is written."""

import errno
from pathlib import Path

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from shared.budget import Account
from shared.errors import StoreError, StoreFull, StoreReadOnly
from shared.storage.committer import CommitCounts
from shared.storage.store import Store
from tests.support.commits import commits_behind, fail, journal_write, logs_of, outcome
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    SMALL,
    HandClock,
    append,
    fresh_store,
    open_store,
    read_all,
    records,
    running,
)


async def test_a_failed_round_takes_those_behind_it_along() -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    tickets = [log.append(records(bytes(5 << 20)), 1)[1] for _ in range(3)]
    namespace = store.namespace("logmq", ALWAYS)
    made, _ = namespace.create("made")
    namespace.delete("t0")
    assert len(set(tickets)) == 3
    fail(disk, errno.EIO, journal_write, times=1)
    found = [outcome(ticket) for ticket in tickets]
    store.commit_pending()
    assert all(isinstance(errors[0], StoreError) for errors in found)
    assert made.deleted
    assert not log.deleted, "its deletion was taken back"
    assert list(namespace.logs.values()) == [log]
    assert log.end == 0
    disk.before = None
    assert store.read_only is None
    await append(store, log, b"on")
    again, ticket = namespace.create("made")
    await store.wait(ticket)
    assert again.id > made.id


async def test_a_write_that_cannot_be_taken_back_poisons() -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    fail(disk, errno.EIO, journal_write)
    _, ticket = log.append(records(b"x"), 1)
    with pytest.raises(StoreReadOnly):
        await store.wait(ticket)
    assert store.read_only is not None


@pytest.mark.parametrize("threads", [False, True], ids=["inline", "by the committer"])
async def test_a_failed_sync_is_final_and_never_retried(threads: bool) -> None:
    disk = FakeDisk()
    settings = attrs.evolve(SMALL, inline_sync_seconds=0 if threads else 1e9)
    store = await open_store(disk, settings)
    one, two = await logs_of(store, ALWAYS, INTERVAL)
    await append(store, one, b"before")
    syncs: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind == "sync" and operation.path.startswith("journal/"):
            syncs.append(operation.path)
            raise OSError(errno.EIO, "injected")

    async with running(store):
        await wait_all_tasks_blocked()  # the spare segment is ready
        disk.before = before
        _, ticket = one.append(records(b"in it"), 1)
        two.append(records(b"in it"), 1)
        found = outcome(ticket)
        with pytest.raises(StoreReadOnly):
            await store.wait(ticket)
        assert isinstance(found[0], StoreReadOnly)
        for log in (one, two):
            with pytest.raises(StoreReadOnly):
                log.append(records(b"late"), 1)
        with pytest.raises(StoreReadOnly):
            store.namespace("logmq", ALWAYS).create("late")
        with pytest.raises(StoreReadOnly):
            store.namespace("logmq", ALWAYS).delete("t0")
        assert await read_all(one) == [b"before"], "reads go on"
        assert len(syncs) == 1
    with pytest.raises(StoreReadOnly):
        await store.close()
    assert len(syncs) == 1


async def test_a_failed_interval_sync_poisons(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, INTERVAL)
    async with running(store):
        await trio.sleep(0.01)
        _, ticket = log.append(records(b"acknowledged"), 1)
        store.commit_pending()
        assert ticket.error is None
        fail(disk, errno.EIO, lambda operation: operation.kind == "sync")
        await trio.sleep(0.1)
        assert store.read_only is not None


async def test_publishing_stops_above_the_reserve_and_the_reserved_goes_on(
    autojump_clock: MockClock,
) -> None:
    disk = FakeDisk()
    disk.total = 100 << 30
    store = await open_store(disk, attrs.evolve(SMALL, reserve_bytes_min=64 << 20, reserve_bytes_max=1 << 30))
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        log.append(records(b"begun"), 1)
        disk.free = (1 << 30) - 1
        await trio.sleep(1.5)
        with pytest.raises(StoreFull):
            log.append(records(b"x"), 1)
        with pytest.raises(StoreFull):
            store.namespace("logmq", ALWAYS).create("x")
        _, ticket = log.append(records(b"an acknowledgement"), 1, reserved=True)
        with pytest.raises(StoreFull):
            log.append(records(b"x"), 1)
        await store.wait(ticket)
        assert await read_all(log) == [b"begun", b"an acknowledgement"]
        disk.free = 2 << 30
        await trio.sleep(1.5)
        log.append(records(b"x"), 1)


async def test_a_poison_from_elsewhere_leaves_the_commit_under_way_to_end_by_itself(
    autojump_clock: MockClock,
) -> None:
    disk = FakeDisk()
    gate = trio.Event()
    settings = attrs.evolve(SMALL, inline_sync_seconds=0)
    store = await Store.open(
        Path("unused"), settings, disk=disk, clock=HandClock(), in_thread=commits_behind(gate)
    )
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        _, first = log.append(records(b"on its way"), 1)
        store.commit_pending()
        await wait_all_tasks_blocked()
        _, second = log.append(records(b"behind it"), 1)
        found = outcome(second)
        disk.read_only = True
        await trio.sleep(1.1)  # the store has looked
        refused: object = None
        try:
            log.append(records(b"late"), 1)
        except StoreReadOnly as error:
            refused = error
        gate.set()
        await store.wait(first)
        assert refused is not None
        assert isinstance(found[0], StoreReadOnly)
    assert await read_all(log) == [b"on its way"]
    assert log.end == log.visible


@pytest.mark.parametrize("threads", [False, True], ids=["inline", "by the committer"])
async def test_a_bug_in_showing_what_a_commit_did_is_final_and_keeps_nobody_waiting(
    threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = attrs.evolve(SMALL, inline_sync_seconds=0 if threads else 1e9)
    store = await open_store(FakeDisk(), settings)
    one, two = await logs_of(store, ALWAYS, ALWAYS)
    await append(store, one, b"before")
    async with running(store):
        with monkeypatch.context() as broken:
            broken.setattr(CommitCounts, "count_sync", lambda *_: 1 / 0)
            _, ticket = one.append(records(b"x"), 1)
            queued = outcome(two.append(records(b"y"), 1)[1])
            with trio.fail_after(5), pytest.raises(StoreReadOnly):
                await store.wait(ticket)
        assert isinstance(queued[0], StoreReadOnly)
        assert (await read_all(one))[0] == b"before", "reads go on"
        assert one.end == one.visible
    with trio.fail_after(5), pytest.raises(StoreReadOnly):
        await store.close()


async def test_a_file_system_that_has_become_read_only_is_told_before_anybody_writes(
    autojump_clock: MockClock,
) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    await append(store, log, b"kept")
    async with running(store):
        await trio.sleep(1.5)
        assert store.read_only is None
        disk.read_only = True
        await trio.sleep(1.5)
        assert "the file system is read-only" in str(store.read_only)
        assert await read_all(log) == [b"kept"]


async def test_what_waits_when_the_store_becomes_read_only_is_given_back_to_the_budget(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.storage.committer.BATCH_PAYLOAD_MAX", 1000)
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, pending_bytes_max=1500))
    (log,) = await logs_of(store, ALWAYS)
    account = Account("process", 1 << 30)
    store.charge_to(account)
    relieved: list[str] = []
    async with running(store):
        before = account.used_bytes
        for _ in range(3):
            _, ticket = log.append(records(bytes(900)), 1)
        assert store.congested
        store.when_uncongested(lambda: relieved.append("relieved"))
        assert account.used_bytes > before
        disk.read_only = True
        await trio.sleep(1.5)
        assert isinstance(ticket.error, StoreReadOnly)
        assert account.used_bytes == before
        assert relieved == ["relieved"]


async def test_a_file_system_that_does_not_tell_its_free_space_is_taken_to_be_as_it_was(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, reserve_bytes_min=1 << 20))
    (log,) = await logs_of(store, ALWAYS)

    def broken() -> tuple[int, int]:
        raise OSError(errno.EIO, "injected")

    async with running(store):
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(disk, "free_bytes", broken)
            await trio.sleep(3.5)
            await append(store, log, b"x")
        assert [line["log_level"] for line in logged] == ["error"]
        disk.free = 0
        await trio.sleep(1.5)
        with pytest.raises(StoreFull):
            log.append(records(b"y"), 1)


async def test_after_many_bytes_the_free_space_is_looked_at_without_waiting_for_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shared.storage.watch.LOOK_BYTES", 10_000)
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, reserve_bytes_min=1 << 20))
    (log,) = await logs_of(store, ALWAYS)
    for free in (0, 1 << 30) * 2:
        disk.free = free
        for _ in range(3):
            await store.wait(log.append(records(bytes(4_000)), 1, reserved=True)[1])
        if free:
            await append(store, log, b"y")
        else:
            with pytest.raises(StoreFull):
                log.append(records(b"y"), 1)

"""Commits: who waits for what, what one sync covers, what a failure takes back."""

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shared.errors import StoreError, StoreFull, StoreReadOnly
from shared.storage.commit import Commit, Ticket
from shared.storage.journal import PoisonError
from shared.storage.log import Log
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    KIB,
    NONE,
    SMALL,
    HandClock,
    ask,
    open_store,
    read_all,
    records,
    reopen,
)


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield
        nursery.cancel_scope.cancel()


def watch(disk: FakeDisk, *kinds: str) -> list[list[str]]:
    """The paths of operations from here on, by kind."""
    seen: dict[str, list[str]] = {kind: [] for kind in kinds}

    def before(operation: Operation) -> None:
        if operation.kind in seen:
            seen[operation.kind].append(operation.path)

    disk.before = before
    return list(seen.values())


def fail(disk: FakeDisk, error: int, match: Callable[[Operation], bool], times: int = 1 << 30) -> None:
    left = times

    def before(operation: Operation) -> None:
        nonlocal left
        if left and match(operation):
            left -= 1
            raise OSError(error, "injected")

    disk.before = before


def journal_write(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.startswith("journal/")


def log_write(operation: Operation) -> bool:
    return operation.kind == "write" and operation.path.endswith(".log")


def outcome(ticket: Ticket) -> list[StoreError | None]:
    found: list[StoreError | None] = []
    ticket.when_done(lambda done: found.append(done.error))
    return found


async def logs_of(store: Store, *modes: Any) -> list[Log]:
    namespace = store.namespace("logmq", ALWAYS)
    made = [namespace.create(f"t{n}", mode) for n, mode in enumerate(modes)]
    for _, ticket in made:
        await store.wait(ticket)
    return [log for log, _ in made]


# -- one sync for all


async def test_one_sync_covers_every_log_and_one_ticket_serves_a_round() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    logs = await logs_of(store, *[ALWAYS] * 20)
    (syncs,) = watch(disk, "sync")
    tickets = {log.append(records(b"x"), 1)[1] for log in logs for _ in range(3)}
    assert len(tickets) == 1
    await store.wait(tickets.pop())
    assert len(syncs) == 1
    assert syncs[0].startswith("journal/")


async def test_what_is_acknowledged_is_visible_and_watchers_know_first() -> None:
    store = await open_store(FakeDisk())
    one, two = await logs_of(store, ALWAYS, ALWAYS)
    told: list[str] = []
    one.watchers.add(lambda log: told.append(f"watcher of {log.name}, {two.visible} visible in the other"))
    _, ticket = one.append(records(b"x"), 1)
    ticket.when_done(lambda _: told.append("ticket"))
    two.append(records(b"yy"), 1)
    store.settle()
    assert told == ["watcher of t0, 6 visible in the other", "ticket"]
    ticket.when_done(lambda _: told.append("late"))
    assert told[-1] == "late"


async def test_what_is_appended_while_a_commit_is_under_way_goes_into_the_next() -> None:
    disk = FakeDisk()
    gate = trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if isinstance(getattr(work, "__self__", None), Commit):
            await gate.wait()
        return work(*args)

    settings = attrs.evolve(SMALL, inline_sync_seconds=0)
    store = await Store.open(Path("unused"), settings, disk=disk, clock=HandClock(), in_thread=in_thread)
    (log,) = await logs_of(store, ALWAYS)
    batches = store.statistics().journal_batches
    async with running(store):
        _, first = log.append(records(b"1"), 1)
        store.settle()
        await wait_all_tasks_blocked()
        later = set()
        for n in range(50):
            later.add(log.append(records(b"%d" % n), 1)[1])
            store.settle()
        assert len(later) == 1
        assert first not in later
        assert not first.done
        gate.set()
        await store.wait(later.pop())
        assert first.done
    assert store.statistics().journal_batches == batches + 2


async def test_a_waiter_that_fails_does_not_keep_others_from_being_told() -> None:
    store = await open_store(FakeDisk())
    (log,) = await logs_of(store, ALWAYS)
    _, ticket = log.append(records(b"x"), 1)

    def bug(_: object) -> None:
        raise RuntimeError("a session's bug")

    log.watchers.add(bug)
    ticket.when_done(bug)
    found = outcome(ticket)
    await store.wait(ticket)
    assert found == [None]


async def test_a_waiter_may_append_and_settle() -> None:
    store = await open_store(FakeDisk())
    (log,) = await logs_of(store, ALWAYS)
    depth = done = 0

    def again(ticket: Ticket) -> None:
        nonlocal depth, done
        depth += 1
        assert depth == 1, "commits do not nest"
        done += 1
        if done < 50:
            log.append(records(b"%d" % done), 1)[1].when_done(again)
            store.settle()
        depth -= 1

    log.append(records(b"0"), 1)[1].when_done(again)
    store.settle()
    assert done == 50
    assert len(await read_all(log)) == 50


# -- modes


async def test_interval_is_acknowledged_after_the_write_and_synced_in_time(
    autojump_clock: MockClock,
) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, INTERVAL)
    (syncs,) = watch(disk, "sync")
    async with running(store):
        await trio.sleep(0.01)
        syncs.clear()
        _, ticket = log.append(records(b"x"), 1)
        store.settle()
        assert ticket.done
        assert await read_all(log) == [b"x"]
        assert syncs == []
        await trio.sleep(0.051)
        assert len(syncs) == 1
        await trio.sleep(0.1)
        assert len([path for path in syncs if path.startswith("journal/")]) == 1, "nothing new to sync"


async def test_none_goes_around_the_journal_and_syncs_nothing() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, NONE)
    syncs, writes = watch(disk, "sync", "write")
    for n in range(30):
        _, ticket = log.append(records(bytes(n * 100)), 1)
        store.settle()
        assert ticket.done
    assert syncs == []
    assert not any(path.startswith("journal/") for path in writes)


async def test_an_append_to_several_logs_is_one_batch_in_the_strictest_mode() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    logs = await logs_of(store, NONE, INTERVAL, ALWAYS)
    for n, log in enumerate(logs):
        await store.wait(log.append(records(b"before %d" % n), 1)[1])
    batches = store.statistics().journal_batches
    (syncs,) = watch(disk, "sync")
    offsets, ticket = store.append_all([(log, records(b"together"), 1) for log in logs])
    assert offsets == [12, 12, 12]
    await store.wait(ticket)
    assert store.statistics().journal_batches == batches + 1
    assert syncs[-1].startswith("journal/")
    assert "logmq/t0.log" in syncs, "what went around the journal is safe before the journal goes beyond it"
    store, _ = await reopen(store, disk)
    for n, log in enumerate(store.namespace("logmq", ALWAYS).logs.values()):
        assert await read_all(log) == [b"before %d" % n, b"together"]


async def test_direct_bytes_queued_before_a_journaled_append_do_not_come_after_it() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    none, always = await logs_of(store, NONE, ALWAYS)
    none.append(records(b"1"), 1)
    none.append(records(bytes(8 << 20)), 1)  # a round of its own
    _, ticket = store.append_all([(none, records(b"3"), 1), (always, records(b"x"), 1)])
    seen: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind == "write" and not operation.path.endswith(".idx"):
            seen.append(operation.path)

    disk.before = before
    await store.wait(ticket)
    assert seen[0].startswith("journal/")
    assert [payload[:1] for payload in await read_all(none)] == [b"1", b"\0", b"3"]


# -- failures


async def test_a_full_disk_refuses_the_append_and_the_next_one_goes_on() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    one, two = await logs_of(store, ALWAYS, ALWAYS)
    await store.wait(one.append(records(b"kept"), 1)[1])
    fail(disk, errno.ENOSPC, journal_write, times=1)
    _, ticket = one.append(records(b"lost"), 1)
    two.append(records(b"lost too"), 1)
    with pytest.raises(StoreFull):
        await store.wait(ticket)
    assert (one.end, one.visible, two.end) == (8, 8, 0)
    disk.before = None
    offset, ticket = one.append(records(b"after"), 1)
    assert offset == 8
    await store.wait(ticket)
    store, _ = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["t0"]
    assert await read_all(log) == [b"kept", b"after"]


async def test_a_failed_round_takes_those_behind_it_along() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    tickets = [log.append(records(bytes(5 << 20)), 1)[1] for _ in range(3)]
    namespace = store.namespace("logmq", ALWAYS)
    made, _ = namespace.create("made")
    namespace.delete("t0")
    assert len(set(tickets)) == 3
    fail(disk, errno.EIO, journal_write, times=1)
    found = [outcome(ticket) for ticket in tickets]
    store.settle()
    assert all(isinstance(errors[0], StoreError) for errors in found)
    assert made.deleted
    assert not log.deleted, "its deletion was taken back"
    assert list(namespace.logs.values()) == [log]
    assert log.end == 0
    disk.before = None
    assert store.read_only is None
    await store.wait(log.append(records(b"on"), 1)[1])
    again, ticket = namespace.create("made")
    await store.wait(ticket)
    assert again.id > made.id


async def test_a_write_that_cannot_be_taken_back_poisons() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
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
    await store.wait(one.append(records(b"before"), 1)[1])
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
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, INTERVAL)
    async with running(store):
        await trio.sleep(0.01)
        _, ticket = log.append(records(b"acknowledged"), 1)
        store.settle()
        assert ticket.error is None
        fail(disk, errno.EIO, lambda operation: operation.kind == "sync")
        await trio.sleep(0.1)
        assert store.read_only is not None


async def test_a_log_file_that_takes_no_bytes_is_served_from_memory_and_filled_later(
    autojump_clock: MockClock,
) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    await store.wait(log.append(records(b"in the file"), 1)[1])
    async with running(store):
        await trio.sleep(0.3)
        fail(disk, errno.ENOSPC, log_write)
        for n in range(5):
            _, ticket = log.append(records(b"in memory %d" % n, bytes(9000)), 2)
            await store.wait(ticket)
        expected = [b"in the file"]
        for n in range(5):
            expected += [b"in memory %d" % n, bytes(9000)]
        assert store.statistics().unapplied_logs == 1
        assert await read_all(log) == expected
        assert len((await ask(log.read_chunk, 0, 1 << 20)).read(1000)) == 15
        part = await ask(log.read_chunk, 15, 1 << 20)
        assert part.read(1 << 20) == records(b"in memory 0", bytes(9000))
        assert not await store.checkpoint(), "its bytes are only in the journal"
        killed, _ = disk.kill(), setattr(disk, "before", None)
        await trio.sleep(0.5)
        assert store.statistics().unapplied_logs == 0
        assert await read_all(log) == expected
        assert await store.checkpoint()
    for machine in (disk, killed):
        other = await open_store(machine.kill())
        assert await read_all(other.namespace("logmq", ALWAYS).logs["t0"]) == expected


async def test_a_direct_write_that_fails_is_taken_back_with_all_behind_it() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    one, two = await logs_of(store, NONE, NONE)
    for log in (one, two):
        await store.wait(log.append(records(b"kept"), 1)[1])
    fail(disk, errno.ENOSPC, lambda operation: operation.path.endswith("t1.idx"), times=1)
    _, ticket = one.append(records(b"lost"), 1)
    two.append(records(b"lost"), 1)
    with pytest.raises(StoreFull):
        await store.wait(ticket)
    assert (one.end, two.end) == (8, 8)
    machine = disk.kill()
    disk.before = None
    for log in (one, two):
        await store.wait(log.append(records(b"next"), 1)[1])
        assert await read_all(log) == [b"kept", b"next"]
    store, _ = await reopen(store, disk)
    other = await open_store(machine)
    for log in store.namespace("logmq", ALWAYS).logs.values():
        assert await read_all(log) == [b"kept", b"next"]
    for log in other.namespace("logmq", ALWAYS).logs.values():
        assert await read_all(log) == [b"kept"]


# -- space


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


async def test_congestion_is_said_and_its_end_too() -> None:
    store = await open_store(FakeDisk(), attrs.evolve(SMALL, pending_bytes_max=20 << 20))
    (log,) = await logs_of(store, ALWAYS)
    told: list[str] = []
    store.when_uncongested(lambda: told.append("at once"))
    while not store.congested:
        log.append(records(bytes(3 << 20)), 1)
    assert 10 << 20 < store.statistics().pending_bytes < 30 << 20
    store.when_uncongested(lambda: told.append("later"))
    assert told == ["at once"]
    store.settle()
    assert not store.congested
    assert told == ["at once", "later"]


# -- checkpoints


async def test_checkpoints_free_segments_while_commits_go_on(autojump_clock: MockClock) -> None:
    disk = FakeDisk()
    store = await open_store(disk, clock=HandClock())
    logs = await logs_of(store, ALWAYS, INTERVAL, NONE)
    async with running(store):
        for n in range(300):
            for log in logs:
                log.append(records(b"%d" % n, bytes(1000)), 2)
            store.settle()
            if n % 10 == 0:
                await trio.sleep(0.05)
        await trio.sleep(5)
    statistics = store.statistics()
    assert statistics.checkpoints >= 3
    assert statistics.journal_bytes <= 3 * 64 * KIB
    store, _ = await reopen(store, disk)
    for log in store.namespace("logmq", ALWAYS).logs.values():
        assert (await read_all(log))[::2] == [b"%d" % n for n in range(300)]
        assert not any(mark.unverified for mark in log.marks(0, log.end))


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


async def test_a_poison_from_elsewhere_leaves_the_commit_under_way_to_end_by_itself() -> None:
    disk = FakeDisk()
    gate = trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if isinstance(getattr(work, "__self__", None), Commit):
            await gate.wait()
        return work(*args)

    settings = attrs.evolve(SMALL, inline_sync_seconds=0)
    store = await Store.open(Path("unused"), settings, disk=disk, clock=HandClock(), in_thread=in_thread)
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        _, first = log.append(records(b"on its way"), 1)
        store.settle()
        await wait_all_tasks_blocked()
        _, second = log.append(records(b"behind it"), 1)
        found = outcome(second)
        store._committer.poison(PoisonError("a checkpoint could not sync the logs"))
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


async def test_a_bug_inside_a_commit_is_final() -> None:
    class BrokenDisk(FakeDisk):
        broken = False

        def sync_data(self, fd: int) -> None:
            if self.broken:
                raise ZeroDivisionError
            super().sync_data(fd)

    disk = BrokenDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    disk.broken = True
    with pytest.raises(StoreReadOnly):
        await store.wait(log.append(records(b"x"), 1)[1])
    assert store.read_only is not None

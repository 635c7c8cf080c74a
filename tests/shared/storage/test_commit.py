"""Commits: who waits for what, and what one sync covers."""

import errno
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from shared.budget import Account
from shared.errors import StoreFull, StoreReadOnly
from shared.storage.log import Ticket
from shared.storage.store import Durability, Log, LogAppend, Store
from tests.support.commits import (
    batches_of,
    commits_behind,
    logs_of,
    outcome,
    watch,
)
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    MODES,
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


async def test_one_sync_covers_every_log_and_one_ticket_serves_a_round() -> None:
    disk, store = await fresh_store()
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
    store.commit_pending()
    assert told == ["watcher of t0, 6 visible in the other", "ticket"]
    ticket.when_done(lambda _: told.append("late"))
    assert told[-1] == "late"


async def test_who_keeps_what_a_log_holds_is_told_before_tickets_resolve() -> None:
    _, store = await fresh_store(attrs.evolve(SMALL, tail_log_bytes=0))
    (log,) = await logs_of(store, ALWAYS)
    told: list[str] = []
    log.advanced = lambda log: told.append(f"{log.visible} visible")
    _, ticket = log.append(records(b"x"), 1)
    ticket.when_done(lambda _: told.append("ticket"))
    store.commit_pending()
    assert told == ["5 visible", "ticket"]


async def test_what_is_appended_while_a_commit_is_under_way_goes_into_the_next() -> None:
    disk = FakeDisk()
    gate = trio.Event()
    settings = attrs.evolve(SMALL, inline_sync_seconds=0)
    store = await Store.open(
        Path("unused"), settings, disk=disk, clock=HandClock(), in_thread=commits_behind(gate)
    )
    (log,) = await logs_of(store, ALWAYS)
    batches = store.statistics().journal_batches
    async with running(store):
        _, first = log.append(records(b"1"), 1)
        store.commit_pending()
        await wait_all_tasks_blocked()
        later = set()
        for n in range(50):
            later.add(log.append(records(b"%d" % n), 1)[1])
            store.commit_pending()
        assert len(later) == 1
        assert first not in later
        assert not first.done
        gate.set()
        await store.wait(later.pop())
        assert first.done
    assert store.statistics().journal_batches == batches + 2


async def test_what_came_while_a_thread_committed_is_committed_on_the_loop_if_that_is_quick() -> None:
    gate = trio.Event()
    settings = attrs.evolve(SMALL, inline_bytes_max=4000)
    store = await Store.open(
        Path("unused"), settings, disk=FakeDisk(), clock=HandClock(), in_thread=commits_behind(gate)
    )
    (log,) = await logs_of(store, ALWAYS)
    before = store.statistics()
    async with running(store):
        _, large = log.append(records(bytes(5000)), 1)
        store.commit_pending()
        await wait_all_tasks_blocked()
        _, small = log.append(records(b"x"), 1)
        store.commit_pending()
        assert not large.done
        gate.set()
        await wait_all_tasks_blocked()
        assert small.done
    after = store.statistics()
    assert after.commits == before.commits + 2
    assert after.inline_commits == before.inline_commits + 1


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
            store.commit_pending()
        depth -= 1

    log.append(records(b"0"), 1)[1].when_done(again)
    store.commit_pending()
    assert done == 50
    assert len(await read_all(log)) == 50


async def test_interval_is_acknowledged_after_the_write_and_synced_in_time(
    autojump_clock: MockClock,
) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, INTERVAL)
    (syncs,) = watch(disk, "sync")
    async with running(store):
        await trio.sleep(0.01)
        syncs.clear()
        _, ticket = log.append(records(b"x"), 1)
        store.commit_pending()
        assert ticket.done
        assert await read_all(log) == [b"x"]
        assert syncs == []
        await trio.sleep(0.051)
        assert len(syncs) == 1
        await trio.sleep(0.1)
        assert len([path for path in syncs if path.startswith("journal/")]) == 1, "nothing new to sync"


@pytest.mark.parametrize("seconds", [0.03, 0.02, 0.015, 0.011])
async def test_an_interval_may_end_between_two_looks_at_the_clock(
    autojump_clock: MockClock, seconds: float
) -> None:
    """As on a busy machine, where a process may be put aside for so long anywhere."""

    class Busy(HandClock):
        def monotonic(self) -> float:
            self.steady += seconds
            return super().monotonic()

    disk = FakeDisk()
    store = await open_store(disk, clock=Busy())
    (log,) = await logs_of(store, INTERVAL)
    (syncs,) = watch(disk, "sync")
    async with running(store):
        for _ in range(5):
            syncs.clear()
            log.append(records(b"x"), 1)
            store.commit_pending()
            await trio.sleep(1)
            assert [path for path in syncs if path.startswith("journal/")]


async def test_none_is_acknowledged_after_the_write_and_syncs_nothing(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, NONE)
    async with running(store):
        await trio.sleep(1)
        (syncs,) = watch(disk, "sync")
        for n in range(30):
            _, ticket = log.append(records(bytes(n * 100)), 1)
            store.commit_pending()
            assert ticket.done
        await trio.sleep(3)
        assert syncs == []
    store, _ = await reopen(store, disk)
    assert len(await read_all(store.namespace("logmq", ALWAYS).logs[log.name])) == 30


async def test_an_append_to_several_logs_is_one_batch_in_the_strictest_mode() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, NONE, INTERVAL, ALWAYS)
    for n, log in enumerate(logs):
        await append(store, log, b"before %d" % n)
    batches = store.statistics().journal_batches
    (syncs,) = watch(disk, "sync")
    offsets, ticket = store.append_all([(log, records(b"together"), 1) for log in logs])
    assert offsets == [12, 12, 12]
    await store.wait(ticket)
    assert store.statistics().journal_batches == batches + 1
    assert syncs[-1].startswith("journal/")
    store, _ = await reopen(store, disk)
    for n, log in enumerate(store.namespace("logmq", ALWAYS).logs.values()):
        assert await read_all(log) == [b"before %d" % n, b"together"]


async def test_what_a_fold_appends_takes_no_log_out_of_the_batch() -> None:
    _, store = await fresh_store()
    first, second = await logs_of(store, ALWAYS, ALWAYS)
    first.fold = lambda offset, data: store.append_all([(second, data, 1), (second, data, 1)])
    batches = store.statistics().journal_batches
    with batches_of(0):
        _, ticket = store.append_all([(log, records(b"x"), 1) for log in (first, second)])
    await store.wait(ticket)
    assert await read_all(second) == [b"x"] * 3
    assert store.statistics().journal_batches == batches + 1


async def test_all_that_is_appended_together_is_one_batch_of_the_journal() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, ALWAYS, INTERVAL, NONE)
    none = logs[2]
    for log in logs:
        log.append(records(b"before"), 1)
    batches = store.statistics().journal_batches
    (syncs,) = watch(disk, "sync")
    gathered = records(b"gathered")
    with store.together(10) as batch:
        for log in logs:
            log.append(records(b"together"), 1)
        store.commit_pending()  # by somebody who was called
        part = logs[0].gather(len(gathered), lambda: None)
        part.batch.room += len(gathered)
        part.add(gathered, 1)
        none.append(records(bytes(9 << 20)), 1)  # more than fits
        assert batch.strictest is not None
    await store.wait(batch.strictest)
    assert store.statistics().journal_batches == batches + 1
    assert syncs[-1].startswith("journal/")
    store, _ = await reopen(store, disk)
    kept = [await read_all(log) for log in store.namespace("logmq", ALWAYS).logs.values()]
    assert [each[:2] for each in kept] == [[b"before", b"together"]] * 3
    assert (kept[0][2], len(kept[2][2])) == (b"gathered", 9 << 20)


async def test_what_the_disk_refuses_together_is_taken_back_together() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, ALWAYS, INTERVAL)

    left = [OSError(errno.ENOSPC, "no space")]

    def full(operation: Operation) -> None:
        if operation.kind == "write" and left:
            raise left.pop()

    disk.before = full
    with store.together(10) as batch:
        for log in logs:
            log.append(records(b"together"), 1)
    assert batch.strictest is not None
    with pytest.raises(StoreFull):
        await store.wait(batch.strictest)
    assert [log.end for log in logs] == [0, 0]


async def test_the_shortest_interval_of_a_round_counts(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, INTERVAL, Durability("interval", 0.5))
    (syncs,) = watch(disk, "sync")
    async with running(store):
        await trio.sleep(1)
        syncs.clear()
        for log in logs:
            log.append(records(b"x"), 1)
        store.commit_pending()
        await trio.sleep(0.06)
        assert len(syncs) == 1


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
    store.commit_pending()
    assert not store.congested
    assert told == ["at once", "later"]


async def test_what_waits_for_the_disk_counts_in_the_budget_and_stops_sessions_when_it_is_full() -> None:
    store = await open_store(FakeDisk())
    budget = Account("process", 10 << 20)
    store.charge_to(budget.account("storage"))
    (log,) = await logs_of(store, ALWAYS)
    while not store.congested:
        log.append(records(bytes(3 << 20)), 1)
    waits = store.statistics().pending_bytes
    assert 10 << 20 < waits < 20 << 20
    assert waits - (8 << 20) < budget.used_bytes <= waits
    store.commit_pending()
    assert not store.congested
    assert budget.used_bytes == 0


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_what_was_committed_is_held_by_nobody(mode: Durability) -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", mode).create("orders")
    data = records(b"x" * 20_000)
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(data)
        _, ticket = log.append(data, 1)
        assert sys.getrefcount(data) > before
        await store.wait(ticket)
        assert sys.getrefcount(data) == before
    finally:
        gc.enable()


# -- gathered records


class Gatherer:
    """Gathers records of one log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.run: LogAppend | None = None
        self.bodies: list[bytes] = []
        self.kept = 0
        self.written = 0

    def take(self, body: bytes) -> LogAppend:
        size = len(records(body))
        if self.run is None or self.run is not self.log.pending or size > self.run.batch.room:
            self.run = self.log.gather(size, self.write)
        else:
            self.run.batch.room -= size
        self.kept += size
        self.bodies.append(body)
        return self.run

    def write(self) -> None:
        run, self.run = self.run, None
        assert run is not None
        run.batch.room += self.kept
        run.add(records(*self.bodies), len(self.bodies))
        self.bodies, self.kept = [], 0
        self.written += 1


@pytest.mark.parametrize("mode", [ALWAYS, NONE], ids=str)
async def test_what_is_gathered_is_written_once_behind_what_was_appended(mode: Durability) -> None:
    _disk, store = await fresh_store()
    (log,) = await logs_of(store, mode)
    gatherer = Gatherer(log)
    tickets = {gatherer.take(b"%d" % number).ticket for number in range(3)}
    tickets.add(log.append(records(b"appended"), 1)[1])
    (ticket,) = tickets
    outcomes = outcome(ticket)
    store.commit_pending()
    assert outcomes == [None]
    assert gatherer.written == 1
    expected = [b"appended", b"0", b"1", b"2"]
    assert await read_all(log) == expected
    assert log.end == log.visible == len(records(*expected))


async def test_a_round_that_is_full_has_what_was_gathered_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.storage.committer.BATCH_PAYLOAD_MAX", 1000)
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    gatherer = Gatherer(log)
    bodies = [b"%02d" % number * 50 for number in range(20)]
    rounds = {id(run.batch): run.batch for run in map(gatherer.take, bodies)}
    assert 2 < len(rounds) < 10
    assert all(round_.bytes <= 1000 for round_ in rounds.values())
    store.commit_pending()
    assert gatherer.written == len(rounds)
    store, _ = await reopen(store, disk)
    assert await read_all(store.namespace("logmq", ALWAYS).logs[log.name]) == bodies


async def test_a_promise_that_is_not_kept_acknowledges_nothing() -> None:
    store = await open_store(FakeDisk())
    log, other = await logs_of(store, ALWAYS, ALWAYS)

    def broken() -> None:
        raise RuntimeError("a bug")

    ticket = log.gather(10, broken).ticket
    outcomes = outcome(ticket)
    assert other.append(records(b"x"), 1)[1] is ticket
    store.commit_pending()
    assert [type(error) for error in outcomes] == [StoreReadOnly]
    assert isinstance(store.read_only, StoreReadOnly)
    assert other.end == other.visible == 0


# -- a slow disk


SYNC_SECONDS = 0.5


class SlowDisk(FakeDisk):
    """A disk, its threads and their clock: a sync takes virtual time, and threads run side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self._count
        self.seconds = 0.0  # that syncs took, in the thread that runs just now
        self.broken = "none"

    def _count(self, operation: Operation) -> None:
        if operation.kind in ("sync", "sync_folder", "sync_all"):
            self.seconds += SYNC_SECONDS
            if operation.path == self.broken:
                raise OSError(errno.EIO, "injected")

    def monotonic(self) -> float:
        return trio.current_time() + self.seconds

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    async def in_thread(
        self, work: Callable[..., Any], *args: Any, limiter: trio.CapacityLimiter | None = None, **_: Any
    ) -> Any:
        async with limiter or trio.CapacityLimiter(1):
            on_the_loop, self.seconds = self.seconds, 0.0
            found = work(*args)
            seconds, self.seconds = self.seconds, on_the_loop
            await trio.sleep(seconds)
            return found


async def changed(logs: int, mode: Durability) -> tuple[SlowDisk, Store]:
    disk = SlowDisk()
    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=disk, in_thread=disk.in_thread)
    for number in range(logs):
        log, _ = store.namespace("things", ALWAYS).create(f"log{number}", mode)
        log.append(records(b"x"), 1)
    store.commit_pending()
    return disk, store


@pytest.mark.parametrize("number", [0, 7, 22])
async def test_a_sync_that_fails_beside_others_is_final(number: int, autojump_clock: MockClock) -> None:
    disk, store = await changed(23, ALWAYS)
    disk.broken = f"things/log{number}.log"
    with pytest.raises(StoreReadOnly):
        await store.close()
    again = await open_store(disk.kill())
    for log in again.namespace("things", ALWAYS).logs.values():
        assert await read_all(log) == [b"x"]

"""Mode `interval` around the journal: written once, to the log's own file, which is synced in time."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import StoreError, StoreReadOnly
from shared.storage.disk import size_of
from shared.storage.settings import Durability
from shared.storage.store import Store
from tests.support.commits import fail, logs_of, outcome, watch
from tests.support.explore import sampled_states
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    UNJOURNALED,
    HandClock,
    append,
    ask,
    fresh_store,
    inline,
    open_store,
    read_all,
    records,
    reopen,
    running,
)


def test_its_text_comes_back_and_only_an_interval_has_it() -> None:
    assert str(UNJOURNALED) == "interval:50ms unjournaled"
    assert Durability.parse(str(UNJOURNALED)) == UNJOURNALED != INTERVAL
    for wrong in ("none unjournaled", "always unjournaled", "interval journaled", "interval  unjournaled"):
        with pytest.raises(ValueError, match="durability"):
            Durability.parse(wrong)


async def test_it_is_acknowledged_after_the_write_and_its_own_files_are_synced_in_time(
    autojump_clock: MockClock,
) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, UNJOURNALED)
    syncs, folders, writes = watch(disk, "sync", "sync_folder", "write")
    async with running(store):
        own = [log.file.path, log.index_file.path]
        for names, journal in ((["logmq", ""], ["journal/00000000000000000000.wal"]), ([], [])):
            await trio.sleep(0.3)
            for seen in (syncs, folders, writes):
                seen.clear()
            _, ticket = log.append(records(b"x"), 1)
            store.commit_pending()
            assert outcome(ticket) == [None]
            assert (syncs, sorted(set(writes))) == ([], sorted(own))
            await trio.sleep(0.04)
            assert syncs == []
            await trio.sleep(0.02)
            assert [path for path in syncs if path in own] == own
            assert (sorted(syncs), folders) == (sorted(journal + own), names), "its CREATE is journaled"
            await trio.sleep(0.3)
            assert (len(syncs), folders) == (len(journal + own), names), "nothing new to sync"


async def test_its_sync_holds_up_nobody(autojump_clock: MockClock) -> None:
    """What is written while one is under way is acknowledged, and synced by the next."""
    disk = FakeDisk()
    syncing, go_on = trio.Event(), trio.Event()

    async def slow(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if work.__qualname__ == "DirectWrites._sync" and not go_on.is_set():
            syncing.set()
            await go_on.wait()
        return await inline(work, *args)

    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=slow)
    (log,) = await logs_of(store, UNJOURNALED)
    async with running(store):
        await append(store, log, b"one")
        await syncing.wait()
        await append(store, log, b"two")
        (syncs,) = watch(disk, "sync")
        go_on.set()
        await trio.sleep(0.2)
        assert syncs.count(log.file.path) == 2
    assert await read_all(log) == [b"one", b"two"]


@pytest.mark.parametrize("number", [0, 1])
async def test_a_failed_sync_is_final_and_says_what_may_be_lost(
    autojump_clock: MockClock, number: int
) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, UNJOURNALED)
    path = (log.file.path, log.index_file.path)[number]
    with capture_logs() as logged:
        async with running(store):
            await trio.sleep(0.3)
            fail(disk, errno.EIO, lambda operation: (operation.kind, operation.path) == ("sync", path))
            await append(store, log, b"x")
            await trio.sleep(0.1)
    assert store.read_only is not None
    assert [line["event"] for line in logged] == [
        "the store is read-only: nothing more is accepted, what is stored is served; "
        "look at the disk, then restart",
        "records of mode interval that were acknowledged since the last sync may be lost; "
        "after the restart compare with their producers, and have them send what is missing",
    ]


async def test_a_log_may_change_to_it_and_back() -> None:
    store = await open_store(disk := FakeDisk())
    namespace = store.namespace("logmq", INTERVAL)
    made = []
    for number, mode in enumerate((INTERVAL, UNJOURNALED, INTERVAL, UNJOURNALED)):
        log = namespace.logs.get("t") or namespace.create("t")[0]
        namespace.change_mode("t", mode)
        for _ in range(3):
            made.append(b"%d-%d" % (number, len(made)))
            await append(store, log, made[-1])
        store, disk = await reopen(store, disk)
        namespace = store.namespace("logmq", INTERVAL)
        log = namespace.logs["t"]
        assert (log.mode, await read_all(log)) == (mode, made)


async def test_a_file_opened_to_be_synced_before_the_journal_takes_over_is_closed_at_the_end() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, NONE, NONE)
    for log in logs:
        await append(store, log, b"around the journal")
    store.reserve_descriptors(1 << 20)  # handles that are not in use are closed
    for log in logs:
        store.namespace("logmq", NONE).change_mode(log.name, ALWAYS)
        await append(store, log, b"in it")
    await store.close()
    assert disk.open_paths == []


async def test_records_in_two_pieces_are_written_uncopied_however_short_the_writes_are() -> None:
    store = await open_store(disk := FakeDisk())
    (log,) = await logs_of(store, UNJOURNALED)
    disk.before = lambda operation: min(operation.length, 700) if operation.kind == "write" else None
    made = []
    for number in range(6):
        made.append(bytes([number]) * (number * 900))
        record = records(made[-1])
        if number % 2:
            log.append_framed(record[:9], memoryview(record)[9:])
        else:
            log.append(record, 1)
    store.commit_pending()
    disk.before = None
    assert await read_all(log) == made
    assert sum(entry.records for entry in log.index_entries(0, log.end)) == len(made)
    store, disk = await reopen(store, disk)
    assert await read_all(store.namespace("logmq", INTERVAL).logs["t0"]) == made


async def test_what_nobody_waits_for_does_not_congest_the_store() -> None:
    store = await open_store(FakeDisk(), attrs.evolve(SMALL, pending_bytes_max=20 << 20))
    aside, log = await logs_of(store, UNJOURNALED, UNJOURNALED)
    aside.unawaited = True
    for _ in range(20):
        aside.append_framed(b"", records(bytes(3 << 20)))
    assert store.statistics().pending_bytes > 60 << 20
    assert not store.congested
    while not store.congested:
        log.append(records(bytes(3 << 20)), 1)
    assert 10 << 20 < log.end < 30 << 20
    store.commit_pending()
    assert not store.congested


# -- kill -9, with changes through the journal between


async def _appended(store: Store, steps: str) -> list[bytes]:
    """`d`: a record around the journal; `j`: one through it, with a change to another log."""
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    log = namespace.create("direct", NONE)[0]
    other = namespace.create("other", ALWAYS)[0]
    made = []
    for number, step in enumerate(steps):
        payload = b"%d%s" % (number, step.encode() * number)
        made.append(payload)
        if step == "d":
            ticket = log.append(records(payload), 1)[1]
        else:
            ticket = store.append_all([(log, records(payload), 1), (other, records(b"x"), 1)])[1]
        await store.wait(ticket)
    return made


@pytest.mark.parametrize("steps", ["d", "j", "dj", "jd", "djd", "ddjjdd", "djdjd", "jddjdddj"])
async def test_records_around_the_journal_survive_a_kill_beside_those_in_it(steps: str) -> None:
    disk, store = await fresh_store()
    made = await _appended(store, steps)
    for _ in range(2):  # another recovery changes nothing
        store, disk = await reopen(store, disk)
        log = store.namespace("logmq", ALWAYS, plain_names=True).logs["direct"]
        assert await read_all(log) == made
        assert not any(entry.unverified for entry in log.index_entries(0, log.end))
        assert sum(entry.records for entry in log.index_entries(0, log.end)) == len(made)


@pytest.mark.parametrize("steps", ["dj", "djd", "ddjjdd", "djdjd", "jddjdddj"])
async def test_a_power_cut_behind_records_in_the_journal_damages_none_of_those_around_it(steps: str) -> None:
    disk, store = await fresh_store()
    made = await _appended(store, steps)
    for machine in sampled_states(disk.power_cut(), 1, 60):
        with capture_logs() as said:
            after = await open_store(machine)
        assert [line for line in said if line["log_level"] == "error"] == []
        log = after.namespace("logmq", ALWAYS, plain_names=True).logs["direct"]
        found = await read_all(log)
        assert found == made[: len(found)]
        assert len(found) > steps.rindex("j"), "it is synced, and so is what stands before it"
        assert not any(entry.unverified for entry in log.index_entries(0, log.end))
        after.abandon()


async def test_behind_bytes_that_the_file_would_not_take_nothing_goes_around_the_journal() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    log = namespace.create("direct", NONE)[0]
    other = namespace.create("other", ALWAYS)[0]
    full = True

    def before(operation: Operation) -> None:
        if full and operation.path == "logmq/direct.log" and operation.kind in ("create", "write"):
            raise OSError(errno.ENOSPC, "injected")

    disk.before = before
    await store.wait(store.append_all([(log, records(b"journaled"), 1), (other, records(b"x"), 1)])[1])
    full = False
    await append(store, log, b"later")
    assert await ask(log.read, 13, 100) == records(b"later")
    assert await read_all(log) == [b"journaled", b"later"]
    store, disk = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS, plain_names=True).logs["direct"]
    assert await read_all(log) == [b"journaled", b"later"]


@pytest.mark.parametrize("refused", ["log", "idx"])
async def test_what_a_file_took_of_a_refused_record_is_gone_after_a_stop(refused: str) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, UNJOURNALED)
    await append(store, log, b"good")
    calls = 0

    def before(operation: Operation) -> int | None:
        nonlocal calls
        if operation.kind != "write" or not operation.path.endswith(refused):
            return None
        calls += 1
        if calls == 2:
            raise OSError(errno.EFBIG, "injected")
        return operation.length // 2 if calls == 1 else None

    disk.before = before
    _, ticket = log.append(records(b"refused" * 10), 1)
    store.commit_pending()
    assert isinstance(outcome(ticket)[0], StoreError)
    disk.before = None
    async with running(store):
        pass
    await store.close()
    assert size_of(disk, log.file.path) == log.end
    with capture_logs() as said:
        after = await open_store(disk)
    assert [line for line in said if line["log_level"] in ("warning", "error")] == []
    assert await read_all(after.namespace("logmq", INTERVAL).logs["t0"]) == [b"good"]
    after.abandon()


@pytest.mark.parametrize(
    "why",
    [
        {"its tail waits"},
        {"it is queued with another log"},
        {"its tail waits", "it is queued with another log"},  # so that it is light
        {"its head is dropped"},
    ],
    ids=lambda why: " and ".join(sorted(why)),
)
async def test_what_is_journaled_is_acknowledged_though_what_goes_around_the_journal_is_refused(
    why: set[str],
) -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    journaled, around = (namespace.create(name, NONE)[0] for name in ("journaled", "around"))
    other = namespace.create("other", ALWAYS)[0]
    await append(store, journaled, b"good")
    await append(store, around, b"good")
    full = True

    def before(operation: Operation) -> None:
        no_room = operation.path in (journaled.file.path, around.file.path) and operation.kind == "write"
        if full and no_room:
            raise OSError(errno.EFBIG, "injected")

    disk.before = before
    beside = [(journaled, records(b"beside"), 1), (other, records(b"beside"), 1)]
    kept = [b"good"]
    if "its tail waits" in why:
        await store.wait(store.append_all(beside)[1])
        kept += [b"beside"]
    _, taken = journaled.append(records(b"taken"), 1)
    _, refused = around.append(records(b"refused"), 1)
    kept += [b"taken"]
    if "it is queued with another log" in why:
        store.append_all(beside)
        kept += [b"beside"]
    if "its head is dropped" in why:
        journaled.drop_below(journaled.visible)
        kept = [b"taken"]
    store.commit_pending()
    assert outcome(taken) == [None]
    assert isinstance(outcome(refused)[0], StoreError)
    full = False
    assert [await read_all(log) for log in (journaled, around)] == [kept, [b"good"]]
    store, disk = await reopen(store, disk)
    logs = store.namespace("logmq", ALWAYS, plain_names=True).logs
    assert [await read_all(logs[name]) for name in ("journaled", "around")] == [kept, [b"good"]]
    store.abandon()


async def test_where_index_entries_of_refused_records_stay_so_do_the_bytes_that_they_vouch_for() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, NONE, NONE)
    for log in logs:
        await append(store, log, b"good")
    calls = 0

    def before(operation: Operation) -> None:
        nonlocal calls
        if operation.kind == "write" and operation.path.endswith(".idx"):
            calls += 1
            if calls > 1:
                raise OSError(errno.EIO, "injected")

    disk.before = before
    tickets = [log.append(records(b"refused"), 1)[1] for log in logs]
    store.commit_pending()
    for ticket in tickets:
        with pytest.raises(StoreReadOnly, match="read-only"):
            await store.wait(ticket)
    disk.before = None
    store, disk = await reopen(store, disk)
    namespace = store.namespace("logmq", INTERVAL)
    for log in logs:
        assert await read_all(namespace.logs[log.name]) in ([b"good"], [b"good", b"refused"])
    store.abandon()


async def test_whoever_is_told_of_a_refusal_finds_the_log_as_it_was() -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, UNJOURNALED)
    await append(store, log, b"good")
    before = log.end
    seen: list[object] = []
    log.rolled_back = lambda log: seen.append("rolled back")
    fail(disk, errno.EFBIG, lambda operation: operation.path == log.file.path, times=1)
    _, ticket = log.append(records(b"refused"), 1)
    ticket.when_done(lambda ticket: seen.append((type(ticket.error), log.end)))
    store.commit_pending()
    assert seen[:2] == ["rolled back", (StoreError, before)]
    await append(store, log, b"later")
    assert await read_all(log) == [b"good", b"later"]
    store.abandon()

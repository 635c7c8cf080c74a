"""Log files are written late: a commit writes the journal alone, and readers get a log's newest records from
memory until its file has them."""

import errno
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import MockClock

from shared.budget import Account
from shared.errors import NotARecord, StoreFull
from shared.storage import index
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from shared.storage.tools.backup import backup_files
from shared.units import KIB
from tests.support.commits import fail, log_write, logs_of, watch
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    SMALL,
    HandClock,
    append,
    ask,
    fresh_store,
    open_store,
    payloads,
    read_all,
    records,
    running,
    taken,
)

ROOMY = attrs.evolve(SMALL, segment_bytes=1 << 20)
"""No checkpoint comes in between."""


def file_size(disk: FakeDisk, path: str) -> int:
    return disk.size(disk.open(path)) if path.partition("/")[2] in disk.names("logmq") else 0


def account_of(store: Store) -> Account:
    account = Account("process", 1 << 30)
    store.charge_to(account)
    return account


async def test_a_commit_is_one_write_and_one_sync_however_many_logs_it_touches() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, *[ALWAYS, INTERVAL] * 20)
    writes, syncs, opens = watch(disk, "write", "sync", "create")
    for log in logs:
        _, ticket = log.append(records(b"x"), 1)
    await store.wait(ticket)
    assert (len(writes), len(syncs), opens) == (1, 1, [])


async def test_what_small_commits_leave_is_what_commits_leave_that_write_log_files_themselves(
    autojump_clock: MockClock,  # on a busy machine the two took different times
) -> None:
    left = []
    for settings in (ROOMY, attrs.evolve(ROOMY, tail_log_bytes=0)):
        clock = HandClock()
        disk, store = await fresh_store(settings, clock)
        logs = await logs_of(store, ALWAYS, INTERVAL, ALWAYS)
        for number in range(60):
            for log in logs[number % 3 :]:
                log.append(records(b"%d" % number, bytes(number * 40)), 2)
            store.commit_pending()
            clock.advance(0.03)
            if number % 20 == 7:
                assert (await read_all(logs[2]))[-2] == b"%d" % number

        await store.close()
        names = sorted(disk.names("logmq"))
        left.append((names, [disk.read(disk.open(f"logmq/{name}"), 1 << 20, 0) for name in names]))
    assert left[0] == left[1]


async def test_a_log_file_and_its_index_have_a_record_after_a_second(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    one, two = await logs_of(store, ALWAYS, ALWAYS)
    async with running(store):
        await append(store, one, b"first")
        await trio.sleep(0.7)
        await append(store, two, b"second")
        assert file_size(disk, "logmq/t0.log") == 0
        await trio.sleep(0.6)
        assert file_size(disk, "logmq/t0.log") == one.end
        found = index.read_index_of(disk, "logmq/t0.idx", one.id, one.created_ms)
        assert found is not None
        assert found.end == one.end
        assert file_size(disk, "logmq/t1.log") == 0, "it is younger"
        await trio.sleep(0.7)
        assert file_size(disk, "logmq/t1.log") == two.end


async def test_above_the_bound_commits_wait_and_the_oldest_are_written_first(
    autojump_clock: MockClock,
) -> None:
    settings = attrs.evolve(ROOMY, tail_bytes_max=40 * KIB)
    _, store = await fresh_store(settings)
    logs = await logs_of(store, *[ALWAYS] * 8)
    account = account_of(store)
    async with running(store):
        await trio.sleep(0.3)
        for log in logs:
            await append(store, log, bytes(10 * KIB))
            assert account.used_bytes <= 50 * KIB + 100
        written = [log.tail_start > 0 for log in logs]
        assert written == sorted(written, reverse=True)
        assert 3 <= sum(written) < 8
    assert all([len(await read_all(log)) == 1 for log in logs])


async def test_their_memory_is_charged_and_given_back(autojump_clock: MockClock) -> None:
    _, store = await fresh_store(attrs.evolve(ROOMY, tail_bytes_max=64 * KIB))
    one, two = await logs_of(store, ALWAYS, ALWAYS)
    account = account_of(store)
    for _ in range(20):
        await append(store, one, bytes(900))
        assert account.used_bytes == one.end
    await append(store, two, b"1")
    assert account.used_bytes == one.end + two.end
    await store.wait(store.namespace("logmq", ALWAYS).delete("t0"))
    assert account.used_bytes == two.end
    assert await store.flush()
    assert account.used_bytes == 0


@pytest.mark.parametrize("flushed", [0, 3, 9], ids="{} of 9 flushed".format)
async def test_reads_are_the_same_wherever_the_records_are(flushed: int) -> None:
    _, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    bodies = [b"%d" % n * (7 * n) for n in range(9)]
    for n, body in enumerate(bodies):
        if n == flushed:
            assert await store.flush()
        await append(store, log, body)
    offset = 0
    for n, body in enumerate(bodies):
        assert payloads(await ask(log.read, offset, 1)) == [body]
        assert payloads(await ask(log.read, offset, 12))[0] == body
        await ask(log.read, offset, 1 << 20)
        part = await ask(log.read_chunk, offset, 1)
        assert taken(part) == records(body)
        wrong = await ask(log.is_record_start, offset + 1)
        assert isinstance(wrong, NotARecord)
        assert isinstance(await ask(log.read, offset + 3, 10), NotARecord)
        assert await ask(log.is_record_start, offset) is True
        assert log.index_entries(offset, offset + 1)[0].records
        offset += 4 + len(bodies[n])
    assert await read_all(log) == bodies


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
async def test_a_late_write_that_fails_loses_nothing_and_publishing_stops_before_memory_does(
    autojump_clock: MockClock, error: int
) -> None:
    settings = attrs.evolve(ROOMY, pending_bytes_max=20 * KIB)
    disk, store = await fresh_store(settings)
    stuck, other = await logs_of(store, ALWAYS, ALWAYS)
    fail(disk, error, lambda operation: log_write(operation) and operation.path == "logmq/t0.log")
    bodies = [b"%d" % n + bytes(1000) for n in range(10)]
    async with running(store):
        for body in bodies:
            await append(store, stuck, body)
        await append(store, other, b"elsewhere")
        await trio.sleep(3)
        assert store.statistics().unapplied_logs == 1
        assert file_size(disk, "logmq/t1.log") == other.end, "its neighbour's file is written"
        assert not await store.checkpoint()
        await append(store, stuck, bytes(15 * KIB))
        await trio.sleep(3)
        with pytest.raises(StoreFull):
            other.append(records(b"x"), 1)
        assert await read_all(stuck) == [*bodies, bytes(15 * KIB)]
        killed = disk.kill()
        disk.before = None
        await trio.sleep(3)
        assert store.statistics().unapplied_logs == 0
        await append(store, other, b"on")
        assert await store.checkpoint()
    for machine in (disk.kill(), killed):
        again = await open_store(machine, settings)
        log = again.namespace("logmq", ALWAYS).logs["t0"]
        assert await read_all(log) == [*bodies, bytes(15 * KIB)]


@pytest.mark.parametrize("read", [False, True])
async def test_what_is_committed_while_a_tail_is_written_stays_in_the_tail(read: bool) -> None:
    disk, store = await fresh_store(ROOMY)
    (log,) = await logs_of(store, ALWAYS)
    await append(store, log, b"first", b"second")

    def before(operation: Operation) -> None:
        if log_write(operation):
            disk.before = None
            log.append(records(b"third"), 1)
            store.commit_pending()
            if read:
                assert log.tail == records(b"first", b"second", b"third")

    disk.before = before
    assert await store.flush()
    assert file_size(disk, "logmq/t0.log") == len(records(b"first", b"second"))
    assert log.tail == records(b"third")
    assert await read_all(log) == [b"first", b"second", b"third"]


async def test_a_close_writes_all_and_leaves_nothing_to_replay() -> None:
    disk, store = await fresh_store()
    logs = await logs_of(store, ALWAYS, INTERVAL)
    for log in logs:
        await append(store, log, b"x")
    await store.close()
    assert [file_size(disk, f"logmq/t{n}.log") for n in range(2)] == [5, 5]
    again = await open_store(disk.kill())
    assert again.statistics().recovered_batches == 0


async def test_a_backup_has_what_no_log_file_has_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await open_store(folder=tmp_path / "data", settings=StorageSettings())
    (log,) = await logs_of(store, ALWAYS)
    await append(store, log, b"in memory")

    async def no_checkpoint() -> bool:
        return False

    monkeypatch.setattr(store, "checkpoint", no_checkpoint)
    report = await backup_files(store, tmp_path / "data", tmp_path / "copy", now_ms=1)
    assert report.check.ok
    store.abandon()
    again = await open_store(folder=tmp_path / "copy")
    assert await read_all(again.namespace("logmq", ALWAYS).logs["t0"]) == [b"in memory"]
    await again.close()

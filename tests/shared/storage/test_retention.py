"""Retention: what goes, what stays, what a jumping clock must not do."""

import errno
import time
from pathlib import Path

import attrs
import pytest
import structlog.testing

from shared.errors import OutOfRange, StoreFull
from shared.storage.format import INDEX_ENTRY_BYTES
from shared.storage.log import Log
from shared.storage.os_disk import SystemClock
from shared.storage.store import Durability, Retention, Store
from shared.units import KIB
from tests.support.commits import fail, journal_write
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    HandClock,
    append,
    ask,
    fresh_store,
    inline,
    open_store,
    read_all,
    records,
    reopen,
    taken,
)

RECORD = 10_000


async def filled(
    store: Store, clock: HandClock, retention: Retention, count: int = 100, *, at_once: int = 1
) -> Log:
    """A log of `count` records; so many of them come in the same second, and share an index entry."""
    log, _ = store.namespace("logmq", ALWAYS, retention=retention).create("orders")
    for n in range(count):
        await append(store, log, b"%04d" % n + bytes(RECORD - 8))
        if n % at_once == at_once - 1:
            clock.advance(1)
    assert await store.flush()
    return log


def punches(disk: FakeDisk) -> list[tuple[str, int, int]]:
    seen: list[tuple[str, int, int]] = []

    def before(operation: Operation) -> None:
        if operation.kind == "punch":
            seen.append((operation.path, operation.offset, operation.length))

    disk.before = before
    return seen


async def test_bytes_above_the_bound_go_and_offsets_stay() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(bytes_kept=300_000))
    end = log.end
    await store.retain()
    assert log.end == end
    assert end - 300_000 - 64 * KIB < log.first <= end - 300_000
    assert log.first % RECORD == 0
    kept = await read_all(log)
    assert [payload[:4] for payload in kept] == [b"%04d" % n for n in range(log.first // RECORD, 100)]
    error = await ask(log.read, log.first - RECORD, 10)
    assert isinstance(error, OutOfRange)
    assert error.first == log.first
    before = punches(disk)
    await store.retain()
    assert log.first % 4096 or before
    first = log.first
    for _ in range(2):
        store, disk = await reopen(store, disk)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        assert (log.first, log.end) == (first, end)
        assert await read_all(log) == kept
        assert [m for m in log.index_entries(0, end) if m.end <= first] == []


@pytest.mark.parametrize(("least", "kept"), [(300_000, 300_000), (299_999, 300_000), (300_001, 320_000)])
async def test_what_stays_is_whole_index_entries_and_never_less_than_the_bound(least: int, kept: int) -> None:
    """An entry is closed with every second record here."""
    clock = HandClock()
    store = await open_store(FakeDisk(), clock=clock)
    log = await filled(store, clock, Retention(bytes_kept=least), at_once=2)
    await store.retain()
    assert log.end - log.first == kept


async def test_records_older_than_the_bound_go() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(ms_kept=40_000))
    await store.retain()
    now = clock.wall_ms()
    entries = log.index_entries(0, log.end)
    assert 0 < log.first == entries[0].offset
    assert entries[0].last_ms >= now - 40_000
    assert log.first >= 50 * RECORD
    clock.advance(3000)
    await store.retain()
    assert log.first == log.end, "everything is too old"
    offset, ticket = log.append(records(b"on"), 1)
    await store.wait(ticket)
    assert offset == log.first
    assert await read_all(log) == [b"on"]


async def test_records_whose_times_are_lost_with_their_index_stay_until_later_ones_go() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log, _ = store.namespace("logmq", ALWAYS, retention=Retention(ms_kept=40_000)).create("orders")
    clock.advance(3600)
    for n in range(10):
        await append(store, log, b"%04d" % n + bytes(RECORD - 8))
    asked_ms = clock.wall_ms()
    await store.close()
    disk.unlink("logmq/orders.idx")
    store = await open_store(disk.kill(), clock=clock)
    log = store.namespace("logmq", ALWAYS, retention=Retention(ms_kept=40_000)).logs["orders"]
    await store.retain()
    assert log.first == 0
    assert log.seek(asked_ms) == 0, "never later than asked for"
    clock.advance(30)
    later = log.end
    await append(store, log, b"later")
    assert await store.flush()
    await store.retain()
    assert (log.first, log.seek(asked_ms + 20_000)) == (0, 0)
    clock.advance(30)
    await store.retain()
    assert log.first == 0, "one may be as old as the later one"
    clock.advance(30)
    await store.retain()
    assert log.first > later


async def test_the_first_offset_is_in_the_journal_before_there_is_a_hole() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(bytes_kept=300_000))
    order: list[str] = []

    def before(operation: Operation) -> None:
        if operation.kind in ("sync", "punch"):
            order.append(f"{operation.kind} {operation.path.partition('/')[0]}")

    disk.before = before
    await store.retain()
    assert not any(step.startswith("punch") for step in order), "it is not durable yet"
    await store.retain()
    assert order.index("sync journal") < order.index("punch logmq")
    assert log.first_kept == log.first


async def test_there_is_no_hole_under_a_reader(tmp_path: Path) -> None:
    clock = HandClock()
    store = await open_store(folder=tmp_path, clock=clock)
    log = await filled(store, clock, Retention(bytes_kept=300_000))
    await store.checkpoint()
    path = tmp_path / "logmq" / "orders.log"
    whole = path.read_bytes()
    blocks = path.stat().st_blocks
    part = await ask(log.read_chunk, 0, 200 * KIB)
    for _ in range(3):
        await store.retain()
    assert log.first > 0
    assert path.read_bytes() == whole, "somebody reads there"
    length = part.length
    assert taken(part) == whole[:length]
    for _ in range(2):
        await store.retain()
    assert path.stat().st_size == len(whole)
    if path.stat().st_blocks < blocks:  # else the file system cannot
        assert path.read_bytes()[log.first :] == whole[log.first :]
        assert not any(path.read_bytes()[: 4096 * (log.first // 4096)])
    await store.close()


async def test_an_index_entry_that_is_kept_in_part_stays_whole_on_the_disk() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(), count=30, at_once=2)
    await store.checkpoint()
    await store.wait(log.drop_below(17 * RECORD))  # the second record of an entry
    holes = punches(disk)
    await store.retain()
    assert [(offset, length) for path, offset, length in holes if path.endswith(".log")] == [
        (0, 16 * RECORD // 4096 * 4096)
    ]
    store, _ = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert len(await read_all(log)) == 13


async def test_an_index_entry_that_still_grows_stays_whole_though_nothing_is_kept_of_it() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    await append(store, log, bytes(30_000))
    assert log.tail_start == log.visible, "so large a commit is written to its file at once"
    holes = punches(disk)
    await store.wait(log.drop_below(log.visible))
    await store.retain()
    await append(store, log, b"behind")
    assert await store.flush()
    store, _ = await reopen(store, disk)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["orders"]) == [b"behind"]
    assert holes == []


@pytest.mark.parametrize("kept", [0, 5, 10], ids="{} newest entries are on the disk".format)
async def test_a_power_cut_amid_retention_is_no_damage(kept: int) -> None:
    """The hole in the index is on the disk; the zeros before it and most of what came later are not."""
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(), count=0)
    ends = []
    for n in range(140):  # the index's first three blocks have 63, 64 and 13 of these entries
        await append(store, log, b"%d" % n + bytes(100))
        ends.append(log.end)
        assert await store.flush()
        if n == 80:
            assert await store.checkpoint()
    index = disk.contents()["logmq/orders.idx"]
    await store.wait(log.drop_below(ends[128]))
    await store.retain()
    disk = disk.kill()
    fd = disk.open("logmq/orders.idx")
    assert disk.read(fd, 4096, 4096) == bytes(4096)
    disk.write(fd, index[:4096], 0)
    disk.truncate(fd, 8192 + kept * INDEX_ENTRY_BYTES)
    with structlog.testing.capture_logs() as logs:
        store = await open_store(disk, clock=clock)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert (log.first, log.end) == (ends[128], ends[-1])
    assert await read_all(log) == [b"%d" % n + bytes(100) for n in range(129, 140)]
    assert [each for each in logs if each["log_level"] == "error"] == []


async def test_a_file_system_without_holes_keeps_the_space_and_the_promise() -> None:
    disk, clock = FakeDisk(), HandClock()
    disk.can_punch = False
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(bytes_kept=300_000))
    tries = punches(disk)
    for _ in range(3):
        await store.retain()
    assert log.first > 0
    assert len(await read_all(log)) == (log.end - log.first) // RECORD
    log.retention = Retention(bytes_kept=100_000)
    for _ in range(2):
        await store.retain()
    assert len(tries) == 1, "it is asked once"


@pytest.mark.parametrize("step", [7200, -7200])
async def test_age_retention_pauses_after_a_step_of_the_clock(step: int) -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(ms_kept=1000 * 1000))
    await store.retain()
    assert not store.statistics().retention_paused
    clock.wall += step * 1000
    await store.retain()
    assert store.statistics().retention_paused
    assert log.first == 0
    clock.advance(5000)
    await store.retain()
    assert log.first == 0
    log.retention = Retention(bytes_kept=0)
    await store.retain()
    assert log.first == log.end, "retention by bytes does not pause"


async def test_a_machine_that_slept_has_a_clock_that_was_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {time.CLOCK_REALTIME: 1.7e9, time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 5000.0}
    monkeypatch.setattr(time, "clock_gettime", seconds.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: seconds[time.CLOCK_MONOTONIC])
    monkeypatch.setattr(time, "time_ns", lambda: round(seconds[time.CLOCK_REALTIME] * 1e9))
    store = await Store.open(Path("unused"), SMALL, disk=FakeDisk(), clock=SystemClock(), in_thread=inline)
    for clock in (time.CLOCK_REALTIME, time.CLOCK_BOOTTIME):  # the other stands still
        seconds[clock] += 8 * 3600
    await store.retain()
    assert not store.statistics().retention_paused


async def test_a_clock_behind_the_catalog_pauses_age_retention_from_the_start() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    await filled(store, clock, Retention(ms_kept=1000), count=3)
    await store.close()
    store = await open_store(disk.kill(), clock=HandClock(clock.wall_ms() - 2 * 3_600_000))
    assert store.statistics().retention_paused


async def test_an_index_gives_space_back_too_and_still_finds_everything() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, attrs.evolve(SMALL, segment_bytes=1024 * KIB), clock=clock)
    log, _ = store.namespace("logmq", ALWAYS, retention=Retention(bytes_kept=8 << 20)).create("orders")
    for _ in range(300):
        await append(store, log, bytes(70_000))
    await store.checkpoint()
    for _ in range(2):
        await store.retain()
    fd = disk.open("logmq/orders.idx")
    index = disk.read(fd, disk.size(fd), 0)
    assert len(index) == 64 + 300 * 64
    assert not any(index[64 : 128 * 64])
    assert any(index[192 * 64 : 192 * 64 + 64])
    for machine in (disk, disk.kill()):
        if machine is not disk:
            store = await open_store(machine)
            log = store.namespace("logmq", ALWAYS).logs["orders"]
        entries = log.index_entries(0, log.end)
        assert entries[0].offset == log.first
        assert len(entries) == (log.end - log.first) // 70_004
        for entry in entries:
            assert len(await ask(log.read, entry.offset, 10)) == 70_004
        assert log.seek(0) == log.first


async def test_a_first_offset_that_cannot_be_written_is_taken_back() -> None:
    disk, clock = FakeDisk(), HandClock()
    store = await open_store(disk, clock=clock)
    log = await filled(store, clock, Retention(), count=5)
    fail(disk, errno.ENOSPC, journal_write, times=1)
    ticket = log.drop_below(2 * RECORD)
    assert isinstance(await ask(log.read, 0, 10), OutOfRange)
    with pytest.raises(StoreFull):
        await store.wait(ticket)
    assert (log.first, log.first_kept) == (0, 0)
    assert len(await read_all(log)) == 5


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_what_was_copied_forward_is_safe_before_the_original_is_dropped(mode: Durability) -> None:
    """A power cut right after the ticket: the copies are there, whatever the log's mode."""
    disk, store = await fresh_store()
    log, _ = store.namespace("logmq", mode).create("orders")
    await append(store, log, b"dead" * 2000, b"live")
    copy, _ = log.append(records(b"live"), 1)
    await store.wait(log.drop_below(copy))
    for choose in (lambda n, what: n - 1, lambda n, what: 0):
        store = await open_store(disk.power_cut().boot(choose))
        log = store.namespace("logmq", mode).logs["orders"]
        assert log.first == copy
        assert await read_all(log) == [b"live"]

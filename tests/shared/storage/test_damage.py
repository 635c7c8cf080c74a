"""Damaged files: what is damaged is an error, and the rest is served."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from shared.errors import (
    CorruptRecord,
    LogDeleted,
    StoreClosed,
)
from shared.storage.format import INDEX_ENTRY_BYTES, IndexEntry
from shared.storage.index import entry_position, read_index
from shared.storage.log import Log
from shared.storage.settings import Retention
from shared.storage.store import Store
from shared.storage.tools.backup import backup_files
from shared.storage.tools.fsck import Severity, check_disk
from shared.storage.tools.view import Trust
from shared.units import KIB
from tests.support.fake_disk import FakeDisk
from tests.support.folders import checked, open_folder
from tests.support.stores import (
    ALWAYS,
    SMALL,
    HandClock,
    append,
    ask,
    filled,
    fresh_store,
    open_store,
    payloads,
    read_all,
    running,
    taken,
)


@pytest.mark.parametrize("how", ["missing", "short", "last entry", "header"])
async def test_a_broken_index_is_rebuilt_and_says_so(how: str) -> None:
    disk, store = await fresh_store()
    log = await filled(store)
    whole = await read_all(log)
    await store.close()
    disk = disk.kill()
    if how == "missing":
        disk.unlink("logmq/orders.idx")
    else:
        fd = disk.open("logmq/orders.idx")
        size = disk.size(fd)
        if how == "short":
            disk.truncate(fd, size - 100)
        else:
            disk.write(fd, b"\xff", 4 if how == "header" else size - 10)
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert await read_all(log) == whole
    entries = log.index_entries(0, log.end)
    assert entries[-1].unverified == (how != "header")
    assert entries[0].unverified == (how == "missing")
    assert entries[-1].end == log.end
    await append(store, log, b"more")
    assert (await read_all(log))[-1] == b"more"


async def test_a_log_file_that_is_gone_is_damage_not_a_crash() -> None:
    disk, store = await fresh_store()
    await filled(store)
    await store.close()
    disk = disk.kill()
    disk.unlink("logmq/orders.log")
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert isinstance(await ask(log.read, 0, 10), CorruptRecord)
    assert isinstance(await ask(log.read_chunk, 0, 1 << 20), CorruptRecord)


# -- reading what is not in memory


class ColdDisk(FakeDisk):
    """Nothing is ever in the page cache."""

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        return None


async def test_cold_reads_are_answered_later_and_the_same() -> None:
    disk = ColdDisk()
    store = await open_store(disk)
    log = await filled(store)
    assert await store.flush()
    async with running(store):
        assert len(await read_all(log)) == 300
        assert payloads(await ask(log.read, 1004, 1))[0][:6] == b"000001"
        early: list[object] = []
        log.read(200 * 1004, 10, early.append)
        assert early == []
        store.namespace("logmq", ALWAYS).delete("orders")
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(early[0], LogDeleted)
    assert store.statistics().cold_reads >= 3


async def test_a_cold_read_is_answered_when_the_store_stops() -> None:
    blocked, threads_are_busy = trio.Event(), False

    async def in_thread(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        if threads_are_busy:
            blocked.set()
            await trio.sleep_forever()
        return work(*arguments)

    store = await Store.open(Path("unused"), SMALL, disk=ColdDisk(), clock=HandClock(), in_thread=in_thread)
    log = await filled(store)
    assert await store.flush()
    found: list[object] = []
    threads_are_busy = True
    async with running(store):
        log.read(0, 10, found.append)
        await blocked.wait()
    assert isinstance(found[0], StoreClosed)


async def test_a_bug_in_who_asked_does_not_end_the_store() -> None:
    store = await open_store(ColdDisk())
    log = await filled(store)
    assert await store.flush()

    def bug(_: object) -> None:
        raise ZeroDivisionError

    async with running(store):
        log.read(0, 10, bug)
        assert len(await ask(log.read, 0, 10)) == 1004


# -- damaged index entries


SAID = "damaged index: made anew from its log, which is served, unverified; look at the disk"
RECORD_BYTES = 1004


async def closed(disk: FakeDisk, count: int, size: int = 1000, pause_every: int = 0) -> list[IndexEntry]:
    """A log `orders` of so many records; its index entries. `pause_every`: an entry ends so often."""
    store = await open_store(disk)
    if pause_every:
        log, _ = store.namespace("logmq", ALWAYS, plain_names=True).create("orders", ALWAYS)
        for number in range(count):
            await append(store, log, b"%06d" % number + bytes(size - 6))
            if number % pause_every == pause_every - 1:
                await store.checkpoint()
    else:
        log = await filled(store, count=count, size=size)
    entries = log.index_entries(0, log.end)
    await store.close()
    return entries


def break_entries(disk: FakeDisk, low: int, high: int, *, zeros: bool = False) -> None:
    """Flip a bit in each of these entries, or have them zeroed."""
    fd = disk.open("logmq/orders.idx")
    for number in range(low, high):
        position = entry_position(number)
        (byte,) = disk.read(fd, 1, position + 33)
        disk.write(fd, bytes(INDEX_ENTRY_BYTES) if zeros else bytes([byte ^ 4]), position + 33 * (not zeros))


async def opened(disk: FakeDisk) -> tuple[Store, Log]:
    store = await open_store(disk)
    return store, store.namespace("logmq", ALWAYS).logs["orders"]


def stored(disk: FakeDisk) -> list[IndexEntry | None]:
    found = read_index(disk, disk.open("logmq/orders.idx"))
    assert found is not None
    return found.entries


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 2), (-1, None), (1, 4), (0, None), (-3, None)])
@pytest.mark.parametrize("cold", [False, True])
async def test_what_damaged_entries_cover_is_served_counted_and_told_once(
    low: int, high: int | None, cold: bool
) -> None:
    disk = ColdDisk() if cold else FakeDisk()
    every = await closed(disk, 400)
    low, high = low % len(every), len(every) if high is None else high
    bad, covered = every[low:high], every[high - 1].end - every[low].offset
    break_entries(disk, low, high)
    with capture_logs() as events:
        store, log = await opened(disk)
        async with running(store):
            for entry in bad:
                assert isinstance(await ask(log.read, entry.offset, 10), bytes)
            assert [payload[:6] for payload in await read_all(log)] == [b"%06d" % n for n in range(400)]
            assert len(taken(await ask(log.read_chunk, bad[0].offset, covered))) == covered
            found = log.index_entries(0, log.end)
            await store.close()
    assert [entry.offset for entry in found[1:]] == [entry.end for entry in found[:-1]]
    assert [entry for entry in found if not entry.unverified] == every[:low] + every[high:]
    assert sum(entry.records for entry in found) == 400
    assert store.statistics().damaged_ranges == 1
    (told,) = [event for event in events if event["log_level"] == "error"]
    assert (told["event"], told["path"]) == (SAID, "logmq/orders.idx")
    assert (told["offset"], told["covered_bytes"]) == (entry_position(low), covered)

    assert None not in stored(disk), "it is made anew once, not at every start"
    store, log = await opened(disk)
    assert len(await read_all(log)) == 400
    assert store.statistics().damaged_ranges == 0


async def test_a_range_of_many_entries_goes_on_across_a_damaged_one() -> None:
    disk = FakeDisk()
    every = await closed(disk, 400)
    break_entries(disk, 3, 4)
    _, log = await opened(disk)
    assert len(taken(await ask(log.read_chunk, 0, every[-1].end))) == every[-1].end


async def test_a_time_in_a_damaged_entry_is_found_at_its_start_or_before() -> None:
    disk = FakeDisk()
    every = await closed(disk, 400)
    break_entries(disk, 2, 3)
    _, log = await opened(disk)
    assert log.seek(every[2].first_ms) <= every[2].offset
    assert log.seek(every[-1].last_ms + 1) == log.visible


@pytest.mark.parametrize(("low", "high"), [(3, 7), (0, 9), (5, 130), (40, 100), (0, 200)])
@pytest.mark.parametrize("zeros", [False, True])
async def test_damage_of_many_small_entries_leaves_none_that_cannot_be_found(
    low: int, high: int, zeros: bool
) -> None:
    disk = FakeDisk()
    every = await closed(disk, 200, size=20, pause_every=1)
    assert len(every) == 200
    break_entries(disk, low, high, zeros=zeros)
    for start in 0, low, 2, high, 199:  # whichever is asked for first
        store, log = await opened(disk.kill())
        offset = every[min(start, 199)].offset
        assert len(await ask(log.read, offset, 1)) == 24
        assert log.index_entries(offset, offset + 1)
        assert len(await read_all(log)) == 200
        assert sum(entry.records for entry in log.index_entries(0, log.end)) == 200
        assert store.statistics().damaged_ranges >= 1


async def test_where_the_log_is_damaged_too_that_range_is_an_error_of_the_log_and_no_other() -> None:
    disk = FakeDisk()
    every = await closed(disk, 400)
    break_entries(disk, 2, 3)
    fd = disk.open("logmq/orders.log")
    disk.write(
        fd, b"\x7f", every[2].offset + 5 * RECORD_BYTES
    )  # a length field: nobody can tell what follows
    store, log = await opened(disk)
    for read in log.read, log.read_chunk:
        for offset in every[2].offset, every[2].offset + 9 * RECORD_BYTES:
            error = await ask(read, offset, 1 << 20)
            assert isinstance(error, CorruptRecord)
            assert (error.path, error.offset) == ("logmq/orders.log", every[2].offset)
    assert len(await ask(log.read, 0, 1 << 20)) == every[2].offset
    assert len(await ask(log.read, every[3].offset, 1 << 20)) == log.visible - every[3].offset
    assert store.statistics().damaged_ranges == 2


async def test_a_gap_for_which_the_index_has_no_entry_is_served() -> None:
    disk = FakeDisk()
    every = await closed(disk, 400)
    fd = disk.open("logmq/orders.idx")
    rest = disk.read(fd, 1 << 20, entry_position(3))
    disk.write(fd, rest, entry_position(2))
    disk.truncate(fd, disk.size(fd) - INDEX_ENTRY_BYTES)
    store, log = await opened(disk)
    assert len(await ask(log.read, every[2].offset, 1)) == RECORD_BYTES
    assert len(await read_all(log)) == 400
    assert store.statistics().damaged_ranges == 1


async def test_retention_drops_whole_entries_across_damaged_ones_and_no_others() -> None:
    disk = FakeDisk()
    every = await closed(disk, 2400)
    for number in (3, len(every) // 2, len(every) - 3):
        break_entries(disk, number, number + 1)
    store, log = await opened(disk)
    log.retention = Retention(bytes_kept=200 * KIB)
    await store.retain()
    await store.retain()
    largest = max(after.offset - entry.offset for entry, after in pairwise(every))
    assert 200 * KIB <= log.visible - log.first < 200 * KIB + largest
    assert len(await read_all(log)) == (log.visible - log.first) // RECORD_BYTES
    await store.close()
    store, log = await opened(disk)
    assert len(await read_all(log)) == (log.visible - log.first) // RECORD_BYTES


async def test_damage_of_an_index_that_recovery_meets_is_counted_and_told() -> None:
    disk, store = await fresh_store()
    log = await filled(store)
    await store.checkpoint()
    entries = len(stored(disk))
    await append(store, log, b"journaled")
    store.abandon()
    disk = disk.kill()
    break_entries(disk, entries - 1, entries)
    with capture_logs() as events:
        store, log = await opened(disk)
    (told,) = [event for event in events if event["event"] == SAID]
    assert (told["path"], told["offset"]) == ("logmq/orders.idx", entry_position(entries - 1))
    assert store.statistics().damaged_ranges == 1
    assert (await read_all(log))[-1] == b"journaled"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (1, 3), (2, None)])
async def test_a_backup_of_a_served_folder_has_a_whole_index(
    tmp_path: Path, low: int, high: int | None
) -> None:
    store = await open_folder(tmp_path / "data")
    log = await filled(store)
    await store.checkpoint()
    path = tmp_path / "data" / "logmq" / "orders.idx"
    data = bytearray(path.read_bytes())
    for number in range(low, len(data) // INDEX_ENTRY_BYTES - 1 if high is None else high):
        data[entry_position(number) + 20] ^= 1
    path.write_bytes(data)
    report = await backup_files(store, tmp_path / "data", tmp_path / "copy", now_ms=1)
    assert report.check.ok
    records, sums = checked(tmp_path / "copy", "logmq", "orders")
    assert (records, sums[Trust.UNCOVERED], sums[Trust.DAMAGED]) == (300, 0, 0)
    assert sums[Trust.UNVERIFIED] > 0
    assert len(await read_all(log)) == 300
    await store.close()


async def test_a_folder_that_was_mended_while_it_was_served_is_in_order() -> None:
    disk = FakeDisk()
    await closed(disk, 400)
    break_entries(disk, 2, 4)
    store, log = await opened(disk)
    await read_all(log)
    await store.close()
    assert all(finding.severity is Severity.NOTE for finding in check_disk(disk).findings)

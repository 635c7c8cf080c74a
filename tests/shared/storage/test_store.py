"""The store as protocols see it: appending, reading, closing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shared.errors import (
    LogDeleted,
    NotARecord,
    OutOfRange,
    StoreClosed,
    StoreError,
)
from shared.storage import format
from shared.storage.log import Log
from shared.storage.log_writer import LogWriter
from shared.storage.settings import StorageSettings
from shared.storage.store import Durability, Store
from shared.units import KIB
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    MODES,
    SMALL,
    HandClock,
    append,
    ask,
    filled,
    fresh_store,
    open_store,
    payloads,
    read_all,
    records,
    reopen,
    running,
    taken,
)


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_what_is_appended_is_read_after_its_ticket_and_not_before(mode: Durability) -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", mode).create("orders")
    first, ticket = log.append(records(b"one", b"two"), 2)
    second, same = log.append(records(b"three"), 1)
    assert (first, second, log.end, log.visible) == (0, 14, 23, 0)
    assert same is ticket
    assert await ask(log.read, 0, 1000) == b""
    await store.wait(ticket)
    assert log.visible == 23
    assert payloads(await ask(log.read, 0, 1000)) == [b"one", b"two", b"three"]
    assert await ask(log.read, 14, 1000) == records(b"three")
    assert await ask(log.read, 23, 1000) == b""
    assert await ask(log.read, 99, 1000) == b""


async def test_a_read_gives_whole_records_within_its_bound_and_at_least_one() -> None:
    store = await open_store(FakeDisk())
    log = await filled(store, size=96)
    for bound, count in ((1, 1), (100, 1), (199, 1), (200, 2), (1050, 10)):
        data = await ask(log.read, 500, bound)
        assert payloads(data) == [b"%06d" % n + bytes(90) for n in range(5, 5 + count)]
    data = await ask(log.read, 500, 10 << 20)
    assert len(data) == log.end - 500


async def test_a_record_larger_than_any_bound_comes_whole() -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    big = bytes(range(256)) * 2000
    await append(store, log, b"a", big, b"b")
    assert payloads(await ask(log.read, 5, 10)) == [big]
    assert payloads(await ask(log.read, 0, 200 * KIB)) == [b"a"]
    assert await read_all(log) == [b"a", big, b"b"]


async def test_an_offset_inside_a_record_is_refused_and_the_nearest_below_named() -> None:
    store = await open_store(FakeDisk())
    log = await filled(store, size=96)
    for offset in (1, 50, 101, 25_399):
        error = await ask(log.read, offset, 1000)
        assert isinstance(error, NotARecord)
        assert error.below == offset // 100 * 100
        assert isinstance(await ask(log.read_chunk, offset, 1 << 20), NotARecord)
        assert isinstance(await ask(log.is_record_start, offset), NotARecord)
    assert await ask(log.is_record_start, 2500) is True
    assert await ask(log.is_record_start, log.end) is True
    assert isinstance(await ask(log.is_record_start, log.end + 1), NotARecord)


async def test_chunks_are_ranges_of_the_file_that_hold_whole_records(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    log = await filled(store)
    assert await store.flush()
    data = (tmp_path / "logmq" / "orders.log").read_bytes()
    assert data == b"".join(records(payload) for payload in await read_all(log))
    offset = 0
    while offset < log.visible:
        part = await ask(log.read_chunk, offset, 100 * KIB)
        assert part.fd >= 0
        length = part.length
        assert taken(part) == data[offset : offset + length]
        assert format.count_records(data[offset : offset + length])
        offset += length
    assert (await ask(log.read_chunk, offset, 1000)).length == 0
    small = await ask(log.read_chunk, 1004, 10)
    assert (small.offset, small.length) == (1004, 1004)
    small.release()
    assert log.users is None
    await store.close()


async def test_time_seeks_find_the_index_entry_that_reaches_it() -> None:
    clock = HandClock(1_000_000)
    store = await open_store(FakeDisk(), clock=clock)
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    async with running(store):
        starts = []
        for _ in range(5):
            offset, ticket = log.append(records(bytes(70_000)), 1)
            starts.append(offset)
            await store.wait(ticket)
            clock.advance(10)
    assert log.seek(0) == 0
    assert log.seek(1_020_000) == starts[2]
    assert log.seek(1_020_001) == starts[3]
    assert log.seek(2_000_000) == log.visible


async def test_a_closed_store_takes_nothing() -> None:
    store = await open_store(FakeDisk())
    log = await filled(store)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        log.append(records(b"x"), 1)
    with pytest.raises(StoreClosed):
        store.namespace("logmq", ALWAYS).create("other")


async def test_nothing_is_taken_any_more_while_the_last_checkpoint_is_made() -> None:
    gate = trio.Event()
    slow = False

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if slow:
            await gate.wait()
        return work(*args)

    disk = FakeDisk()
    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=in_thread)
    log = await filled(store, count=10)
    before = await read_all(log)
    slow = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.close)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(StoreClosed):  # acknowledged, it would be lost: the next start trusts the catalog
            log.append(records(b"late"), 1)
        gate.set()
    store = await open_store(disk)
    assert await read_all(store.namespace("logmq", ALWAYS, plain_names=True).logs["orders"]) == before


async def test_real_threads_serve_many_logs(tmp_path: Path) -> None:
    """On the system's own disk, clock and threads: commits are under way while others append and read."""
    settings = StorageSettings(segment_bytes=256 * KIB, inline_sync_seconds=0, reader_threads=2)
    store = await Store.open(tmp_path, settings)
    namespace = store.namespace("logmq", ALWAYS)
    async with running(store):

        async def writer(name: str) -> None:
            log, _ = namespace.create(name)
            for n in range(60):
                await append(store, log, b"%s %d" % (name.encode(), n), bytes(500))
                data = await ask(log.read, log.first, 64)
                assert payloads(data)[0] == b"%s 0" % name.encode()

        async with trio.open_nursery() as nursery:
            for n in range(12):
                nursery.start_soon(writer, f"t{n}")
        with trio.fail_after(60):  # more than a segment was written: a checkpoint is on its way
            while not store.statistics().checkpoints:  # noqa: ASYNC110  # a thread's work: no event
                await trio.sleep(0.01)
    statistics = store.statistics()
    assert statistics.records == 12 * 120
    await store.close()
    store = await Store.open(tmp_path, settings)
    for name, log in store.namespace("logmq", ALWAYS).logs.items():
        assert (await read_all(log))[::2] == [b"%s %d" % (name.encode(), n) for n in range(60)]
    await store.close()


async def test_reading_below_the_first_kept_offset_is_out_of_range() -> None:
    store = await open_store(FakeDisk())
    log = await filled(store)
    await store.wait(log.drop_below(10_040))
    error = await ask(log.read, 9036, 10)
    assert isinstance(error, OutOfRange)
    assert error.first == 10_040
    assert len(await ask(log.read, 10_040, 10)) == 1004
    assert isinstance(await ask(log.is_record_start, 0), OutOfRange)


# -- a log's life


async def test_a_log_made_again_by_its_name_is_another_log() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    old = await filled(store)
    part = await ask(old.read_chunk, 0, 1 << 20)
    told: list[Log] = []
    old.watchers.add(told.append)
    namespace.delete("orders")
    assert told == [old]
    assert old.deleted
    assert isinstance(await ask(old.read, 0, 10), LogDeleted)
    with pytest.raises(LogDeleted):
        old.append(records(b"late"), 1)
    new, _ = namespace.create("orders")
    await append(store, new, b"new")
    assert new.id > old.id
    assert isinstance(await ask(old.read, 0, 10), LogDeleted)
    assert len(taken(part)) == part.length > 0, "a reader that had begun goes on with the old bytes"
    assert await read_all(new) == [b"new"]
    for _ in range(2):
        store, disk = await reopen(store, disk)
        log = store.namespace("logmq", ALWAYS, plain_names=True).logs["orders"]
        assert log.id == new.id
        assert await read_all(log) == [b"new"]


async def test_a_deleted_log_leaves_no_files_and_no_handles(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, store = await fresh_store()
    await filled(store)
    async with running(store):
        await trio.sleep(1)  # the entries are written
        assert disk.names("logmq") == ["orders.idx", "orders.log"]
        await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))
        assert disk.names("logmq") == []
    assert store.statistics().open_files == 0


async def test_a_thread_late_with_an_old_logs_work_does_not_touch_the_new_ones_files() -> None:
    """A log's records are being written to its files while the log goes and its name comes anew."""
    gate, reached = trio.Event(), trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if isinstance(getattr(work, "__self__", None), LogWriter):
            reached.set()
            await gate.wait()
        return work(*args)

    disk = FakeDisk()
    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=in_thread)
    namespace = store.namespace("logmq", ALWAYS)
    old, _ = namespace.create("orders")
    await append(store, old, b"old")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.flush)
        await reached.wait()
        namespace.delete("orders")
        new, _ = namespace.create("orders")
        await append(store, new, b"new one")
        gate.set()
    await store.flush()
    assert await read_all(new) == [b"new one"]
    store, disk = await reopen(store, disk)
    new = store.namespace("logmq", ALWAYS).logs["orders"]
    assert await read_all(new) == [b"new one"]
    assert not any(entry.unverified for entry in new.index_entries(0, new.end))


async def test_names_become_file_names_that_any_file_system_takes() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("dms", ALWAYS)
    for name in ("Orders", ".hidden", "a/b", "ü", "x" * 250):
        log, _ = namespace.create(name)
        await append(store, log, name.encode())
    assert await store.flush()
    names = disk.names("dms")
    assert {"%4Frders.log", "%2Ehidden.log", "a%2Fb.log", "%C3%BC.log"} < set(names)
    assert all(len(name) < 220 for name in names)
    store, _ = await reopen(store, disk)
    logs = store.namespace("dms", ALWAYS).logs
    assert {name: await read_all(log) for name, log in logs.items()} == {
        name: [name.encode()] for name in ("Orders", ".hidden", "a/b", "ü", "x" * 250)
    }


async def test_a_second_log_by_one_name_is_refused() -> None:
    store = await open_store(FakeDisk())
    namespace = store.namespace("logmq", ALWAYS)
    namespace.create("orders")
    with pytest.raises(StoreError, match="already"):
        namespace.create("orders")


async def test_a_file_that_nobody_owns_is_moved_aside() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS)
    fd = disk.open("logmq/orders.log", create=True)
    disk.write(fd, b"somebody's", 0)
    disk.close(fd)
    log, _ = namespace.create("orders")
    await append(store, log, b"ours")
    assert await store.flush()
    assert await read_all(log) == [b"ours"]
    assert f"orders.log.stray-{log.id}" in disk.names("logmq")

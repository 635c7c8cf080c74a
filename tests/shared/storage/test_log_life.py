"""A log from its creation to its deletion, and the one that is made by its name later."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shared.errors import (
    LogDeleted,
    StoreError,
)
from shared.storage.index_writer import IndexWriter
from shared.storage.log import Log
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    HandClock,
    ask,
    filled,
    open_store,
    read_all,
    records,
    reopen,
    running,
    taken,
)


async def test_a_log_made_again_by_its_name_is_another_log() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
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
    _, ticket = new.append(records(b"new"), 1)
    await store.wait(ticket)
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
    disk = FakeDisk()
    store = await open_store(disk)
    await filled(store)
    async with running(store):
        await trio.sleep(1)  # the entries are written
        assert disk.names("logmq") == ["orders.idx", "orders.log"]
        await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))
        assert disk.names("logmq") == []
    assert store.statistics().open_files == 0


@pytest.mark.parametrize("late", ["_write", "_apply"])
async def test_a_thread_late_with_an_old_logs_work_does_not_touch_the_new_ones_files(late: str) -> None:
    """An index flush, or a log write tried again, is under way while a log goes and its name comes anew."""
    gate, reached = trio.Event(), trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        if getattr(work, "__name__", "") == late and isinstance(getattr(work, "__self__", None), IndexWriter):
            reached.set()
            await gate.wait()
        return work(*args)

    disk = FakeDisk()
    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=in_thread)
    namespace = store.namespace("logmq", ALWAYS)
    old, _ = namespace.create("orders")
    if late == "_apply":

        def refuse(operation: Operation) -> None:
            if operation.kind == "write" and operation.path.endswith(".log"):
                raise OSError(errno.ENOSPC, "injected")

        disk.before = refuse
    await store.wait(old.append(records(b"old"), 1)[1])
    disk.before = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store._index_writer.flush)
        await reached.wait()
        namespace.delete("orders")
        new, _ = namespace.create("orders")
        await store.wait(new.append(records(b"new one"), 1)[1])
        gate.set()
    await store.flush_index()
    assert await read_all(new) == [b"new one"]
    store, disk = await reopen(store, disk)
    new = store.namespace("logmq", ALWAYS).logs["orders"]
    assert await read_all(new) == [b"new one"]
    assert not any(entry.unverified for entry in new.index_entries(0, new.end))


async def test_names_become_file_names_that_any_file_system_takes() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    namespace = store.namespace("dms", ALWAYS)
    for name in ("Orders", ".hidden", "a/b", "ü", "x" * 250):
        _, ticket = namespace.create(name)
        log = namespace.logs[name]
        _, ticket = log.append(records(name.encode()), 1)
        await store.wait(ticket)
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
    disk = FakeDisk()
    store = await open_store(disk)
    namespace = store.namespace("logmq", ALWAYS)
    fd = disk.open("logmq/orders.log", create=True)
    disk.write(fd, b"somebody's", 0)
    disk.close(fd)
    log, _ = namespace.create("orders")
    _, ticket = log.append(records(b"ours"), 1)
    await store.wait(ticket)
    assert await read_all(log) == [b"ours"]
    assert f"orders.log.stray-{log.id}" in disk.names("logmq")


async def test_a_mode_changes_for_what_comes_and_survives_a_start() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    namespace = store.namespace("logmq", ALWAYS)
    log, _ = namespace.create("orders")
    expected = []
    for n, mode in enumerate([NONE, ALWAYS, INTERVAL, NONE, NONE, ALWAYS] * 2):
        namespace.change_mode("orders", mode)
        _, ticket = log.append(records(b"%d" % n), 1)
        expected.append(b"%d" % n)
        if n % 3:
            await store.wait(ticket)
    await store.wait(ticket)
    assert await read_all(log) == expected
    store, disk = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert log.mode == ALWAYS
    assert await read_all(log) == expected

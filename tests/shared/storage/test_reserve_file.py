"""A start on a volume that others have filled."""

import errno

import attrs
import pytest
from trio.testing import wait_all_tasks_blocked

from shared.errors import StoreFull
from shared.storage import reserve_file
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    SMALL,
    append,
    fresh_store,
    open_store,
    read_all,
    records,
    reopen,
    running,
)


async def _filled() -> FakeDisk:
    """What a running store with one record left when others had taken the rest of the volume."""
    disk, store = await fresh_store()
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    async with running(store):
        await append(store, log, b"one")
        await wait_all_tasks_blocked()
    store.abandon()
    after = disk.kill()
    after.free, after.full = 0, True
    return after


async def test_a_start_on_a_full_volume_serves_in_the_space_that_was_set_aside() -> None:
    disk = await _filled()

    def before(operation: Operation) -> None:
        if (operation.kind, operation.path) == ("unlink", reserve_file.PATH):
            disk.full = False

    disk.before = before
    store = await open_store(disk, attrs.evolve(SMALL, reserve_bytes_min=1))
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert await read_all(log) == [b"one"]
    with pytest.raises(StoreFull):
        log.append(records(b"two"), 1)
    assert log.append(records(b"acknowledged"), 1, reserved=True)
    assert reserve_file.PATH not in disk.contents()
    async with running(store):
        await wait_all_tasks_blocked()
    assert reserve_file.PATH not in disk.contents(), "publishing comes first"
    disk.free = 1 << 40
    store, disk = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    async with running(store):
        await append(store, log, b"two")
        await wait_all_tasks_blocked()
    assert len(disk.contents()[reserve_file.PATH]) == 2 * SMALL.segment_bytes
    await store.close()


async def test_without_the_file_a_start_on_a_full_volume_is_refused_and_takes_nothing() -> None:
    disk = await _filled()
    disk.unlink(reserve_file.PATH)
    before = disk.contents()
    with pytest.raises(OSError, match="space") as raised:
        await open_store(disk)
    assert raised.value.errno == errno.ENOSPC
    assert disk.contents() == before
    disk.full = False
    store = await open_store(disk)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["orders"]) == [b"one"]
    await store.close()


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "no space")])
async def test_a_store_that_cannot_set_space_aside_goes_on_and_tries_again(error: Exception) -> None:
    disk, store = await fresh_store()
    tried = 0

    def before(operation: Operation) -> None:
        nonlocal tried
        if operation.path == reserve_file.PATH and operation.kind == "allocate":
            tried += 1
            raise error

    disk.before = before
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    async with running(store):
        await append(store, log, b"one")
        await wait_all_tasks_blocked()
    assert tried
    assert reserve_file.PATH not in disk.contents()
    assert await read_all(log) == [b"one"]
    disk.before = None
    async with running(store):
        await wait_all_tasks_blocked()
    assert reserve_file.PATH in disk.contents()
    await store.close()

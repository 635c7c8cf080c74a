"""A checkpoint vouches for what is durable; what was only asked for may still be taken back, or be lost."""

import errno
from collections.abc import Iterator

import pytest

from shared.storage.log import Log
from shared.storage.settings import Durability
from shared.storage.store import Store
from tests.support.explore import every_state
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS, INTERVAL, NONE, open_store, read_all, records


async def append(store: Store, log: Log, payload: bytes) -> None:
    _, ticket = log.append(records(payload), 1)
    await store.wait(ticket)


def after_a_crash(disk: FakeDisk) -> Iterator[FakeDisk]:
    """What the next start may find: the process died, or the power went off."""
    yield disk.kill()
    yield from every_state(disk.power_cut(), 1000)


async def require(disk: FakeDisk, *payloads: bytes) -> None:
    again = await open_store(disk)
    assert await read_all(again.namespace("things", ALWAYS).logs["a"]) == [*payloads]
    again.abandon()


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
@pytest.mark.parametrize("checkpointed_before", [False, True])
async def test_a_log_whose_deletion_is_under_way_keeps_all_its_records(
    mode: Durability, checkpointed_before: bool
) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    things = store.namespace("things", mode)
    log, _ = things.create("a")
    await append(store, log, b"first")
    if checkpointed_before:
        assert await store.checkpoint()
    await append(store, log, b"second")
    things.delete("a")  # it waits for the commit after this
    assert await store.checkpoint()
    for after in after_a_crash(disk):
        await require(after, b"first", b"second")
    store.abandon()


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_a_log_whose_deletion_was_refused_is_in_the_next_checkpoint(mode: Durability) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    things = store.namespace("things", mode)
    log, _ = things.create("a")
    await append(store, log, b"first")
    assert await store.checkpoint()
    await append(store, log, b"second")
    deleted = things.delete("a")
    assert await store.checkpoint()

    def refuse(operation: Operation) -> None:
        disk.before = None
        raise OSError(errno.ENOSPC, "no space")

    disk.before = refuse
    store.commit_pending()
    assert deleted.error is not None
    assert things.logs["a"] is log
    assert await store.checkpoint()
    for after in after_a_crash(disk):
        await require(after, b"first", b"second")
    store.abandon()


async def test_index_entries_of_a_log_whose_deletion_was_refused_still_reach_its_index() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    things = store.namespace("things", ALWAYS)
    log, _ = things.create("a")
    await append(store, log, b"first")
    deleted = things.delete("a")
    assert await store.checkpoint()  # it writes what entries there are

    def refuse(operation: Operation) -> None:
        disk.before = None
        raise OSError(errno.ENOSPC, "no space")

    disk.before = refuse
    store.commit_pending()
    assert deleted.error is not None
    await store.close()
    again = await open_store(disk)
    (entry,) = again.namespace("things", ALWAYS).logs["a"].index_entries(0, log.end)
    assert not entry.flags, "verified since it was written, not rebuilt from what was found"
    again.abandon()


@pytest.mark.parametrize(("before", "then"), [(NONE, INTERVAL), (NONE, ALWAYS), (ALWAYS, NONE)], ids=str)
async def test_a_mode_is_in_the_catalog_once_its_change_is_durable(
    before: Durability, then: Durability
) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    things = store.namespace("things", before)
    log, _ = things.create("a")
    await append(store, log, b"first")
    _, second = log.append(records(b"second"), 1)
    things.change_mode("a", then)
    assert await store.checkpoint()  # both wait for the commit after this
    killed = await open_store(disk.kill())
    assert killed.namespace("things", ALWAYS).logs["a"].mode == before
    killed.abandon()
    store.commit_pending()
    assert second.done
    await require(disk.kill(), b"first", b"second")
    assert await store.checkpoint()
    for after in after_a_crash(disk):
        await require(after, b"first", b"second")
    killed = await open_store(disk.kill())
    assert killed.namespace("things", ALWAYS).logs["a"].mode == then
    killed.abandon()
    store.abandon()

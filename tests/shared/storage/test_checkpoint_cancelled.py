"""A checkpoint that is cancelled leaves everything for the next one to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing

from shared.storage.store import Store
from tests.support.explore import every_state
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, SMALL, HandClock, open_store, read_all, records


async def test_one_that_is_cancelled_before_it_has_written_forgets_no_log() -> None:
    disk = FakeDisk()
    slow = False
    gate = trio.Event()

    async def in_thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        if slow:
            with trio.CancelScope(shield=True):  # a thread that has begun is waited for
                await gate.wait()
        return work(*args)

    store = await Store.open(Path("unused"), SMALL, disk=disk, clock=HandClock(), in_thread=in_thread)
    log, _ = store.namespace("things", ALWAYS).create("a")
    _, ticket = log.append(records(b"acknowledged"), 1)
    await store.wait(ticket)
    slow = True
    async with trio.open_nursery() as checkpoints:
        checkpoints.start_soon(store.checkpoint)
        await trio.testing.wait_all_tasks_blocked()
        checkpoints.cancel_scope.cancel()
        gate.set()
    await store.close()
    runs = 0
    for after in every_state(disk.power_cut(), 1000):
        again = await open_store(after)
        assert await read_all(again.namespace("things", ALWAYS).logs["a"]) == [b"acknowledged"]
        again.abandon()
        runs += 1
    assert runs

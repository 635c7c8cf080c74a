"""A disk whose every sync takes half a second: what waits for it waits for few, however many logs."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shared.errors import StoreReadOnly
from shared.storage.settings import Durability
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS, INTERVAL, NONE, SMALL, UNJOURNALED, open_store, read_all, records

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


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE, UNJOURNALED])
@pytest.mark.parametrize("logs", [23, 64, 65])
async def test_the_end_waits_for_few_syncs_that_stand_behind_one_another(
    mode: Durability, logs: int, autojump_clock: MockClock
) -> None:
    disk, store = await changed(logs, mode)
    began = disk.monotonic()
    await store.close()
    assert disk.monotonic() - began <= 12 * SYNC_SECONDS
    store = await open_store(disk.power_cut().boot(lambda n, what: n - 1))
    for log in store.namespace("things", ALWAYS).logs.values():
        assert await read_all(log) == [b"x"]


@pytest.mark.parametrize("number", [0, 7, 22])
async def test_a_sync_that_fails_beside_others_is_final(number: int, autojump_clock: MockClock) -> None:
    disk, store = await changed(23, ALWAYS)
    disk.broken = f"things/log{number}.log"
    with pytest.raises(StoreReadOnly):
        await store.close()
    again = await open_store(disk.kill())
    for log in again.namespace("things", ALWAYS).logs.values():
        assert await read_all(log) == [b"x"]

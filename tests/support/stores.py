"""Stores under test: a clock that is set by hand, work that runs inline, reads that are awaited."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from shared.errors import StoreError
from shared.file_range import FileRange
from shared.storage import format
from shared.storage.disk import Disk
from shared.storage.log import Log
from shared.storage.settings import Durability, StorageSettings
from shared.storage.shipping import Ships
from shared.storage.store import Store
from shared.units import KIB
from tests.support.fake_disk import FakeDisk

ALWAYS = Durability("always")
INTERVAL = Durability("interval", 0.05)
NONE = Durability("none")
MODES = [ALWAYS, INTERVAL, NONE]

SMALL = StorageSettings(
    segment_bytes=64 * KIB,
    tail_log_bytes=128 * KIB,
    zero_fill=False,
    reserve_bytes_min=0,
    reserve_bytes_max=0,
    scrub_bytes_per_second=0,
    open_files_max=64,
)


class FakeClock:
    """The `Clock` of shared/storage/disk.py: it stands still until it is told."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.wall = wall_ms
        self.steady = 1000.0

    def wall_ms(self) -> int:
        return self.wall

    def monotonic(self) -> float:
        return self.steady

    def advance(self, seconds: float) -> None:
        self.wall += round(seconds * 1000)
        self.steady += seconds


class HandClock(FakeClock):
    """`monotonic` follows trio's clock inside of a run."""

    def monotonic(self) -> float:
        try:
            return trio.current_time() + self.steady
        except RuntimeError:
            return self.steady


async def inline(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
    """Instead of a thread."""
    await trio.lowlevel.checkpoint()
    return work(*args)


async def open_store(
    disk: Disk | None = None,
    settings: StorageSettings = SMALL,
    clock: HandClock | None = None,
    folder: Path = Path("unused"),
    ships: Ships | None = None,
) -> Store:
    return await Store.open(
        folder, settings, disk=disk, clock=clock or HandClock(), in_thread=inline, ships=ships
    )


async def fresh_store(
    settings: StorageSettings = SMALL, clock: HandClock | None = None
) -> tuple[FakeDisk, Store]:
    disk = FakeDisk()
    return disk, await open_store(disk, settings, clock)


async def reopen(store: Store, disk: FakeDisk, settings: StorageSettings = SMALL) -> tuple[Store, FakeDisk]:
    """The process dies, and another one starts on what it wrote."""
    store.abandon()
    after = disk.kill()
    return await open_store(after, settings), after


@asynccontextmanager
async def running(store: Store) -> AsyncIterator[None]:
    """Its background work goes on meanwhile."""
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield
        nursery.cancel_scope.cancel()


async def filled(store: Store, mode: Durability = ALWAYS, count: int = 300, size: int = 1000) -> Log:
    """A log `orders`; its records begin with their number, in 6 digits."""
    log, _ = store.namespace("logmq", ALWAYS, plain_names=True).create("orders", mode)
    for n in range(count):
        _, ticket = log.append(records(b"%06d" % n + bytes(size - 6)), 1)
        if n % 10 == 9:
            await store.wait(ticket)
    return log


async def append(store: Store, log: Log, *payloads: bytes) -> None:
    """Append records, and return when they are acknowledged."""
    await store.wait(log.append(records(*payloads), len(payloads))[1])


def records(*payloads: bytes) -> bytes:
    return b"".join(map(format.record, payloads))


def payloads(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        end = at + 4 + format.length_at(data, at)[0]
        found.append(data[at + 4 : end])
        at = end
    return found


async def ask(method: Callable[..., None], *args: Any) -> Any:
    """Call a method that answers through its last argument, and await the answer."""
    found: list[Any] = []
    ready = trio.Event()

    def done(result: Any) -> None:
        found.append(result)
        ready.set()

    method(*args, done)
    await ready.wait()
    return found[0]


async def read_all(log: Log) -> list[bytes]:
    """Every visible record; raises where that cannot be."""
    found: list[bytes] = []
    offset = log.first
    while offset < log.visible:
        data = await ask(log.read, offset, 1 << 20)
        if isinstance(data, StoreError):
            raise data
        assert data
        found += payloads(data)
        offset += len(data)
    assert offset == log.visible
    return found


def taken(part: FileRange) -> bytes:
    """The bytes of a range, which is released."""
    data = part.read(part.length) if part.length else b""
    assert len(data) == part.length
    part.release()
    return data

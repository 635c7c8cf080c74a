"""What was shipped since the newest snapshot is read from the journal's objects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
import trio

from brokers.pipeline.source import shipped, shipped_tail, stream
from brokers.ship.settings import ShipSettings
from brokers.ship.shipper import Shipper, opened_with
from brokers.ship.stores import open_bucket
from shared.storage import format
from shared.storage.store import Log, Store
from shared.units import KIB
from tests.pipeline.folders import between, follow, options, planned, values
from tests.support.stores import ALWAYS, SMALL, HandClock, inline

STORAGE = attrs.evolve(SMALL, reference_bytes=16 * KIB)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look counts, and objects are fetched two at a time, and twice."""
    monkeypatch.setattr(shipped, "LOOK_SECONDS", -1.0)
    monkeypatch.setattr(shipped_tail, "AT_ONCE", 2)
    monkeypatch.setattr(shipped_tail, "OBJECTS_KEPT", 1)


class Ship:
    """A store that is shipped to a folder; `fold` makes a snapshot."""

    def __init__(self, store: Store, shipper: Shipper) -> None:
        self.store, self.shipper = store, shipper
        self.namespace = store.namespace("logmq", ALWAYS)

    def log(self, name: str = "orders") -> Log:
        return self.namespace.logs.get(name) or self.namespace.create(name)[0]

    async def append(self, *payloads: bytes, name: str = "orders") -> None:
        """Each in an object of its own."""
        for payload in payloads:
            await self.store.wait(self.log(name).append(format.record(payload), 1)[1])
            await self.even()

    async def even(self) -> None:
        self.store.commit_pending()
        while not self.shipper.is_even:  # noqa: ASYNC110 - threads are waited for
            await trio.sleep(0.005)

    async def fold(self) -> None:
        snapshots = self.shipper.snapshots
        assert snapshots is not None
        await snapshots.make(self.shipper)


@asynccontextmanager
async def shipping(tmp_path: Path) -> AsyncIterator[Ship]:
    settings = ShipSettings(url=f"file://{tmp_path}/bucket", interval=0.01, fold=86400, part_bytes=64 * KIB)
    store = await Store.open(
        tmp_path / "data", STORAGE, clock=HandClock(), in_thread=inline, ships=opened_with(settings)
    )
    shipper = Shipper(store, settings, open_bucket(settings), structlog.stdlib.get_logger())
    await shipper.start()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        nursery.start_soon(shipper.run)
        ship = Ship(store, shipper)
        with trio.fail_after(30):
            await ship.even()
            yield ship
        nursery.cancel_scope.cancel()
    await store.close()


async def there(bucket: Path, **more: Any) -> list[bytes]:
    """What is read, in a thread as Spark's workers have no loop."""

    def read() -> list[bytes]:
        return values(options(bucket, streaming=False, **more), *planned(bucket, **more))

    return await trio.to_thread.run_sync(read)


async def test_what_is_not_folded_is_read_as_it_was_shipped(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    large = bytes(20 * KIB)  # the journal only refers to it
    async with shipping(tmp_path) as ship:
        await ship.append(b"one", b"two", large)
        assert await there(bucket) == [b"one", b"two", large]
        await ship.fold()
        assert await there(bucket) == [b"one", b"two", large]
        await ship.append(b"three", b"other")
        await ship.append(b"x", name="later")
        assert await there(bucket) == [b"one", b"two", large, b"three", b"other"]
        assert await there(bucket, subscribe="later") == [b"x"]
        await ship.store.wait(ship.log().drop_below(7))
        await ship.even()
        assert (await there(bucket))[0] == b"two"
        await ship.store.wait(ship.namespace.delete("later"))
        await ship.append(b"y", name="later")  # another log of that name
        assert await there(bucket, subscribe="later") == [b"y"]
        (log,) = await trio.to_thread.run_sync(lambda: planned(bucket, subscribe="later"))
        assert log.log_id == ship.log("later").id


async def test_a_stream_goes_on_with_what_is_shipped_and_over_a_fold(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    async with shipping(tmp_path) as ship:
        await ship.append(b"0")
        chosen = options(bucket, streaming=True, startingOffsets="earliest")
        at = await trio.to_thread.run_sync(follow, chosen, stream.INITIAL)
        assert await trio.to_thread.run_sync(between, chosen, stream.INITIAL, at) == [b"0"]
        for number in range(1, 5):
            if number % 2:
                await ship.fold()
            await ship.append(b"%d" % number)
            after = await trio.to_thread.run_sync(follow, chosen, at)
            assert await trio.to_thread.run_sync(between, chosen, at, after) == [b"%d" % number]
            at = after


async def test_an_object_that_is_damaged_ends_it_and_the_next_snapshot_goes_on(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    async with shipping(tmp_path) as ship:
        await ship.append(b"one", b"two", b"three")
        newest = sorted((bucket / "wal").iterdir())[-2]
        newest.write_bytes(newest.read_bytes()[:-1] + b"x")
        assert await there(bucket) == [b"one"]
        await ship.fold()
        assert await there(bucket) == [b"one", b"two", b"three"]

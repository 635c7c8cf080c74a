"""A bucket is read whole, taken over, and tried out against the server that ships to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import trio

from brokers.errors import Failure
from brokers.ship.drill import Drilled, drill
from brokers.ship.epochs import ForeignBucket
from brokers.ship.formats import wal_key
from brokers.ship.settings import ShipSettings
from brokers.ship.shipper import Shipper, opened_with
from brokers.ship.verify import adopt_bucket, verify_bucket
from shared.storage.store import Store
from tests.brokers.ship.apart import Apart
from tests.brokers.ship.fake_bucket import FakeStore, bucket_of
from tests.support.stores import ALWAYS, SMALL, append, inline

URL = "s3://bucket/prefix"
SETTINGS = ShipSettings(url=URL, interval=0.05)


async def faults(store: FakeStore) -> list[str]:
    return list((await verify_bucket(bucket_of(store), lambda done, total: None)).faults)


async def test_what_is_damaged_or_missing_is_named(apart: Apart) -> None:
    store = FakeStore()
    with pytest.raises(Failure):
        await faults(store)
    await apart.fill(bucket_of(store), every=3)
    report = await verify_bucket(bucket_of(store), lambda done, total: None)
    assert (report.faults, report.histories) == ([], 1)
    del store.objects[wal_key(6)]
    part = next(key for key in store.objects if key.startswith("parts/"))
    del store.objects[part]
    store.objects[wal_key(8)] = store.objects[wal_key(8)][:-1]
    named = " ".join(await faults(store))
    assert [key for key in (part, wal_key(6), wal_key(8)) if key not in named] == []


@asynccontextmanager
async def shipping(folder: Path, store: FakeStore) -> AsyncIterator[tuple[Store, Shipper]]:
    opened = await Store.open(folder, SMALL, in_thread=inline, ships=opened_with(SETTINGS))
    try:
        shipper = Shipper(opened, SETTINGS, bucket_of(store), structlog.stdlib.get_logger())
        await shipper.start()
        async with trio.open_nursery() as nursery:
            await nursery.start(opened.run)
            nursery.start_soon(shipper.run)
            yield opened, shipper
            await shipper.finish()
            nursery.cancel_scope.cancel()
    finally:
        await opened.close()


async def drilled(store: Store, shipper: Shipper, bucket: FakeStore, below: Path) -> Drilled:
    return await drill(store, bucket_of(bucket), lambda: shipper.shipping.shipped_lsn, below=below)


async def test_a_drill_finds_the_same_until_the_bucket_has_something_else(tmp_path: Path) -> None:
    bucket, below = FakeStore(), tmp_path / "below"
    below.mkdir()
    async with shipping(tmp_path / "live", bucket) as (store, shipper):
        one = store.namespace("one", ALWAYS)
        log, _ = one.create("a")
        one.create("empty")
        for number in range(40):
            await append(store, log, b"%d" % number)
        while not shipper.is_even:  # noqa: ASYNC110 - it is another task that ships
            await trio.sleep(0.01)
        found = await drilled(store, shipper, bucket, below)
        assert found.ok, found
        assert (found.logs, found.records) == (2, 40)
        newest = max(key for key in bucket.objects if key.startswith("wal/"))
        del bucket.objects[newest]
        assert not (await drilled(store, shipper, bucket, below)).ok
    assert list(below.iterdir()) == []


async def test_a_folder_takes_a_bucket_over(apart: Apart, tmp_path: Path) -> None:
    bucket = FakeStore()
    await apart.fill(bucket_of(bucket), every=3)
    folder = tmp_path / "mine"
    store = await Store.open(folder, SMALL, in_thread=inline)
    await append(store, store.namespace("one", ALWAYS).create("mine")[0], b"all that I have")
    await store.close()
    with pytest.raises(ForeignBucket):
        async with shipping(folder, bucket):
            pass
    assert (await adopt_bucket(bucket_of(bucket), URL, folder))["epoch"] == 2
    async with shipping(folder, bucket) as (_, shipper):
        assert shipper.manifest is not None
        assert shipper.manifest.epoch == 3

"""Stores that are shipped to a fake bucket, on a fake disk and a clock that jumps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import structlog
import trio

from brokers.ship.cipher import Cipher
from brokers.ship.remote import RemoteReader
from brokers.ship.settings import ShipSettings
from brokers.ship.shipper import Shipper, opened_with
from shared.storage import format
from shared.storage.log import Log, read_records
from shared.storage.settings import Durability, StorageSettings
from shared.storage.store import Store
from shared.units import KIB
from tests.brokers.ship.fake_bucket import FakeStore, bucket_of
from tests.support.fake_disk import FakeDisk
from tests.support.stores import SMALL, HandClock, inline

SETTINGS = ShipSettings(url="s3://bucket/prefix", part_bytes=64 * KIB)
ALWAYS = Durability("always")


@attrs.define
class Shipped:
    """A running store and its shipper."""

    store: Store
    shipper: Shipper
    remote: RemoteReader

    def log(self, name: str, mode: Durability = ALWAYS) -> Log:
        """A log of the namespace `logs`, made if it is not there."""
        namespace = self.store.namespace("logs", ALWAYS)
        return namespace.logs.get(name) or namespace.create(name, mode)[0]

    async def append(self, name: str, *payloads: bytes) -> None:
        """Append records, and wait until they are as durable as the log's mode asks."""
        log = self.log(name)
        _, ticket = log.append(b"".join(map(format.record, payloads)), len(payloads))
        await self.store.wait(ticket)

    async def even(self) -> None:
        """Wait until the bucket has everything, and can be restored up to there."""
        with trio.fail_after(1000):
            while not self.shipper.is_even:  # noqa: ASYNC110 - the clock jumps
                await trio.sleep(0.05)

    async def contents(self) -> dict[tuple[str, str], bytes]:
        """Each log's visible bytes."""
        logs = self.store.namespace("logs", ALWAYS).logs
        return {
            (log.namespace, log.name): b"".join([part async for part in _parts(log)]) for log in logs.values()
        }


async def _parts(log: Log) -> AsyncIterator[bytes]:
    offset = log.first
    while part := await read_records(log, offset, 1 << 20):
        offset += len(part)
        yield part


@asynccontextmanager
async def shipped(
    disk: FakeDisk,
    store: FakeStore,
    settings: ShipSettings = SETTINGS,
    storage: StorageSettings = SMALL,
    cipher: Cipher | None = None,
    close: bool = True,
    in_thread: Any = inline,
) -> AsyncIterator[Shipped]:
    """A store that is opened, shipped, and in the end finished and closed, unless `close` is false: then it
    ends as by a kill.
    """
    opened: Any = await Store.open(
        _NO_FOLDER, storage, disk=disk, clock=HandClock(), in_thread=in_thread, ships=opened_with(settings)
    )
    shipper = Shipper(opened, settings, bucket_of(store, cipher), structlog.stdlib.get_logger())
    await shipper.start()
    remote = RemoteReader.of(
        shipper.bucket, shipper.sections_of, shipper.refresh, shipper.log, opened.commit_pending
    )
    opened.read_remotely(remote.read)
    async with trio.open_nursery() as nursery:
        await nursery.start(opened.run)
        nursery.start_soon(shipper.run)
        nursery.start_soon(remote.run)
        yield Shipped(opened, shipper, remote)
        if close:
            await shipper.finish()
        nursery.cancel_scope.cancel()
    if close:
        await opened.close()


_NO_FOLDER: Any = None

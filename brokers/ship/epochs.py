"""Who may write: epochs in the manifest, decided by the store's conditional requests, and by no clock.

A server takes an epoch by replacing the manifest that it has read, and makes the next WAL object, an empty
one, in it. The server before finds that number taken when it ships next, reads the higher epoch, and stops.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import attrs

from brokers.errors import ExitCode
from brokers.ship.bucket import Bucket, Exists, Missing, Stale
from brokers.ship.formats import (
    MANIFEST_KEY,
    PROBE_PREFIX,
    WAL_HEAD_BYTES,
    Manifest,
    Snapshot,
    WalHead,
    pack_wal,
    unpack_manifest,
    unpack_snapshot,
    unpack_wal_head,
    wal_key,
)
from shared.errors import BrokerError


class ForeignBucket(BrokerError):
    """The bucket has what this data folder does not, or its store cannot be trusted: nothing is shipped."""

    exit_code = ExitCode.CONFIGURATION


class Fenced(Exception):
    """Another server has taken a higher epoch."""


async def probe(bucket: Bucket, *, delete: bool) -> None:
    """Check that the store makes an object only where there is none, and replaces it only unchanged.

    Raises ForeignBucket, Away, Unusable. Without `delete` it leaves one object, the same each time.
    """
    key = PROBE_PREFIX + (secrets.token_hex(8) if delete else "probe")
    texts = [secrets.token_bytes(16) for _ in range(4)]
    try:
        await bucket.create(key, texts[0])
    except Exists:
        pass
    try:
        await bucket.create(key, texts[1])
    except Exists:
        pass
    else:
        raise ForeignBucket(_lies("overwrites an object that it was to make only where there is none"))
    _, etag = await bucket.get(key)
    await bucket.replace(key, texts[2], etag)
    try:
        await bucket.replace(key, texts[3], etag)
    except Stale:
        pass
    else:
        raise ForeignBucket(_lies("replaces an object that had changed"))
    if delete:
        await bucket.delete([key])


def _lies(what: str) -> str:
    return (
        f"the store {what}, so two servers could overwrite each other's: use one with conditional requests, "
        'or take the risk with ship.fencing = "none"'
    )


async def read_manifest(bucket: Bucket) -> tuple[Manifest, str] | None:
    """The manifest and its ETag; None in a new bucket. Raises BadObject, Away, Unusable."""
    try:
        data, etag = await bucket.get(MANIFEST_KEY)
    except Missing:
        return None
    return unpack_manifest(data), etag


async def newest_snapshot(bucket: Bucket, in_thread: Callable[..., Awaitable[Any]]) -> Snapshot:
    """The newest snapshot that the manifest names. Raises Missing where there is none, BadObject, Away,
    Unusable."""
    found = await read_manifest(bucket)
    if found is None or not found[0].snapshots:
        raise Missing("the bucket has no snapshot")
    key = found[0].snapshots[-1].key
    data, _ = await bucket.get(key)
    snapshot: Snapshot = await in_thread(unpack_snapshot, data, key)
    return snapshot


async def write_manifest(bucket: Bucket, manifest: Manifest, etag: str | None) -> str:
    """Make the manifest, or replace the one with this ETag; the new ETag. Raises Exists, Stale, Away,
    Unusable.
    """
    data = manifest.pack()
    if etag is not None:
        return await bucket.replace(MANIFEST_KEY, data, etag)
    await bucket.create(MANIFEST_KEY, data)
    found, etag = await bucket.get(MANIFEST_KEY)
    if found != data:
        raise Stale(MANIFEST_KEY)
    return etag


async def take_epoch(
    bucket: Bucket, found: tuple[Manifest, str] | None, new: Manifest
) -> tuple[Manifest, str]:
    """Raise the epoch of the manifest that was `found`, or begin with one; the manifest and its ETag.

    `new`: what it says of its writer, and of the newest object. Raises Exists or Stale where another was
    faster: then begin again by reading the manifest.
    """
    if found is None:
        return new, await write_manifest(bucket, new, None)
    before, etag = found
    made = attrs.evolve(
        before,
        epoch=before.epoch + 1,
        writer=new.writer,
        journal_id=new.journal_id,
        wal_next=new.wal_next,
        written_ms=new.written_ms,
        url=new.url,
    )
    return made, await write_manifest(bucket, made, etag)


async def open_epoch(bucket: Bucket, manifest: Manifest, number: int, lsn: int, now_ms: int) -> None:
    """Make the first, empty WAL object of an epoch: shipping goes on at `lsn`.

    Raises Exists where an older epoch has that number: its writer was faster once more, so that what it
    shipped must be looked at first. Raises Fenced, Away, Unusable.
    """
    journal_id = int(manifest.journal_id, 16)
    data = pack_wal(WalHead(number, manifest.epoch, journal_id, lsn, lsn, now_ms, now_ms))
    try:
        await bucket.create(wal_key(number), data)
    except Exists:
        head = await wal_head(bucket, number)
        if head is not None and head.epoch > manifest.epoch:
            raise Fenced from None
        if head is None or head.epoch < manifest.epoch:
            raise


async def wal_head(bucket: Bucket, number: int) -> WalHead | None:
    """The head of a WAL object; None where there is none. Raises BadObject, Away, Unusable."""
    try:
        data = await bucket.get_range(wal_key(number), 0, WAL_HEAD_BYTES)
    except Missing:
        return None
    return unpack_wal_head(data, wal_key(number))


async def newest_wal(bucket: Bucket, number: int) -> int:
    """The number of the newest WAL object, from that of one that exists, or 0. Numbers have no holes, so a
    few requests tell. Raises ForeignBucket, Away, Unusable.
    """
    if number and await wal_head(bucket, number) is None:
        raise ForeignBucket(f"the bucket has lost objects: {wal_key(number)} was there, and is not")
    step = 1
    while await wal_head(bucket, number + step) is not None:
        number += step
        step *= 2
    missing = number + step
    while missing - number > 1:
        middle = (number + missing) // 2
        if await wal_head(bucket, middle) is not None:
            number = middle
        else:
            missing = middle
    return number


def new_writer() -> str:
    """A name for a process that takes an epoch."""
    return secrets.token_hex(8)

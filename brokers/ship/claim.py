"""Whether a bucket is a data folder's, and how far it goes: looked at before an epoch is taken."""

import attrs

from brokers.ship import epochs
from brokers.ship.bucket import Bucket, Missing
from brokers.ship.epochs import ForeignBucket
from brokers.ship.formats import (
    WAL_HEAD_BYTES,
    WAL_PREFIX,
    FolderMark,
    Manifest,
    unpack_wal,
    wal_key,
)
from shared.storage.shipping import JournalGap, Shipping

_ANY_BYTES = 1 << 62
_WAYS_OUT = (
    "restore a folder from the bucket and serve that, or have this one take the bucket over as it is with "
    "brokers ship adopt, which gives up what only the bucket has"
)


@attrs.frozen
class Claim:
    """A folder's claim to a bucket. `mark`: what the folder knows of it, if anything."""

    bucket: Bucket
    shipping: Shipping
    url: str
    mark: FolderMark | None

    async def newest(self, found: tuple[Manifest, str] | None) -> int:
        """The number of the newest object of a bucket that is this folder's, or new. `found`: its manifest.
        Raises ForeignBucket.
        """
        url, mark = self.url, self.mark
        if found is None:
            if mark is not None and mark.number:
                raise ForeignBucket(
                    f"{url} has no manifest, and this folder shipped {mark.number} objects to it: put the "
                    "bucket back, or name an empty one"
                )
            if await self.bucket.listed(WAL_PREFIX):
                raise ForeignBucket(f"{url} has objects and no manifest: name an empty prefix")
            return 0
        manifest = found[0]
        ours = mark is not None and f"{self.shipping.journal_id:016x}" == manifest.journal_id
        if mark is None or not ours or not (mark.epoch == manifest.epoch or manifest.writer in mark.writers):
            known = "nothing" if mark is None else f"epoch {mark.epoch}, up to LSN {mark.lsn}"
            raise ForeignBucket(
                f"{url} is at epoch {manifest.epoch}, and this data folder knows {known} of it: " + _WAYS_OUT
            )
        return await epochs.newest_wal(self.bucket, max(mark.number, manifest.wal_next - 1))

    async def end(self, number: int) -> int:
        """Where the bucket ends, at object `number`, if the folder's journal has all that it has. Raises
        ForeignBucket.
        """
        mark = self.mark
        assert mark is not None
        head = await epochs.wal_head(self.bucket, number)
        if head is None and number:
            raise ForeignBucket(f"the bucket has lost {wal_key(number)}")
        lsn = mark.lsn if head is None else head.next_lsn
        at = number
        while at > mark.number:
            key = wal_key(at)
            try:
                data, _ = await self.bucket.get(key)
            except Missing:
                raise ForeignBucket(f"the bucket has lost {key}") from None
            wal = unpack_wal(data, key)
            if wal.head.empty:
                at -= 1
                continue
            batches = wal.data[WAL_HEAD_BYTES : WAL_HEAD_BYTES + wal.head.batch_bytes]
            if not await self._has(wal.head.first_lsn, wal.head.next_lsn, batches):
                raise ForeignBucket(
                    f"{key} has what this data folder does not, from LSN {mark.lsn} on: {_WAYS_OUT}"
                )
            return lsn
        if lsn != mark.lsn or lsn > self.shipping.synced_lsn:
            raise ForeignBucket(
                f"the bucket ends at LSN {lsn}, this data folder knows of {mark.lsn}: {_WAYS_OUT}"
            )
        return lsn

    async def _has(self, first: int, end: int, batches: memoryview) -> bool:
        """Whether the journal has just these batches."""
        assert self.mark is not None
        if end > self.shipping.end_lsn:
            return False
        try:
            found = await self.shipping.read(first, end, self.mark.starts, _ANY_BYTES)
        except JournalGap:
            return False
        same = bytes(found.data[: found.batch_bytes][: len(batches)]) == bytes(batches)
        self.shipping.read_again(found)
        return same

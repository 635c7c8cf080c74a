"""The shipper: takes an epoch, ships the journal, and folds it into snapshots. See SHIP.md.

Three tasks. The first ships what is synced as WAL objects, one after the other, and never two at once: so
numbers have no holes. The second makes snapshots (`folding`), and deletes what no snapshot needs. The third
keeps the folder's mark and the journal in step: a segment goes once the mark says that the bucket has it.

Nothing is shipped before the epoch is ours. A request is repeated until the bucket answers, with the same
bytes. Where more waits than `backlog`, what is unshipped is forgotten, and shipping begins anew: with an
empty object where the journal stands now, and a snapshot.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import attrs
import structlog
import trio

from brokers.ship import epochs
from brokers.ship.bucket import Away, Bucket, Exists, Missing, Stale, Unusable
from brokers.ship.epochs import Fenced, ForeignBucket
from brokers.ship.folding import Fold, Sections
from brokers.ship.formats import (
    PARTS_PREFIX,
    SHIP_PATH,
    SNAPSHOTS_PREFIX,
    WAL_HEAD_BYTES,
    WAL_PREFIX,
    BadObject,
    FolderMark,
    Manifest,
    Piece,
    Snapshot,
    SnapshotLine,
    pack_wal,
    part_key,
    snapshot_key,
    unpack_mark,
    unpack_snapshot,
    unpack_wal,
    wal_key,
)
from brokers.ship.settings import ShipSettings
from shared.errors import StoreReadOnly
from shared.globs import matcher
from shared.storage.catalog import unpack as unpack_catalog
from shared.storage.disk import Disk, read_file
from shared.storage.shipping import JournalGap, JournalRange, Shipping, Ships
from shared.storage.store import Store
from shared.units import MIB

State = Literal["starting", "shipping", "away", "refused", "fenced", "stopped"]

WAL_BYTES = 8 * MIB
"""Of batches in one object, unless one batch is longer. It is in memory three times on its way."""
START_SECONDS = 3.0
"""So long a start waits for the bucket; then serving goes on, and the epoch is taken when it answers."""
FINISH_SECONDS = 5.0
"""So long a stop waits until all is shipped; the rest is shipped by the next start."""
AWAY_SECONDS = (0.25, 15.0)
"""The first and the longest pause before a request is repeated."""
MARK_SECONDS = 60.0
"""How often the folder's mark is written where little is shipped."""
GRACE_SECONDS = 600.0
"""What the manifest no longer names is deleted so much later: somebody may be reading it."""
THIN_SECONDS = 3600.0
"""Of older snapshots one is kept for each span of this length; the journal has what is between."""
DELETED_AT_ONCE = 1000
WRITERS_KEPT = 4
"""In the folder's mark: a request of an earlier run may arrive after its end."""
_ANY_BYTES = 1 << 62
STALE_LEAST_BYTES = 1 << 20
"""A smaller object is not sent anew for what it has of no use."""


def opened_with(settings: ShipSettings) -> Ships:
    """How a store is opened that is shipped so."""
    patterns = ("*",) if settings.ack == "bucket" else settings.ack_bucket
    matches = matcher(patterns)

    def held_from(disk: Disk) -> int | None:
        mark = _mark_of(read_file(disk, SHIP_PATH), settings.url)
        return None if mark is None or mark.anew else mark.lsn

    return Ships(held_from, lambda namespace, name: matches(f"{namespace}:{name}"))


def _mark_of(data: bytes | None, url: str) -> FolderMark | None:
    """The mark of this bucket; None where there is none."""
    mark = None if data is None else unpack_mark(data)
    return mark if mark is not None and mark.url == url else None


class _Forgotten(Exception):
    """What was being shipped is forgotten, since too much waits."""


@attrs.define(eq=False)
class Shipper:
    """Ships one store. `start` before it is served, then `run`; `finish` at the end."""

    store: Store
    settings: ShipSettings
    bucket: Bucket
    log: structlog.stdlib.BoundLogger
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    state: State = "starting"
    reason: str = ""
    """Why nothing is shipped."""
    number: int = 0
    """Of the newest WAL object."""
    manifest: Manifest | None = None
    objects: int = 0
    shipped_bytes: int = 0
    snapshots: int = 0
    forgotten: int = 0
    """How often shipping began anew since too much waited."""
    began: float = attrs.Factory(time.monotonic)
    shipping: Shipping = attrs.field(init=False)
    _etag: str = ""
    _mark: FolderMark | None = None
    _writer: str = attrs.Factory(epochs.new_writer)
    _least_lsn: int = 0
    """A snapshot must be of this LSN or later to make what is shipped restorable."""
    _restorable: bool = False
    _jump: int | None = None
    """Where shipping goes on anew, for which no object is made yet."""
    _even_at: float = attrs.Factory(trio.current_time)
    """All that was written then is in the bucket."""
    _marked_at: float = attrs.Factory(trio.current_time)
    _recent: deque[tuple[int, int]] = attrs.Factory(lambda: deque(maxlen=100_000))
    """Numbers and next LSNs of objects since the last snapshot."""
    _sections: Sections = attrs.Factory(dict)
    _sizes: dict[str, int] = attrs.Factory(dict)
    """Of objects of parts."""
    _named: dict[str, frozenset[str]] = attrs.Factory(dict)
    """By snapshot: the keys of its parts."""
    _doomed: deque[tuple[float, list[str]]] = attrs.Factory(deque)
    _folded_lsn: int = -1
    _reached_lsn: int = 0
    """Nothing below is left to be shipped; `Shipping.shipped_lsn` is where the last batch ends."""
    _wake: trio.Event = attrs.Factory(trio.Event)
    _advanced: trio.Event = attrs.Factory(trio.Event)
    _fold_now: trio.Event = attrs.Factory(trio.Event)
    _finishing: bool = False
    _finished: trio.Event = attrs.Factory(trio.Event)
    _scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        shipping = self.store.shipping
        assert shipping is not None
        self.shipping = shipping
        shipping.wake = lambda: self._wake.set()

    # -- its life

    async def start(self) -> None:
        """Take the epoch, if the bucket answers within some seconds. Raises ForeignBucket and BadObject."""
        mark = await self.store.in_thread(self.shipping.read_file, SHIP_PATH)
        self._mark = _mark_of(mark, self.settings.url)
        if self._mark is not None and not self._mark.anew:
            self.shipping.shipped_lsn = self._mark.lsn
            # At once: a bucket that is away for this run, too, gets this one's journal from the next.
            start = self.shipping.end_lsn, self.shipping.start_lsn
            self._mark = attrs.evolve(self._mark, starts=(*self._mark.starts, start))
            await self._save_mark()
        else:
            self.shipping.shipped_lsn = self.shipping.synced_lsn
        self._reached_lsn = self.shipping.shipped_lsn
        with trio.move_on_after(START_SECONDS) as scope:
            try:
                await self._claim()
            except (Away, Unusable) as error:
                self._tell_away(error)
        if scope.cancelled_caught:
            self._tell_away(Away(f"no answer in {START_SECONDS:g} s"))

    async def run(self) -> None:
        """Ship until cancelled, or until another server ships."""
        with self._scope:
            try:
                await self._claim_at_last()
            except (ForeignBucket, BadObject) as error:
                self._stand("refused", str(error))
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guarded, self._ship_all)
                    nursery.start_soon(self._guarded, self._fold_all)
        await self._stand_by()

    async def finish(self) -> None:
        """Ship what there is, for some seconds at most."""
        self._finishing = True
        self._wake.set()
        with trio.move_on_after(FINISH_SECONDS):
            if self.state in ("shipping", "away") and self.manifest is not None:
                await self._finished.wait()

    async def _stand_by(self) -> None:
        """Nothing is shipped any more: the journal must not wait for it."""
        if self.state in ("refused", "fenced"):
            with trio.CancelScope(shield=True):
                await self.store.in_thread(self.shipping.let_go, None)

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Fenced:
            self._stand("fenced", "another server ships to the bucket")
        except Exception:
            self.log.exception("a bug in the shipper: it stands until a restart; report it")
            self._stand("refused", "a bug")

    def _stand(self, state: Literal["refused", "fenced"], reason: str) -> None:
        """Ship nothing any more."""
        self.state, self.reason = state, reason
        stops = self.settings.stops_when_fenced
        what = "nothing more is accepted" if stops else "serving goes on, and nothing is shipped any more"
        advice = "see to it that one server runs, then restart the one that is to ship"
        self.log.critical(f"the bucket is not ours: {what}; {advice}", reason=reason, url=self.settings.url)
        if stops:
            self.store.make_read_only(f"the bucket is not ours: {reason}", advice)
        self.shipping.fail(StoreReadOnly(f"not in the bucket: {reason}"))
        self._scope.cancel()

    def _tell_away(self, error: Exception) -> None:
        if self.state != "away":
            self.state = "away"
            self.log.error(
                "the bucket does not do what is asked: serving goes on, what comes is shipped later; look at "
                "the bucket and the network",
                reason=str(error),
                url=self.settings.url,
            )
        self.reason = str(error)

    def _tell_back(self) -> None:
        if self.state == "away" and self.manifest is not None:
            self.log.info("the bucket answers again", url=self.settings.url)
        if self.manifest is not None:
            self.state, self.reason = "shipping", ""

    async def _repeated(self, work: Callable[[], Any], *, looks: bool = False) -> Any:
        """The result of a request, which is repeated until the store does it. Raises what is an answer.

        `looks`: where too much waits meanwhile it raises _Forgotten.
        """
        pause, longest = AWAY_SECONDS
        while True:
            try:
                found = await work()
            except (Away, Unusable) as error:
                self._tell_away(error)
                if looks:
                    await self._look_at_backlog()
                await trio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                self._tell_back()
                return found

    # -- the epoch

    async def _claim_at_last(self) -> None:
        while self.manifest is None:
            try:
                await self._repeated(self._claim, looks=True)
            except _Forgotten:
                continue

    async def _claim(self) -> None:
        """Take the next epoch. Raises ForeignBucket, BadObject, Away, Unusable."""
        if self.settings.fencing == "required":
            await epochs.probe(self.bucket, delete=self.settings.delete)
        while True:
            found = await epochs.read_manifest(self.bucket)
            try:
                manifest, etag = await self._take(found)
                await epochs.open_epoch(
                    self.bucket, manifest, self.number + 1, self.shipping.shipped_lsn, manifest.written_ms
                )
            except (Exists, Stale):
                continue  # somebody else was faster, or the old writer shipped once more: look again
            except Fenced:
                raise ForeignBucket("another server takes the bucket at this moment") from None
            break
        self.number += 1
        self.manifest, self._etag = manifest, etag
        await self._write_mark()
        self._tell_back()
        self.log.info("the bucket is ours", url=self.settings.url, epoch=manifest.epoch, number=self.number)

    async def _take(self, found: tuple[Manifest, str] | None) -> tuple[Manifest, str]:
        """Look whether the bucket is this folder's, and write the manifest of the next epoch."""
        mark, shipping = self._mark, self.shipping
        journal_id = f"{shipping.journal_id:016x}"
        now_ms = self.wall_ms()
        number = await self._newest(found, mark)
        anew = found is None or mark is None or mark.anew
        lsn = shipping.synced_lsn
        if not anew and found is not None and mark is not None:
            lsn = await self._require_known(number, mark)
        shipping.hold(lsn)
        self._jump, self._least_lsn = None, lsn if anew else 0
        writers = (self._writer,) if mark is None else (*mark.writers, self._writer)
        epoch = 0 if mark is None else mark.epoch
        starts = () if anew or mark is None else mark.starts
        self._mark = FolderMark(
            self.settings.url,
            journal_id,
            epoch,
            number if mark is None or anew else mark.number,
            lsn if mark is None or anew else mark.lsn,
            anew,
            tuple(each for each in starts if each[0] >= lsn),
            tuple(dict.fromkeys(writers))[-WRITERS_KEPT:],
        )
        await self._save_mark()
        new = Manifest(1, self._writer, journal_id, 1, number + 1, written_ms=now_ms, url=self.settings.url)
        taken = await epochs.take_epoch(self.bucket, found, new)
        self._mark = attrs.evolve(self._mark, epoch=taken[0].epoch, number=number, lsn=lsn)
        await self._save_mark()
        self.number = number
        self._restorable = not anew and bool(taken[0].snapshots)
        shipping.advance(lsn, restorable=self._restorable)
        self._reached_lsn = lsn
        return taken

    async def _newest(self, found: tuple[Manifest, str] | None, mark: FolderMark | None) -> int:
        """The number of the newest object of a bucket that is this folder's, or new. Raises ForeignBucket."""
        url = self.settings.url
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

    async def _require_known(self, number: int, mark: FolderMark) -> int:
        """Where the bucket ends, at object `number`, if the folder's journal has all that it has. Raises
        ForeignBucket.
        """
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
            if not await self._has(wal.head.first_lsn, wal.head.next_lsn, mark, batches):
                raise ForeignBucket(
                    f"{key} has what this data folder does not, from LSN {mark.lsn} on: {_WAYS_OUT}"
                )
            return lsn
        if lsn != mark.lsn or lsn > self.shipping.synced_lsn:
            raise ForeignBucket(
                f"the bucket ends at LSN {lsn}, this data folder knows of {mark.lsn}: {_WAYS_OUT}"
            )
        return lsn

    async def _has(self, first: int, end: int, mark: FolderMark, batches: memoryview) -> bool:
        """Whether the journal has just these batches."""
        if end > self.shipping.end_lsn:
            return False
        try:
            found = await self.shipping.read(first, end, mark.starts, _ANY_BYTES)
        except JournalGap:
            return False
        return b"".join(found.pieces) == batches

    # -- the folder's mark, and the journal that is kept

    async def _save_mark(self) -> None:
        assert self._mark is not None
        with trio.CancelScope(shield=True):  # a mark is written whole, and before what follows from it
            await self.store.in_thread(self.shipping.write_file, SHIP_PATH, self._mark.pack())

    async def _write_mark(self) -> None:
        """Note how far the bucket is, and let the journal go up to there."""
        assert self._mark is not None
        lsn = self.shipping.shipped_lsn
        self._marked_at = trio.current_time()
        self._mark = attrs.evolve(
            self._mark,
            number=self.number,
            lsn=lsn,
            anew=not self._restorable,
            starts=tuple(each for each in self._mark.starts if each[0] >= lsn),
        )
        await self._save_mark()
        try:
            await self.store.in_thread(self.shipping.let_go, lsn)
        except OSError as error:
            self.log.warning("segments that are shipped stay for now", reason=str(error))

    async def _look_at_backlog(self) -> None:
        """Begin anew if more waits than may. Raises _Forgotten."""
        most = self.settings.backlog or self.store.volume_bytes // 10
        if self.shipping.held_bytes > most or (self.store.full and self.shipping.held_bytes):
            await self._forget(f"{self.shipping.held_bytes} bytes of the journal wait, {most} may")
            raise _Forgotten

    async def _forget(self, reason: str) -> None:
        """Forget what is unshipped: shipping goes on here, once there is a snapshot."""
        self.forgotten += 1
        self.log.error(
            "shipping begins anew, with a snapshot: instants between what the bucket has and that cannot be "
            "restored; raise ship.backlog where the volume has room",
            reason=reason,
        )
        lsn = self.shipping.synced_lsn
        self._restorable = False
        self._jump = self._least_lsn = lsn
        self._recent.clear()
        self.shipping.hold(lsn)
        self.shipping.advance(lsn, restorable=False)
        self._reached_lsn = lsn
        if self._mark is not None:
            self._mark = attrs.evolve(self._mark, anew=True, starts=())
            await self._save_mark()
        await self.store.in_thread(self.shipping.let_go, lsn)
        self._fold_now.set()

    # -- the journal

    @property
    def interval(self) -> float:
        """Seconds between two objects, where nobody waits for one."""
        most = self.settings.requests_per_hour_max
        return max(self.settings.interval, 3600 / most if most else 0.0)

    async def _ship_all(self) -> None:
        while True:
            with trio.move_on_after(self.interval):
                await self._wake.wait()
            self._wake = trio.Event()
            try:
                with suppress(_Forgotten):
                    await self._ship_new()
            except OSError as error:
                self.log.error(
                    "the journal cannot be read; it is tried again; look at the disk", reason=str(error)
                )
            if self._finishing and self._even:
                await self._write_mark()
                self._finished.set()
                await trio.sleep_forever()

    @property
    def _even(self) -> bool:
        """Whether the bucket has all that is written."""
        return self._jump is None and not self.shipping.unsynced and self._behind_bytes == 0

    @property
    def _behind_bytes(self) -> int:
        return max(self.shipping.synced_lsn - self._reached_lsn, 0)

    async def _ship_new(self) -> None:
        """Ship all that is there now."""
        assert self.manifest is not None
        assert self._mark is not None
        now = trio.current_time()
        await self.shipping.sync()
        end = self.shipping.synced_lsn
        if self._jump is not None:
            await self._put(partial(self._empty, self._jump))
            self._jump = None
        while self.shipping.shipped_lsn < end:
            try:
                found = await self.shipping.read(self.shipping.shipped_lsn, end, self._mark.starts, WAL_BYTES)
            except JournalGap as error:
                await self._forget(str(error))
                return
            if not found.batches:
                break  # a start's segment, or the next one: without a batch yet
            await self._put(partial(self._object, found))
            self._recent.append((self.number, found.next_lsn))
            self.shipping.advance(found.next_lsn, restorable=self._restorable)
            self._reached_lsn = found.next_lsn
            self._tell_advance()
            if found.next_lsn - self._mark.lsn >= self.shipping.segment_bytes:
                await self._write_mark()
        self._reached_lsn = max(end, self.shipping.shipped_lsn)
        self._even_at = now
        self._tell_advance()
        if self._mark.lsn < end and now - self._marked_at > MARK_SECONDS:
            await self._write_mark()

    def _tell_advance(self) -> None:
        advanced, self._advanced = self._advanced, trio.Event()
        advanced.set()

    def _empty(self, lsn: int) -> bytearray:
        return self._object(JournalRange(lsn, lsn, 0, 0, [], []))

    def _object(self, found: JournalRange) -> bytearray:
        """The next object. In a thread."""
        assert self.manifest is not None
        return pack_wal(
            number=self.number + 1,
            epoch=self.manifest.epoch,
            journal_id=self.shipping.journal_id,
            first_lsn=found.first_lsn,
            next_lsn=found.next_lsn,
            now_ms=self.wall_ms(),
            batches=found.pieces,
            count=found.batches,
            last_ms=found.last_ms or None,
            pieces=[Piece(*each[1:]) for each in found.referred],
        )

    async def _put(self, pack: Callable[[], bytearray]) -> None:
        """Make the next object. Raises Fenced, and _Forgotten."""
        assert self.manifest is not None
        while True:
            data = await self.store.in_thread(pack)
            try:
                await self._repeated(partial(self.bucket.create, wal_key(self.number + 1), data), looks=True)
            except Exists:
                head = await self._repeated(partial(epochs.wal_head, self.bucket, self.number + 1))
                if head is None or head.epoch != self.manifest.epoch:
                    raise Fenced from None
                # It is ours, of something that was forgotten before its answer came.
                self.number += 1
                continue
            self.number += 1
            self.objects += 1
            self.shipped_bytes += len(data)
            return

    # -- snapshots

    async def _fold_all(self) -> None:
        await self._load_sections()
        while True:
            if self._restorable:
                with trio.move_on_after(self.settings.fold):
                    await self._fold_now.wait()
            self._fold_now = trio.Event()
            try:
                if self.shipping.synced_lsn != self._folded_lsn or not self._restorable:
                    await self._fold()
                await self._delete_doomed()
            except OSError as error:
                self.log.error(
                    "a snapshot cannot be made; it is tried again; look at the disk", reason=str(error)
                )
                await trio.sleep(AWAY_SECONDS[1])

    async def _fold(self) -> None:
        """Make a snapshot, and have the manifest name it. Raises Fenced, OSError."""
        manifest, shipping = self.manifest, self.shipping
        assert manifest is not None
        began_lsn = shipping.synced_lsn
        if not await self.store.checkpoint():
            raise OSError("there was no checkpoint")
        await shipping.sync()
        reached = shipping.synced_lsn
        text = await self.store.in_thread(shipping.catalog)
        catalog = await self.store.in_thread(unpack_catalog, text)
        if catalog is None:
            raise OSError("the catalog is damaged")
        lsn = catalog.replay_lsn
        fold = Fold(
            shipping, catalog.logs, self._sections, self.settings.part_bytes, manifest.epoch, self._stale()
        )
        try:
            await self._send_parts(fold, lsn)
        finally:  # what was sent is there, though there be no snapshot yet
            self._sections = self._sections | fold.sections
        whole_from = lsn
        if await self.store.in_thread(fold.has_dropped):
            whole_from = max(shipping.synced_lsn, lsn)
            reached = shipping.synced_lsn
        while self._reached_lsn < min(reached, whole_from) or self._jump is not None:
            self._wake.set()
            await self._advanced.wait()
        if lsn < self._least_lsn:
            return  # shipping began anew meanwhile
        wal = next((number for number, next_lsn in self._recent if next_lsn > lsn), self.number + 1)
        snapshot = Snapshot(manifest.epoch, wal, self.wall_ms(), whole_from, catalog, text, fold.sections)
        line = await self._send_snapshot(snapshot)
        await self._name(line)
        self._sections, self._folded_lsn = fold.sections, began_lsn
        self.snapshots += 1
        while self._recent and self._recent[0][1] <= lsn:
            self._recent.popleft()
        if not self._restorable and self._jump is None and lsn >= self._least_lsn:
            self._restorable = True
            shipping.advance(shipping.shipped_lsn, restorable=True)
            await self._write_mark()

    async def _send_parts(self, fold: Fold, lsn: int) -> None:
        parts = fold.parts()
        number = 0
        while (part := await self.store.in_thread(next, parts, None)) is not None:
            while True:
                key = part_key(fold.epoch, lsn, number)
                number += 1
                with suppress(Exists):  # of a fold that was cut short, and had other bytes
                    await self._repeated(partial(self.bucket.create, key, part.data))
                    break
            self._sizes[key] = len(part.data)
            fold.sent(key, part.directory)

    async def _send_snapshot(self, snapshot: Snapshot) -> SnapshotLine:
        """The snapshot's line for the manifest."""
        key = snapshot_key(snapshot.epoch, snapshot.lsn)
        data = await self.store.in_thread(snapshot.pack)
        try:
            await self._repeated(partial(self.bucket.create, key, data))
        except Exists:  # of a fold that was cut short: it is as good
            data, _ = await self._repeated(partial(self.bucket.get, key))
            snapshot = await self.store.in_thread(unpack_snapshot, data, key)
        self._named[key] = names = snapshot.part_keys
        size = len(data) + sum(self._sizes.get(name, 0) for name in names)
        journal_id = f"{self.shipping.journal_id:016x}"
        return SnapshotLine(
            key,
            snapshot.lsn,
            snapshot.whole_from,
            snapshot.time_ms,
            snapshot.wal,
            snapshot.epoch,
            journal_id,
            size,
        )

    async def _name(self, line: SnapshotLine) -> None:
        """Have the manifest name a snapshot, and no longer those that retention passed."""
        assert self.manifest is not None
        now_ms = self.wall_ms()
        lines = (*(each for each in self.manifest.snapshots if each.key != line.key), line)
        kept = lines
        if self.settings.delete:
            kept = kept_snapshots(lines, now_ms, self.settings)
        gone = [each.key for each in lines if each not in kept]
        doomed = await self._parts_of_none(gone, kept)
        wal_first = self.manifest.wal_first
        if self.settings.delete:
            wal_first = max(wal_first, min(min(each.wal for each in kept), self.number))
        wal_gone = [wal_key(number) for number in range(self.manifest.wal_first, wal_first)]
        manifest = attrs.evolve(
            self.manifest,
            snapshots=kept,
            wal_first=wal_first,
            wal_next=self.number + 1,
            wal_deleted=self._wal_deleted(),
            retained_from_ms=kept[0].time_ms,
            retained_to_ms=now_ms,
            written_ms=now_ms,
        )
        try:
            self._etag = await self._repeated(
                partial(epochs.write_manifest, self.bucket, manifest, self._etag)
            )
        except (Stale, Missing):
            raise Fenced from None
        self.manifest = manifest
        due = trio.current_time() + GRACE_SECONDS
        if names := [*doomed, *gone, *wal_gone]:
            self._doomed.append((due, names))

    def _wal_deleted(self) -> int:
        """Below this number all objects are deleted."""
        assert self.manifest is not None
        waiting = [
            int(name.removeprefix(WAL_PREFIX))
            for _, names in self._doomed
            for name in names
            if name.startswith(WAL_PREFIX)
        ]
        return min(waiting, default=self.manifest.wal_first)

    async def _parts_of_none(self, gone: Sequence[str], kept: Sequence[SnapshotLine]) -> list[str]:
        """Objects of parts that only snapshots name which are gone."""
        if not gone:
            return []
        for key in [*gone, *(each.key for each in kept)]:
            if key not in self._named:
                self._named[key] = await self._names_of(key)
        needed = frozenset[str]().union(*(self._named[each.key] for each in kept))
        unneeded = frozenset[str]().union(*(self._named.pop(key) for key in gone)) - needed
        for name in unneeded:
            self._sizes.pop(name, None)
        return sorted(unneeded)

    async def _names_of(self, key: str) -> frozenset[str]:
        try:
            data, _ = await self._repeated(partial(self.bucket.get, key))
            snapshot = await self.store.in_thread(unpack_snapshot, data, key)
        except (Missing, BadObject):
            return frozenset()
        names: frozenset[str] = snapshot.part_keys
        return names

    async def _delete_doomed(self) -> None:
        now = trio.current_time()
        while self._doomed and self._doomed[0][0] <= now:
            _, names = self._doomed[0]
            for at in range(0, len(names), DELETED_AT_ONCE):
                await self._repeated(partial(self.bucket.delete, names[at : at + DELETED_AT_ONCE]))
            self._doomed.popleft()

    def _stale(self) -> frozenset[str]:
        """Objects of parts less than half of which the last snapshot uses, up to the size of one object."""
        live: dict[str, int] = {}
        for each in self._sections.values():
            for key, section in each:
                live[key] = live.get(key, 0) + section.length
        found, room = [], self.settings.part_bytes
        for key, used in sorted(live.items()):
            size = self._sizes.get(key, 0)
            if size > STALE_LEAST_BYTES and 2 * used < size and used <= room:
                found.append(key)
                room -= used
        return frozenset(found)

    async def _load_sections(self) -> None:
        """Go on from the newest snapshot, and doom what an earlier run left behind."""
        assert self.manifest is not None
        lines = self.manifest.snapshots
        if self._restorable and lines:
            with suppress(Missing, BadObject):
                data, _ = await self._repeated(partial(self.bucket.get, lines[-1].key))
                self._sections = (await self.store.in_thread(unpack_snapshot, data, lines[-1].key)).sections
        listed = await self._repeated(partial(self.bucket.listed, PARTS_PREFIX))
        self._sizes = {each.key: each.bytes for each in listed}
        if not self.settings.delete:
            return
        ours = part_key(self.manifest.epoch, 0, 0)
        left = {each.key for each in listed if each.key < ours}
        for line in lines if left else ():
            self._named[line.key] = await self._names_of(line.key)
            left -= self._named[line.key]
        snapshots = await self._repeated(partial(self.bucket.listed, SNAPSHOTS_PREFIX))
        left |= {each.key for each in snapshots if each.key < snapshot_key(self.manifest.epoch, 0)}
        left -= {line.key for line in lines}
        left |= {wal_key(number) for number in range(self.manifest.wal_deleted, self.manifest.wal_first)}
        if left:
            self._doomed.append((trio.current_time() + GRACE_SECONDS, sorted(left)))

    # -- what is shown

    @property
    def is_even(self) -> bool:
        """Whether all that is written can be restored from the bucket."""
        return self._even and self._restorable

    @property
    def lag_seconds(self) -> float:
        """How old the oldest is that the bucket lacks, at most."""
        return 0.0 if self._even else trio.current_time() - self._even_at

    @property
    def lag_bytes(self) -> int:
        """Bytes of the journal that the bucket lacks."""
        return self._behind_bytes


_WAYS_OUT = (
    "restore a folder from the bucket and serve that, or have this one take the bucket over as it is with "
    "brokers ship adopt, which gives up what only the bucket has"
)


def kept_snapshots(
    lines: Sequence[SnapshotLine], now_ms: int, settings: ShipSettings
) -> tuple[SnapshotLine, ...]:
    """The snapshots that retention keeps, of all, the oldest first. The newest stays."""
    oldest_ms = now_ms - settings.retention_seconds * 1000
    thin_ms = now_ms - THIN_SECONDS * 1000
    kept: list[SnapshotLine] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else None
        if following is not None and following.time_ms <= oldest_ms:
            continue  # instants from the next one on are enough
        near = bool(kept) and line.time_ms - kept[-1].time_ms < THIN_SECONDS * 1000
        if following is not None and line.time_ms < thin_ms and near:
            continue
        kept.append(line)
    while settings.retention_bytes and len(kept) > 1:
        # Parts are shared: the largest has nearly all, and the journal's own bytes come on top.
        size = max(line.bytes for line in kept) + kept[-1].lsn - kept[0].lsn
        if size <= settings.retention_bytes:
            break
        del kept[0]
    return tuple(kept)

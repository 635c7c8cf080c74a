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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import attrs
import structlog
import trio

from brokers.ship import epochs
from brokers.ship.bucket import Away, Bucket, Exists, Stale, Unusable
from brokers.ship.claim import Claim
from brokers.ship.epochs import Fenced, ForeignBucket
from brokers.ship.formats import (
    PIECE_HEAD_BYTES,
    SHIP_PATH,
    WAL_HEAD_BYTES,
    BadObject,
    FolderMark,
    Manifest,
    Piece,
    Section,
    WalHead,
    seal_wal,
    unpack_mark,
    wal_key,
)
from brokers.ship.settings import ShipSettings
from brokers.ship.snapshots import Snapshots
from shared.errors import StoreReadOnly
from shared.globs import matcher
from shared.metrics import Sample, current, figures, total
from shared.storage.disk import Disk, read_file
from shared.storage.files import describe
from shared.storage.shipping import JournalGap, JournalRange, Room, Shipping, Ships
from shared.storage.store import Store
from shared.units import MIB

State = Literal["starting", "shipping", "away", "refused", "fenced", "stopped"]

WAL_BYTES = 8 * MIB
"""Of batches in one object, unless one batch is longer. It is in memory three times on its way."""
START_SECONDS = 3.0
"""So long a start waits for the bucket; then serving goes on, and the epoch is taken when it answers."""
FINISH_SECONDS = 5.0
"""So long a stop waits until all is shipped; the rest is shipped by the next start."""
ROOM = Room(WAL_HEAD_BYTES, PIECE_HEAD_BYTES)
AWAY_SECONDS = (0.25, 15.0)
"""The first and the longest pause before a request is repeated."""
MARK_SECONDS = 60.0
"""How often the folder's mark is written where little is shipped."""
WRITERS_KEPT = 4
"""In the folder's mark: a request of an earlier run may arrive after its end."""
FOLD_REQUESTS = 4
"""Of a snapshot, before one was made that does not begin anew: a part, itself, the manifest, a deletion."""


def opened_with(settings: ShipSettings) -> Ships:
    """How a store is opened that is shipped so."""
    patterns = ("*",) if settings.ack == "bucket" else settings.ack_bucket
    matches = matcher(patterns)

    def held_from(disk: Disk) -> int | None:
        mark = _mark_of(read_file(disk, SHIP_PATH), settings.url)
        return None if mark is None or mark.anew else mark.lsn

    def acks(namespace: str, name: str) -> bool:
        protocol, _, part = namespace.partition("-")
        names = (
            (f"{namespace}:{name}", f"{protocol}:{name}") if part == "queues" else (f"{namespace}:{name}",)
        )
        return any(map(matches, names))

    return Ships(held_from, acks)


def _mark_of(data: bytes | None, url: str) -> FolderMark | None:
    """The mark of this bucket; None where there is none."""
    mark = None if data is None else unpack_mark(data)
    return mark if mark is not None and mark.url == url else None


@attrs.frozen
class ShipStatistics:
    """The shipper in numbers; fields with a text are metrics, `ship_<field>`."""

    lag_seconds: float = current("Age of the oldest change that no restore would have; 0: there is none.")
    lag_bytes: int = current("Bytes of the journal that the bucket lacks.")
    held_bytes: int = current("Of the journal, kept on disk only because the bucket lacks it.")
    waiting: int = current("Commits whose answers wait for the bucket.")
    epoch: int = current("The epoch that is ours; 0: none is yet.")
    ours: bool = current("1: the bucket is ours, or is not reached yet; 0: another server has it.")
    retained_from_seconds: float = current("Unix time of the oldest instant that can be restored; 0: none.")
    objects: int = total("Objects of the journal made.")
    bytes: int = total("Bytes of these.")
    snapshots: int = total("Snapshots made.")
    begun_anew: int = total("How often more waited than may, and shipping began anew with a snapshot.")


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
    """Of the epoch that is ours, as it was taken."""
    snapshots: Snapshots | None = None
    objects: int = 0
    shipped_bytes: int = 0
    forgotten: int = 0
    """How often shipping began anew since too much waited."""
    claimed: float = attrs.Factory(trio.current_time)
    """Since then the bucket is ours, or is asked for."""
    fold_requests: int = FOLD_REQUESTS
    """What the last snapshot took."""
    shipping: Shipping = attrs.field(init=False)
    _mark: FolderMark | None = None
    _saving: trio.Lock = attrs.Factory(trio.Lock)
    _writer: str = attrs.Factory(epochs.new_writer)
    _least_lsn: int = 0
    """A snapshot must be of this LSN or later to make what is shipped restorable."""
    _restorable: bool = False
    _jump: int | None = None
    """Where shipping goes on anew, for which no object is made yet."""
    _even_at: float = attrs.Factory(trio.current_time)
    """All that was written then can be restored from the bucket."""
    _looked: tuple[float, int] = attrs.Factory(lambda: (trio.current_time(), 0))
    """When it was looked how much is written, and that LSN."""
    _marked_at: float = attrs.Factory(trio.current_time)
    _recent: deque[tuple[int, int]] = attrs.Factory(lambda: deque(maxlen=100_000))
    """Numbers and next LSNs of objects since the last snapshot."""
    _reached_lsn: int = 0
    """Nothing below is left to be shipped; `Shipping.shipped_lsn` is where the last batch ends."""
    _wake: trio.Event = attrs.Factory(trio.Event)
    _asked: bool = False
    """Somebody waits for all that there is."""
    _advanced: trio.Event = attrs.Factory(trio.Event)
    _fold_now: trio.Event = attrs.Factory(trio.Event)
    _finishing: bool = False
    _finished: trio.Event = attrs.Factory(trio.Event)
    _scope: trio.CancelScope = attrs.Factory(trio.CancelScope)

    def __attrs_post_init__(self) -> None:
        shipping = self.store.shipping
        assert shipping is not None
        self.shipping = shipping
        shipping.wake, shipping.filled = self._ask, lambda: self._wake.set()
        shipping.object_bytes = WAL_BYTES

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
        if self.stands:  # neither the journal nor a log's space must wait for it any more
            self.shipping.forget_referred()
            with trio.CancelScope(shield=True):
                await self._let_go(None)

    async def finish(self) -> None:
        """Ship what there is, for some seconds at most."""
        self._finishing = True
        self._ask()
        with trio.move_on_after(FINISH_SECONDS):
            if self.state in ("shipping", "away") and self.manifest is not None:
                await self._finished.wait()

    async def _guarded(self, work: Callable[[], Any]) -> None:
        try:
            await work()
        except Fenced:
            self._stand("fenced", "another server ships to the bucket")
        except ForeignBucket as error:
            self._stand("refused", str(error))
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

    @property
    def stands(self) -> bool:
        """Whether nothing is shipped any more."""
        return self.state in ("refused", "fenced")

    def _tell_away(self, error: Exception) -> None:
        if self.stands:  # a request that was under way has ended
            return
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
        if self.stands:
            return
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
            except OSError as error:
                self.log.error(
                    "the bucket cannot be taken, since the data folder's part in that fails; it is tried "
                    "again; look at the disk",
                    reason=describe(error),
                )
                await trio.sleep(AWAY_SECONDS[1])

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
        self.manifest = manifest
        self.snapshots = Snapshots(
            self.store,
            self.shipping,
            self.settings,
            self.bucket,
            self._repeated,
            lambda: self.wall_ms(),
            manifest,
            etag,
            self.log,
        )
        await self._write_mark()
        self._tell_back()
        self.claimed = trio.current_time()
        self.log.info("the bucket is ours", url=self.settings.url, epoch=manifest.epoch, number=self.number)

    async def _take(self, found: tuple[Manifest, str] | None) -> tuple[Manifest, str]:
        """Look whether the bucket is this folder's, and write the manifest of the next epoch."""
        mark, shipping = self._mark, self.shipping
        journal_id = f"{shipping.journal_id:016x}"
        now_ms = self.wall_ms()
        claim = Claim(self.bucket, shipping, self.settings.url, mark)
        number = await claim.newest(found)
        anew = found is None or mark is None or mark.anew
        lsn = shipping.synced_lsn if anew else await claim.end(number)
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
            tuple(log.id for log in shipping.logs_left()),
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

    # -- the folder's mark, and the journal that is kept

    async def _save_mark(self) -> None:
        with trio.CancelScope(shield=True):  # a mark is written whole, and before what follows from it
            async with self._saving:  # what ships and what folds save it
                assert self._mark is not None
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
        await self._let_go(lsn)

    async def _let_go(self, lsn: int | None) -> None:
        try:
            await self.store.in_thread(self.shipping.let_go, lsn)
        except OSError as error:
            self.log.warning("segments that need not be kept stay for now", reason=str(error))

    async def note_left(self, log_id: int) -> None:
        """Note on the disk that a log leaves bytes to the bucket."""
        assert self._mark is not None
        left = {log.id for log in self.shipping.logs_left()} | {log_id}
        if not left <= {*self._mark.left}:
            self._mark = attrs.evolve(self._mark, left=tuple(sorted(left)))
            await self._save_mark()

    async def _look_at_backlog(self) -> None:
        """Begin anew if more waits than may: the bucket is away, or too slow. Raises _Forgotten."""
        held, most = self.shipping.held_bytes, self.settings.backlog or self.store.volume_bytes // 10
        if held > most > 0 or (held and self.store.full and self.state == "away"):
            await self._forget(f"{held} bytes of the journal wait, {most} may")
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
        await self._let_go(lsn)
        self._fold_now.set()

    # -- the journal

    @property
    def interval(self) -> float:
        """Seconds between two objects, where nobody waits for one."""
        most = self.settings.requests_per_hour_max
        return max(self.settings.interval, 3600 / most if most else 0.0)

    def _ask(self) -> None:
        """Have all that there is shipped now."""
        self._asked = True
        self._wake.set()

    async def _ship_all(self) -> None:
        """Ship what fills an object at once, and the rest each `interval`: else a fast journal would be some
        segments ahead, and make and fill new ones, while those that it could write anew are kept.
        """
        while True:
            with trio.move_on_after(self.interval) as pause:
                await self._wake.wait()
            everything = self._asked or pause.cancelled_caught
            self._asked, self._wake = False, trio.Event()
            try:
                with suppress(_Forgotten):
                    await self._ship_new(0 if everything else WAL_BYTES)
                if self._finishing and self._even:
                    await self._write_mark()
                    self._finished.set()
                    await trio.sleep_forever()
            except (OSError, MemoryError) as error:
                self.log.error(
                    "the journal cannot be read, or the folder's mark not written; it is tried again; look "
                    "at the disk, or at memory",
                    reason=describe(error),
                )

    @property
    def _even(self) -> bool:
        """Whether the bucket has all that is written."""
        return self._jump is None and not self.shipping.unsynced and self.lag_bytes == 0

    async def _ship_new(self, least: int) -> None:
        """Ship all that is there now, but for what has `least` bytes or fewer."""
        assert self.manifest is not None
        assert self._mark is not None
        if not least:
            self._look()
            await self.shipping.sync()
        end = self.shipping.synced_lsn
        if self._jump is not None:
            anew = JournalRange.empty(self._jump, self.wall_ms(), ROOM)
            self._pack(anew)
            await self._put(anew)
            self._jump = None
        while end - self.shipping.shipped_lsn > least:
            if self._restorable:  # else a snapshot is under way, which is to be of use
                await self._look_at_backlog()
            try:
                found = await self.shipping.read(
                    self.shipping.shipped_lsn, end, self._mark.starts, WAL_BYTES, ROOM, self._pack
                )
            except JournalGap as error:
                await self._forget(str(error))
                return
            if not found.batches:
                break  # a start's segment, or the next one: without a batch yet
            await self._put(found)
            self._recent.append((self.number, found.next_lsn))
            self.shipping.advance(found.next_lsn, restorable=self._restorable)
            self._reach(found.next_lsn)
            if self.shipping.frees_segment(self._mark.lsn):
                await self._write_mark()
        if not least:
            self._reach(max(end, self.shipping.shipped_lsn))
        if self._mark.lsn < self._reached_lsn and trio.current_time() - self._marked_at > MARK_SECONDS:
            await self._write_mark()

    def _look(self) -> None:
        self._looked = trio.current_time(), self.shipping.written_lsn

    def _reach(self, lsn: int) -> None:
        """Nothing below is left to be shipped."""
        self._reached_lsn = lsn
        looked_at, written_lsn = self._looked
        if lsn >= written_lsn and self._restorable:
            self._even_at = looked_at
            self._look()
        advanced, self._advanced = self._advanced, trio.Event()
        advanced.set()

    async def _put(self, found: JournalRange) -> None:
        """Make the next object of what is packed. Raises Fenced, and _Forgotten."""
        assert self.manifest is not None
        epoch, left_alone = self.manifest.epoch, self.bucket.left_alone
        while True:
            try:
                await self._repeated(
                    partial(self.bucket.create, wal_key(self.number + 1), found.data), looks=True
                )
            except Exists:
                head = await self._repeated(partial(epochs.wal_head, self.bucket, self.number + 1))
                if head is None or head.epoch != epoch:
                    raise Fenced from None
                # It is ours, of something that was forgotten before its answer came.
                self.number += 1
                await self.store.in_thread(self._pack, found)
                continue
            self.number += 1
            self.objects += 1
            self.shipped_bytes += len(found.data)
            if self.bucket.left_alone == left_alone:
                self.shipping.read_again(found)
            return

    def _pack(self, found: JournalRange) -> None:
        """Make the next WAL object of what was read. In a thread."""
        assert self.manifest is not None
        pieces = [Piece(*each[1:]) for each in found.referred]
        head = WalHead(
            self.number + 1,
            self.manifest.epoch,
            self.shipping.journal_id,
            found.first_lsn,
            found.next_lsn,
            *found.times_ms,
            found.batch_bytes,
            found.batches,
            len(pieces),
        )
        seal_wal(found.data, head, pieces)

    # -- snapshots

    async def _fold_all(self) -> None:
        snapshots = self.snapshots
        assert snapshots is not None
        await snapshots.load(go_on=self._restorable)
        while True:
            if self._restorable:
                with trio.move_on_after(self.settings.fold):
                    await self._fold_now.wait()
            self._fold_now = trio.Event()
            try:
                before, anew = self._requests_besides, not self._restorable
                if self.shipping.synced_lsn != snapshots.folded_lsn or anew:
                    self._has_snapshot(await snapshots.make(self))
                    await self._write_mark()
                if self._restorable and self.settings.fencing == "required":
                    await snapshots.leave(self)
                await snapshots.delete_doomed()
                if not anew:
                    self.fold_requests = self._requests_besides - before
            except (OSError, MemoryError) as error:
                self.log.error(
                    "a snapshot cannot be made; it is tried again; look at the disk, or at memory",
                    reason=describe(error),
                )
                await trio.sleep(AWAY_SECONDS[1])

    def _has_snapshot(self, lsn: int | None) -> None:
        """There is a snapshot: what was shipped from there on can be restored."""
        if lsn is not None and lsn >= self._least_lsn and self._jump is None and not self._restorable:
            self._restorable = True
            self.shipping.advance(self.shipping.shipped_lsn, restorable=True)

    async def reach(self, lsn: int, snapshot_lsn: int) -> bool:
        """Wait until the bucket has all below `lsn`; False where a snapshot at `snapshot_lsn` is of no use,
        since shipping began anew behind it.
        """
        while self._reached_lsn < lsn or self._jump is not None:
            self._ask()
            await self._advanced.wait()
        return snapshot_lsn >= self._least_lsn

    def number_of(self, lsn: int) -> int:
        """The number of the WAL object with the first batch from `lsn` on, which need not be there yet."""
        while self._recent and self._recent[0][1] <= lsn:
            self._recent.popleft()
        return self._recent[0][0] if self._recent else self.number + 1

    # -- what only the bucket has

    def sections_of(self, log_id: int) -> Sequence[tuple[str, Section]]:
        """As `Snapshots.sections_of`; none before it is known what there is."""
        return () if self.snapshots is None else self.snapshots.sections_of(log_id)

    async def refresh(self) -> None:
        """Raise Away before it is known of which parts the logs consist: the bucket is not ours yet, or did
        not answer. Once it is another server's, as `Snapshots.refresh`."""
        if self.snapshots is None or not self.snapshots.loaded:
            raise Away("the bucket did not say yet what it has")
        if self.state == "fenced":
            await self.snapshots.refresh()

    # -- what is shown

    @property
    def is_even(self) -> bool:
        """Whether all that is written can be restored from the bucket."""
        return self._even and self._restorable

    @property
    def lag_seconds(self) -> float:
        """How old the oldest is that cannot be restored from the bucket, at most."""
        return 0.0 if self.is_even else trio.current_time() - self._even_at

    @property
    def lag_bytes(self) -> int:
        """Bytes of the journal that the bucket lacks."""
        return max(self.shipping.synced_lsn - self._reached_lsn, 0)

    @property
    def _requests_besides(self) -> int:
        """Requests so far that write, but for those of the journal."""
        counts = self.bucket.counts
        return sum(counts[name].requests for name in ("create", "replace", "delete")) - self.objects

    @property
    def requests_a_month(self) -> int:
        """Those of the journal as they came since the bucket is ours, and those of snapshots that follow each
        other by `fold`. What a start asks once is not among them."""
        seconds = max(trio.current_time() - self.claimed, 1.0)
        made = 0 if self.snapshots is None else self.snapshots.made
        folds = min(1 / self.settings.fold, made / seconds)
        return round((self.objects / seconds + folds * self.fold_requests) * _MONTH_SECONDS)

    def statistics(self) -> ShipStatistics:
        oldest = self._manifest_now.snapshots[:1] if self._manifest_now is not None else ()
        return ShipStatistics(
            self.lag_seconds,
            self.lag_bytes,
            self.shipping.held_bytes,
            self.shipping.waiting,
            0 if self.manifest is None else self.manifest.epoch,
            not self.stands,
            oldest[0].time_ms / 1000 if oldest else 0.0,
            self.objects,
            self.shipped_bytes,
            0 if self.snapshots is None else self.snapshots.made,
            self.forgotten,
        )

    def samples(self) -> Iterator[Sample]:
        """All metrics of shipping."""
        yield from figures("ship", self.statistics())
        for operation, count in self.bucket.counts.items():
            labels = (("operation", operation),)
            yield Sample("ship_requests_total", count.requests, "Requests to the bucket.", labels=labels)
            yield Sample("ship_request_bytes_total", count.bytes, "Bytes of these.", labels=labels)
            yield Sample("ship_request_errors_total", count.errors, "Those that failed.", labels=labels)

    def status(self) -> dict[str, Any]:
        """What `brokers ship status` shows, in JSON's values."""
        manifest = self._manifest_now
        kept = manifest.snapshots if manifest is not None else ()
        return {
            "state": self.state,
            "reason": self.reason,
            "url": self.settings.url,
            "epoch": 0 if manifest is None else manifest.epoch,
            "ack": self.settings.ack,
            "lag_seconds": round(self.lag_seconds, 3),
            "lag_bytes": self.lag_bytes,
            "held_bytes": self.shipping.held_bytes,
            "shipped_lsn": self.shipping.shipped_lsn,
            "number": self.number,
            "objects": self.objects,
            "bytes": self.shipped_bytes,
            "snapshots": len(kept),
            "retained_from": kept[0].time_ms if kept else None,
            "retained_to": round(1000 * (time.time() - self.lag_seconds)) if kept else None,
            "begun_anew": self.forgotten,
            "last_error": self.bucket.last_error,
            "requests": {name: attrs.asdict(count) for name, count in self.bucket.counts.items()},
            "requests_a_month": self.requests_a_month,
        }

    @property
    def _manifest_now(self) -> Manifest | None:
        return self.manifest if self.snapshots is None else self.snapshots.manifest


_MONTH_SECONDS = 30 * 86400

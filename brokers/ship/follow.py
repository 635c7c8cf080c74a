"""A server that follows a bucket: it applies what another one ships, as it comes, and serves who reads.

Its folder is a restored one with a journal of its own, and a file FOLLOW that names the bucket. Logs have the
ids and offsets that they have there. Whoever wants to write is refused as by a store that is read-only.

A promotion takes the next epoch of the bucket, which fences the server before, and applies what that had
shipped. Then the store is closed, and the folder becomes one that was restored: it goes on with the bucket's
journal above all its LSNs, and ships. A file PROMOTE in the folder asks for it; so it can be asked of a
follower that is not started yet, too.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import structlog
import trio

from brokers.ship import epochs
from brokers.ship.bucket import Away, Bucket, Exists, Missing, Stale, Unusable
from brokers.ship.folder_files import put_back
from brokers.ship.formats import (
    SHIP_PATH,
    BadObject,
    FolderMark,
    Manifest,
    Section,
    Wal,
    WalHead,
    continues,
    left_in,
    unpack_wal,
    wal_key,
)
from brokers.ship.names import FOLLOW_PATH, PROMOTE_PATH
from shared.errors import StoreError, StoreFormat, StoreReadOnly
from shared.metrics import Sample
from shared.storage import catalog as catalog_file
from shared.storage import format
from shared.storage.disk import Disk, replace_file
from shared.storage.files import describe
from shared.storage.following import Came, Diverged, Follower, Position
from shared.storage.os_disk import OsDisk
from shared.storage.store import Store
from shared.task_turns import TaskTurn
from shared.units import MIB

WHY = "this server follows another one and is read-only: write there, or promote this one"
ASKED_SECONDS = 0.2
"""How often the folder is looked at for PROMOTE."""
AWAY_SECONDS = 5.0
"""A bucket that does not answer is asked again so much later."""
ANEW = "empty its folder and start it again"
_CHUNK_BYTES, _CHUNK_ENTRIES, _CHUNK_MS = 1 * MIB, 2000, 1000
"""What is applied at once: the loop is busy for some milliseconds. It has one time, that of its end."""

State = Literal["following", "away", "standing", "promoting", "promoted"]


def pack_follow(url: str, position: Position) -> bytes:
    return format.pack_lines([{"follow": 1, "url": url, **position._asdict()}])


def read_follow(folder: Path) -> tuple[str, Position] | None:
    """The bucket that a folder follows, and where; None: it follows none. Raises StoreFormat."""
    try:
        lines = format.unpack_lines((folder / FOLLOW_PATH).read_bytes())
    except (FileNotFoundError, NotADirectoryError):  # what is no folder is refused by its store
        return None
    try:
        (fields,) = lines or [{}]
        if fields.pop("follow") != 1:
            raise ValueError
        return fields.pop("url"), Position(**fields)
    except (KeyError, TypeError, ValueError):
        raise StoreFormat(f"{folder / FOLLOW_PATH} is damaged: restore the folder anew") from None


@attrs.define(eq=False)
class Follow:
    """Follows with one store. `start` before it is served, then `run`, which ends once it is promoted."""

    store: Store
    bucket: Bucket
    url: str
    position: Position
    log: structlog.stdlib.BoundLogger
    interval: float = 1.0
    state: State = "following"
    reason: str = ""
    """Why nothing is applied."""
    objects: int = 0
    bytes: int = 0
    writer: str = attrs.Factory(epochs.new_writer)
    _even_at: float = attrs.Factory(time.monotonic)
    """All that was shipped then is here."""
    applying: trio.Lock = attrs.Factory(trio.Lock)
    """Whoever has it sees all of a batch, or nothing."""
    _follower: Follower = attrs.field(init=False)
    _sections: Mapping[int, Sequence[tuple[str, Section]]] = attrs.Factory(dict)
    """Of the newest snapshot, where somebody has read what only the bucket has."""

    async def start(self) -> None:
        """Refuse writes from now on, and find out how far the folder has come. Raises StoreError."""
        self._follower = self.store.follow(StoreReadOnly(WHY))
        self.position = await self._follower.position(self.position)

    async def run(self) -> None:
        while self.state != "promoted":
            try:
                if await self._is_asked():
                    await self.promote()
                    break
                if await self._apply_next():
                    self._say("following")
                    continue
                self._even_at = time.monotonic()
                self._say("following")
                await self._pause(self.interval)
            except (Away, Unusable) as error:
                self._say("away", str(error))
                await self._pause(AWAY_SECONDS)
            except (BadObject, Diverged, epochs.Fenced, Missing) as error:
                self._say("standing", str(error) or "another server has taken the bucket")
                return
            except (StoreError, OSError) as error:
                self._say("standing", describe(error), "look at the disk, then restart it")
                return

    async def _is_asked(self) -> bool:
        assert self.store.folder is not None
        return await trio.Path(self.store.folder / PROMOTE_PATH).exists()

    async def _pause(self, seconds: float) -> None:
        """Wait, or until a promotion is asked for."""
        with trio.move_on_after(seconds):
            while not await self._is_asked():  # noqa: ASYNC110 - a file tells no event
                await trio.sleep(min(ASKED_SECONDS, seconds))

    def _say(self, state: State, reason: str = "", advice: str = ANEW) -> None:
        if state != self.state:
            if state == "away":
                self.log.warning("the bucket does not answer: what is here is served", reason=reason)
            elif state == "standing":
                self.log.critical(
                    f"this follower cannot go on, and serves what it has: {advice}", reason=reason
                )
            elif self.state == "away":
                self.log.info("the bucket answers again", url=self.url)
        self.state, self.reason = state, reason

    # -- what comes

    async def _apply_next(self) -> bool:
        """Apply the next object; whether there was one. Raises BadObject, Diverged, Away, Unusable."""
        number = self.position.number + 1
        key = wal_key(number)
        try:
            data, _ = await self.bucket.get(key)
        except Missing:
            await self._require_kept(number)
            return False
        wal = await self.store.in_thread(unpack_wal, data, key)
        if not continues(self._head(), wal.head):
            raise Diverged(f"{key} does not go on where this folder ends: shipping began anew")
        await self._apply(wal)
        self.objects += 1
        self.bytes += len(data)
        return True

    def _head(self) -> WalHead:
        """Of the newest object that is here."""
        at = self.position
        lsn = at.next_lsn
        return WalHead(at.number, at.epoch, at.journal_id, lsn, lsn, 0, 0, 0, 0, 0)

    async def _require_kept(self, number: int) -> None:
        """Raise Diverged if an object is not there because it was deleted."""
        found = await epochs.read_manifest(self.bucket)
        if found is not None and found[0].wal_first > number:
            raise Diverged(f"{wal_key(number)} is deleted in the bucket: this follower was away for too long")

    async def _apply(self, wal: Wal) -> None:
        head, turn = wal.head, TaskTurn()
        referred = {(piece.log_id, piece.offset): piece.data for piece in wal.pieces()}
        # What is gone was deleted by the end of the object: until then it would be read as zeros.
        has_gone = any(data is None for data in referred.values())
        chunk: list[Came] = []
        size = entries = 0
        for batch, data in wal.batches():
            if batch.lsn < self.position.lsn:
                continue  # it was applied before a restart
            chunk.append((batch, data))
            size, entries = size + batch.size, entries + batch.entries
            full = size >= _CHUNK_BYTES or entries >= _CHUNK_ENTRIES
            if not has_gone and (full or batch.time_ms - chunk[0][0].time_ms >= _CHUNK_MS):
                end = self.position._replace(lsn=batch.lsn + batch.size, time_ms=batch.time_ms)
                await self._write(chunk, referred, end)
                chunk, size, entries = [], 0, 0
                await turn.others()
        whole = self.position._replace(
            epoch=head.epoch, number=head.number, next_lsn=head.next_lsn, lsn=head.next_lsn
        )
        if head.batches:
            whole = whole._replace(time_ms=head.last_ms)
        await self._write(chunk, referred, whole)

    async def _write(self, chunk: list[Came], referred: Mapping[Any, Any], position: Position) -> None:
        async with self.applying:
            ticket = self._follower.apply(chunk, referred, position)
            await self.store.wait(ticket)
            self.position = position

    # -- what only the bucket has

    def sections_of(self, log_id: int) -> Sequence[tuple[str, Section]]:
        """As `Snapshots.sections_of`; none before `refresh`."""
        return self._sections.get(log_id, ())

    async def refresh(self) -> None:
        """Ask the bucket for its newest snapshot. Raises BadObject and BucketErrors."""
        self._sections = (await epochs.newest_snapshot(self.bucket, self.store.in_thread)).sections

    # -- the promotion

    async def promote(self) -> None:
        """Take the bucket, apply all that is there, and prepare the folder to go on by itself. Raises Fenced
        where another server was faster, and as `run`."""
        self._say("promoting")
        began = time.monotonic()
        manifest = await self._take_epoch()
        while True:
            while await self._apply_next():
                pass
            number, lsn = self.position.number + 1, self.position.next_lsn
            try:
                await epochs.open_epoch(self.bucket, manifest, number, lsn, manifest.written_ms)
            except Exists:
                continue  # the server before was faster once more
            break
        await self._apply_next()
        self.position = self._follower.known(self.position)
        assert self.store.folder is not None
        await put_back(self.store, self.store.folder)
        await self.store.in_thread(_save, self.store.folder, self.url, self.position)
        await self.store.wait(self._follower.forget())
        self._say("promoted")
        self.log.warning(
            "promoted: all that was shipped is here; what the server before had not shipped by then is not",
            epoch=manifest.epoch,
            lsn=self.position.lsn,
            newest=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.position.time_ms / 1000)),
            seconds=round(time.monotonic() - began, 3),
        )

    async def _take_epoch(self) -> Manifest:
        while True:
            found = await epochs.read_manifest(self.bucket)
            if found is None:
                raise Diverged("the bucket has no manifest any more")
            now_ms = time.time_ns() // 1_000_000
            new = attrs.evolve(found[0], writer=self.writer, written_ms=now_ms)
            try:
                manifest, _ = await epochs.take_epoch(self.bucket, found, new)
            except Stale:
                continue
            return manifest

    # -- what is shown

    @property
    def lag_seconds(self) -> float:
        """All that was shipped so long ago is here."""
        return time.monotonic() - self._even_at

    def status(self) -> Mapping[str, Any]:
        return {
            "follows": self.url,
            "state": self.state,
            "reason": self.reason,
            "lag_seconds": round(self.lag_seconds, 3),
            "number": self.position.number,
            "lsn": self.position.lsn,
            "newest_ms": self.position.time_ms,
        }

    def samples(self) -> Iterator[Sample]:
        yield Sample("follow_lag_seconds", self.lag_seconds, "All shipped so long ago is here.", "gauge")
        yield Sample("follow_objects_total", self.objects, "WAL objects applied.")
        yield Sample("follow_bytes_total", self.bytes, "Bytes of WAL objects applied.")
        good = self.state == "following"
        yield Sample("follow_ok", good, "1: what is shipped is applied as it comes.", "gauge")


def _save(folder: Path, url: str, position: Position) -> None:
    with OsDisk(folder, create=False) as disk:
        replace_file(disk, FOLLOW_PATH, pack_follow(url, position))


def finish_promotion(folder: Path, follow: Follow) -> None:
    """The store is closed in order: have the folder go on with the bucket's journal. May be done again."""
    position = follow.position
    with OsDisk(folder, create=False) as disk:
        found = catalog_file.read(disk)
        assert found is not None
        sector = format.padded(position.next_lsn)
        made = attrs.evolve(
            found,
            journal_id=position.journal_id,
            replay_lsn=max(found.replay_lsn, sector),
            next_log_id=position.next_id,
        )
        mark = FolderMark(
            follow.url,
            f"{position.journal_id:016x}",
            position.epoch,
            position.number,
            position.next_lsn,
            starts=((position.next_lsn, made.replay_lsn),),
            writers=(follow.writer,),
            left=left_in(made),
        )
        replace_file(disk, SHIP_PATH, mark.pack())
        replace_file(disk, catalog_file.PATH, made.pack())
        for name in (FOLLOW_PATH, PROMOTE_PATH):
            _remove(disk, name)
        disk.sync_folder("")


def _remove(disk: Disk, name: str) -> None:
    try:
        disk.unlink(name)
    except FileNotFoundError:
        pass

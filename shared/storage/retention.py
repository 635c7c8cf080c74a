"""Retention: old records are dropped, offsets stay.

What a log has to keep stays, with the rest of the index entry that it begins in. When the new first offset is
durable and nobody reads below it, the file gets a hole at its head. So it does where the bucket alone is to
have a log's bytes, once the catalog says so; then the index stays.
"""

from collections.abc import Callable

import attrs
import structlog
import trio

from shared.errors import StoreError
from shared.storage.committer import Committer
from shared.storage.files import FileGone, describe
from shared.storage.format import IndexEntry
from shared.storage.index import drop_entries
from shared.storage.inventory import Inventory
from shared.storage.log import Log, opaque
from shared.storage.reading import Reader
from shared.storage.settings import Retention
from shared.task_turns import TaskTurn

logger = structlog.stdlib.get_logger("brokers.storage")

_STEP_MS = 3_600_000
"""If the wall clock deviates from the monotonic one by more, it was set: retention by age pauses."""
_BLOCK_BYTES = 4096
"""The file system's block: the unit of holes."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class RetentionKeeper:
    """One per store. `paused`: why retention by age is off."""

    _committer: Committer
    _inventory: Inventory
    _reader: Reader
    _written_ms: int
    """When the newest catalog was written: no wall clock should be earlier."""
    may_punch: Callable[[Log, int], bool] = lambda log, offset: True
    """Whether space of a log below an offset may be given back, for what is shipped."""
    paused: str | None = None
    dropped_bytes: int = 0
    left_bytes: int = 0
    """Of what the bucket alone has, since the start."""
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _due_ms: dict[Log, int] = attrs.Factory(dict)  # until then nothing in the log can be too old
    _punched: dict[Log, int] = attrs.Factory(dict)
    _can_punch: bool = True

    def __attrs_post_init__(self) -> None:
        self._wall_ms, self._monotonic = self._committer.clock.wall_ms(), self._committer.clock.monotonic()
        if self._wall_ms < self._written_ms - _STEP_MS:
            self._pause("the clock is behind the newest catalog")

    async def run(self) -> None:
        while True:
            await trio.sleep(self._committer.settings.retention_seconds)
            if self._committer.read_only is None:
                await self.tick()

    async def tick(self) -> None:
        """Check every log once."""
        now_ms = self.watched_ms()
        turn = TaskTurn()
        for log in self._inventory.all_logs():
            await turn.item()
            if log.deleted or (log.visible <= log.first and _space_below(log) <= self._punched.get(log, 0)):
                continue  # most of 50,000 queues are empty
            try:
                follows = self._committer.refuses is not None  # another store drops what is dropped
                first = log.first if follows else await self._new_first(log, now_ms)
                if first > log.first and not log.deleted:
                    self.dropped_bytes += first - log.first
                    log.drop_below(first)
                if _space_below(log) > self._punched.get(log, 0):
                    await self._punch(log)
            except (StoreError, OSError, FileGone, MemoryError) as error:
                if not log.deleted:
                    logger.warning(
                        "retention failed for a log: it keeps its old records, and is tried again; look at "
                        "the disk",
                        log=log.name,
                        reason=describe(error),
                    )
        self._committer.commit_pending()
        for gone in [log for log in self._punched if log.deleted]:
            del self._punched[gone]
        for gone in [log for log in self._due_ms if log.deleted]:
            del self._due_ms[gone]

    def watched_ms(self) -> int:
        """The wall clock's Unix ms. Whatever goes by age waits while `paused`, which this may begin."""
        wall_ms, monotonic = self._committer.clock.wall_ms(), self._committer.clock.monotonic()
        step_ms = wall_ms - self._wall_ms - (monotonic - self._monotonic) * 1000
        self._wall_ms, self._monotonic = wall_ms, monotonic
        if abs(step_ms) > _STEP_MS:
            self._pause(f"the clock was set by {step_ms / 1000:.0f} s")
        return wall_ms

    def _pause(self, reason: str) -> None:
        if self.paused is None:
            self.paused = reason
            logger.warning(
                "retention by age pauses: old records stay; set the clock right, then restart", reason=reason
            )

    async def _new_first(self, log: Log, now_ms: int) -> int:
        policy = self._inventory.retention_of(log)
        first = await self._within_bytes(log, policy, log.first)
        if policy.ms_kept is None or self.paused is not None or log.visible <= first:
            return min(first, log.visible)
        if self._due_ms.get(log, 0) <= now_ms:
            oldest = await self._oldest(log, now_ms - policy.ms_kept)
            first = max(first, log.visible if oldest is None else oldest.offset)
            due = now_ms if oldest is None else oldest.last_ms
            self._due_ms[log] = due + policy.ms_kept + 1
        return min(first, log.visible)

    async def _within_bytes(self, log: Log, policy: Retention, first: int) -> int:
        """Where the last `bytes_kept` begin, with the rest of the entry; not below `first`."""
        if policy.bytes_kept is None or log.visible - first <= policy.bytes_kept:
            return first
        limit = log.visible - policy.bytes_kept
        if limit == log.visible:
            return limit
        _, entry = await self._reader.look(lambda: self._reader.table.find(log, limit), self._limiter)
        return max(first, entry.offset)

    async def _oldest(self, log: Log, unix_ms: int) -> IndexEntry | None:
        table = self._reader.table
        return await self._reader.look(lambda: table.find_time(log, unix_ms), self._limiter)

    async def local_limit(self, log: Log) -> int:
        """Below it this disk need not keep a log's bytes, once the bucket has them. Raises StoreError."""
        policy, here = log.local_retention, max(log.first, log.local)
        limit = await self._within_bytes(log, policy, here)
        if policy.ms_kept is not None and self.paused is None and log.visible > limit:
            oldest = await self._oldest(log, self._committer.clock.wall_ms() - policy.ms_kept)
            limit = max(limit, log.visible if oldest is None else oldest.offset)
        return min(limit, log.tail_start)

    def leave_to_bucket(self, log: Log, offset: int) -> None:
        """Keep a log's bytes here from `offset` on, an entry's start: the bucket has all below, for certain.

        From now on they are read there. Their space is freed once a catalog on the disk says so.
        """
        self.left_bytes += offset - max(log.first, log.local)
        log.local = offset
        self._committer.tails.dirty[log] = None
        self._committer.request_checkpoint()

    async def _punch(self, log: Log) -> None:
        """Free the space below the first kept offset, and what the bucket alone is to have, unless somebody
        reads there.
        """
        first = _space_below(log)
        if not self._can_punch or (log.users is not None and min(log.users) < first):
            return
        if first > log.tail_start:  # otherwise the file would later get bytes where the hole is
            return
        if first > log.referred_from:  # recovery looks for all that the journal refers to
            self._committer.request_checkpoint()
            return
        if not self.may_punch(log, first):
            return
        kept = log.first_kept
        if kept < log.visible:  # a partly kept entry is checked as a whole
            number, entry = await self._reader.look(lambda: self._reader.table.find(log, kept), self._limiter)
            number, limit = min(number, log.entries_written), max(entry.offset, log.local_kept)
        else:
            number, limit = (
                await self._reader.look(lambda: self._reader.table.count(log), self._limiter),
                kept,
            )
            if log.open_entry is not None:  # what comes next may be checked with what is dropped
                limit = min(limit, log.open_entry.offset)
        start = self._punched.get(log, 0) // _BLOCK_BYTES * _BLOCK_BYTES
        stop = limit // _BLOCK_BYTES * _BLOCK_BYTES
        if stop > start and not log.deleted:
            await self._committer.in_thread(self._make_hole, log, start, stop, number, limiter=self._limiter)
        self._punched[log] = first

    def _make_hole(self, log: Log, start: int, stop: int, number: int) -> None:
        """Make the hole; `number`: of the first kept entry."""
        with self._committer.files.opened(log.file) as fd:
            punched = self._committer.disk.punch(fd, start, stop - start)
        if punched:
            drop_entries(self._committer.disk, self._committer.files, log, number)
        else:
            self._can_punch = False
            logger.warning(
                "this file system cannot punch holes: records that retention drops keep their disk space; "
                "use ext4, XFS or btrfs"
            )


def _space_below(log: Log) -> int:
    """Below it nothing of the log's file is needed any more, as the disk knows."""
    return max(log.first_kept, log.local_kept)

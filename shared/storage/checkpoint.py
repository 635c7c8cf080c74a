"""Checkpoints: syncing the logs' own files, so that segments of the journal become free (ARCHITECTURE.md).

A failed sync is final (the store becomes read-only). A full disk is not, because all is safe in the journal:
the checkpoint is tried again. On a slow disk every sync takes half a second, and many at a time take hardly
longer: there several threads share the syncs.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import attrs
import structlog
import trio

from shared.storage import catalog
from shared.storage.committer import Committer
from shared.storage.disk import replace_file
from shared.storage.files import LogFile, describe, out_of_space
from shared.storage.inventory import CatalogSnapshot, Inventory
from shared.storage.journal import PoisonError
from shared.storage.log import Log, opaque
from shared.storage.log_writer import LogWriter
from shared.task_turns import TaskTurn

logger = structlog.stdlib.get_logger("brokers.storage")

_RETRY_SECONDS = 1.0
_SYNC_THREADS = 32
_TOGETHER_SECONDS = 0.01
"""One thread syncs for so long; several share what is left."""
_WRITE_BACK_SECONDS = 1.0
"""The system is asked for so long at most to write before the sync."""
_PAUSE_SECONDS_MAX = 0.05
BATCHES_MAX = 65536
"""A checkpoint is due after so many batches, however small: replay takes time for each."""


Work = deque[Callable[[], object]]
"""Starts of writes, or syncs. Threads share it, and each takes the next piece."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Checkpointer:
    """One per store."""

    _committer: Committer
    _log_writer: LogWriter
    _inventory: Inventory
    checkpoints: int = 0
    _limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(1))
    _sync_limiter: trio.CapacityLimiter = attrs.Factory(lambda: trio.CapacityLimiter(_SYNC_THREADS))
    lock: trio.Lock = attrs.Factory(trio.Lock)
    """One checkpoint at a time: a second would record logs as safe that the first has not synced yet."""
    vouches: Callable[[Log, int], bool] = lambda log, end: True
    """Whether the next start will find a log's files, up to this end (`FileNames`)."""
    _due: trio.Event = attrs.Factory(trio.Event)
    _done: trio.Event = attrs.Factory(trio.Event)
    _waited_for: int = 0
    """Callers in `make_room`."""
    _failing: bool = False

    def __attrs_post_init__(self) -> None:
        committer = self._committer
        committer.request_checkpoint = self.request
        committer.checkpoint_batches = BATCHES_MAX

    def request(self) -> None:
        """Have a checkpoint soon."""
        self._due.set()

    async def make_room(self) -> bool:
        """Wait for the end of a checkpoint, which may be under way; False if it must be tried again."""
        before, done = self.checkpoints, self._done
        self._due.set()
        self._waited_for += 1
        try:
            await done.wait()
        finally:
            self._waited_for -= 1
        return self.checkpoints > before

    async def run(self) -> None:
        await self._prepare()
        while True:
            await self._due.wait()
            self._due = trio.Event()
            good = self._committer.read_only is None and await self.checkpoint()
            done, self._done = self._done, trio.Event()
            done.set()
            if not good:
                await trio.sleep(_RETRY_SECONDS)
                if self._committer.read_only is None:
                    self._due.set()

    async def _prepare(self) -> None:
        try:
            await self._committer.in_thread(self._committer.journal.prepare, limiter=self._limiter)
        except PoisonError as error:
            self._committer.poison(error)
        except OSError as error:
            logger.warning(
                "no room for a spare journal segment: commits make one when they need it; free some space",
                reason=describe(error),
            )

    async def checkpoint(self, clean: bool = False) -> bool:
        """Make a checkpoint; False if it must be tried again. A failed sync makes the store read-only."""
        async with self.lock:
            with suppress(MemoryError):
                return await self._checkpoint(clean)
        return False

    async def _checkpoint(self, clean: bool) -> bool:
        """Before the snapshot write as many tails and index entries as possible, so that few are left."""
        await self._log_writer.flush()
        if not clean and self._committer.journal.needs_segment:
            # Replay must begin in a segment that is there: one that is not could have been lost, and is told.
            await self._prepare()
        snapshot = await self._committer.between_commits(partial(self._snapshot, clean))
        if snapshot is None:
            return False
        pinned: list[tuple[LogFile, int]] = []
        good = False
        try:
            turn = TaskTurn()
            for log in snapshot.changed:
                pinned += [(file, self._committer.files.pin(file)) for file in (log.file, log.index_file)]
                await turn.item()
            if await self._log_writer.flush():
                if not clean and len(snapshot.changed) > self._committer.settings.sync_all_logs:
                    await self._start_write_back(pinned)
                await self._sync_files(snapshot, pinned)
                nameless = await self._committer.in_thread(self._nameless, snapshot, limiter=self._limiter)
                if self._committer.shipping is not None:
                    # No power cut may leave less of the journal than the catalog has: shipping would begin
                    # anew. Only a commit that waits for room goes before: it is what would sync.
                    await self._committer.shipping.sync(lambda: self._waited_for > 0)
                if not nameless:
                    put_in_place = partial(self._put_in_place, snapshot, clean)
                    await self._committer.in_thread(put_in_place, limiter=self._limiter)
                    good = True
                self._committer.tails.unlooked |= dict.fromkeys(nameless)
        except PoisonError as error:
            self._committer.poison(error)
        except OSError as error:
            self._complain(error)
        finally:
            for file, _ in pinned:
                self._committer.files.unpin(file)
            if good:
                self.checkpoints += 1
                self._failing = False
                self._inventory.written(snapshot)
                for log, line in snapshot.changed.items():
                    if log.referred_from < line.end:
                        log.referred_from = line.end
            else:
                self._inventory.take_back(snapshot)
        return good

    def _complain(self, error: OSError) -> None:
        if not out_of_space(error):
            failed = PoisonError("a checkpoint failed")
            failed.__cause__ = error
            self._committer.poison(failed)
        elif not self._failing:
            self._failing = True
            logger.error(
                "no room for a checkpoint: nothing is lost, the journal grows and it is tried again; "
                "free some space",
                reason=describe(error),
            )

    def _snapshot(self, clean: bool) -> CatalogSnapshot | None:
        committer = self._committer
        if committer.read_only is not None or committer.tails.unwritable:
            return None  # the journal still holds what a log file lacks
        tails = committer.tails
        changed, tails.dirty = tails.dirty, {}
        committer.referred_bytes = 0
        committer.checkpoint_batches = self._committer.journal.batches + BATCHES_MAX
        committer.replay_lsn = self._committer.journal.position
        for log in tails.unindexed:
            log.close_entry()
        return self._inventory.snapshot(self._committer.journal.position, changed, clean)

    async def _start_write_back(self, pinned: list[tuple[LogFile, int]]) -> None:
        """Have the system write most of it first, in steps that leave the disk to commits in between.

        One sync of all that is dirty holds up every commit's sync. For 1,000 logs 17 to 263 ms were seen, and
        3 to 18 ms after this. What is not started in time is left to the sync.
        """
        left: Work = deque(partial(self._committer.disk.start_write_back, fd) for _, fd in pinned if fd >= 0)
        counts = self._committer.counts
        ends = self._committer.clock.monotonic() + _WRITE_BACK_SECONDS
        pause = 0.0
        while left and not self._waited_for and (began := self._committer.clock.monotonic()) < ends:
            if not await self._run_some(left, "a checkpoint could not have the logs written"):
                return
            took = self._committer.clock.monotonic() - began
            commits_wait = counts.sync_seconds_last > 2 * counts.sync_quantile(0.5)
            pause = min(max(took, 2 * pause if commits_wait else pause / 2), _PAUSE_SECONDS_MAX)
            await trio.sleep(pause)

    async def _sync_files(self, snapshot: CatalogSnapshot, pinned: list[tuple[LogFile, int]]) -> None:
        """Sync the logs' files and their names. Raises PoisonError."""
        disk, few = self._committer.disk, self._committer.settings.sync_all_logs
        if len(snapshot.changed) > few and await self._run_some(deque([disk.sync_all])):
            return
        left: Work = deque(partial(self._sync_log, pinned[at : at + 2]) for at in range(0, len(pinned), 2))
        left.extend(partial(disk.sync_folder, folder) for folder in snapshot.folders)
        await self._run_some(left)
        failed: list[PoisonError] = []
        async with trio.open_nursery() as nursery:
            for _ in range(min(len(left), _SYNC_THREADS)):
                nursery.start_soon(self._sync_left, left, failed)
        if failed:
            raise failed[0]

    async def _sync_left(self, left: Work, failed: list[PoisonError]) -> None:
        try:
            while left:
                await self._run_some(left)
        except PoisonError as error:
            failed.append(error)

    async def _run_some(self, left: Work, failure: str = "a checkpoint could not sync the logs") -> bool:
        """Do some of the work for a short while, at least one piece; none once one has failed.

        False: the system cannot do that. Raises PoisonError: a later sync may not report the error again.
        """

        def run() -> bool:
            began = self._committer.clock.monotonic()
            try:
                while left and self._committer.clock.monotonic() - began < _TOGETHER_SECONDS:
                    if left.popleft()() is False:
                        return False
            except IndexError:
                pass  # another thread took the last one
            except OSError as error:
                left.clear()
                raise PoisonError(failure) from error
            return True

        done: bool = await self._committer.in_thread(run, limiter=self._sync_limiter)
        return done

    # -- in a thread

    def _sync_log(self, pinned: Sequence[tuple[LogFile, int]]) -> None:
        """Sync a log's file before its index: no entry is on disk before what it vouches for."""
        for file, fd in pinned:
            self._committer.files.sync(file, fd)

    def _nameless(self, snapshot: CatalogSnapshot) -> list[Log]:
        """Logs of which the next start would not find what was synced."""
        return [log for log, line in snapshot.changed.items() if not self.vouches(log, line.end)]

    def _put_in_place(self, snapshot: CatalogSnapshot, clean: bool) -> None:
        replace_file(self._committer.disk, catalog.PATH, snapshot.pack())
        self._committer.journal.release(snapshot.head.replay_lsn)
        if not clean:  # after a clean end nothing more is written
            self._committer.journal.prepare()

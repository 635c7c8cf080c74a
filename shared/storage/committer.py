"""The committer: takes what piled up to the disk, and shows the outcome to everybody who waits.

`begin` gives appenders a place in the round that is being filled. `commit_pending`, called at the end of a
driver's round of work, commits it: here and now where that is quick, else by the committer's task, in a
thread. What is appended meanwhile goes into the next one; so the disk's speed sets a batch's size, and no
timer is needed.

On success, in this order: bytes stand in the log files, `visible` advances, watchers are called, tickets
resolve. On failure everything that was appended and is not durable is taken back, whether it was in the
failed round or behind it, since its offsets stood on it.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import structlog
import trio

from shared.errors import LogDeleted, StoreClosed, StoreError, StoreFull, StoreReadOnly
from shared.storage.clock import Clock
from shared.storage.commit import Commit
from shared.storage.counts import CommitCounts
from shared.storage.direct import DirectWrites
from shared.storage.disk import Disk
from shared.storage.files import OpenFiles, describe, refusal
from shared.storage.format import BATCH_PAYLOAD_MAX, ENTRY_HEADER_BYTES, Kind
from shared.storage.journal import Journal, PoisonError
from shared.storage.log import Log
from shared.storage.rounds import Change, Mode, Registry, Round, Run, Ticket, awaited_bytes, call, mode_of
from shared.storage.settings import StorageSettings
from shared.storage.work import Work

logger = structlog.stdlib.get_logger("brokers.storage")

_INLINE_LOGS_MAX = 64
"""A batch of more logs is committed by the thread: writing to each log's file takes a call of its own."""
_RECENT_BYTES_MAX = 1 << 20
"""What has just become visible is kept in memory for whoever watches the log, unless it is more than this."""


class Committer:
    """One per store. `read_only` is set for good when the journal can no longer be trusted."""

    def __init__(
        self,
        journal: Journal,
        disk: Disk,
        files: OpenFiles,
        clock: Clock,
        settings: StorageSettings,
        registry: Registry,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self.journal = journal
        self.read_only: StoreError | None = None
        self.full = False
        """Publishing is refused for want of space; see `set_full`."""
        self.closed = False
        self.congested = False
        self.unindexed: dict[Log, None] = {}
        """Logs with entries that are not in their index files."""
        self.dirty: dict[Log, None] = {}
        """Logs whose files changed since the last checkpoint took stock."""
        self.make_room: Callable[[], Awaitable[None]] | None = None
        """Waits for a checkpoint: the journal is at its bound."""
        self.committed: Callable[[], None] | None = None
        """Called after each commit: a checkpoint may be due."""

        self.counts = CommitCounts()
        self.direct = DirectWrites(disk, files, clock, in_thread, self.when_idle, self.poison)
        self._disk = disk
        self._files = files
        self._clock = clock
        self._settings = settings
        self._registry = registry
        self._in_thread = in_thread
        self._limiter = trio.CapacityLimiter(1)
        self._rounds: list[Round] = []
        self._filling_since = 0.0  # monotonic: what came by then had to wait for a commit under way
        self._busy = False
        self._running = False
        self._wake = trio.Event()
        self._sync_by = math.inf  # monotonic: when written batches must be synced
        self._idle: list[Callable[[], None]] = []
        self._uncongested: list[Callable[[], None]] = []

    # -- filling rounds

    def begin(self, log: Log, size: int, reserved: bool) -> Run:
        """The run to which `size` bytes of `log` are added next. Raises what `Log.append` raises."""
        self._require_writable(log, reserved)
        run = self._round(size).run_of(log, mode_of(log))
        if not self.full:  # else each append must ask whether it may use the reserve
            log.run = run
        return run

    def append_all(
        self, parts: Sequence[tuple[Log, bytes, int]], reserved: bool, *, journaled: bool = False
    ) -> tuple[list[int], Ticket]:
        """Add to several logs, all or nothing, in the strictest of their modes. `journaled`: together with a
        change of the catalog that was added just now."""
        for log, _, _ in parts:
            self._require_writable(log, reserved)
        mode = min(mode_of(log) for log, _, _ in parts)
        several = journaled or len({log for log, _, _ in parts}) > 1
        if several and any(log.direct for log, _, _ in parts):
            # After a power cut a log of mode `none` counts as far as its index goes, and the batch may be
            # lost: half of the change would be there. So it is in the journal and synced before any of it is
            # shown.
            mode = Mode.SYNCED
        round_ = self._round(Round.size_of(parts))
        offsets = []
        for log, records, count in parts:
            if log.direct and mode is not Mode.DIRECT:
                self._journal_queued(log)
            run = round_.run_of(log, mode)
            run.chunks.append(records)
            run.counts.append(count)
            round_.room -= len(records)
            offsets.append(log.end)
            log.end += len(records)
        ticket = round_.ticket(mode)
        for (log, records, _), offset in zip(parts, offsets, strict=True):
            if log.fold is not None:  # which may append more, and so end the round
                log.fold(offset, records)
        return offsets, ticket

    def add(self, change: Change, mode: Mode, beside: Sequence[tuple[Log, bytes, int]] = ()) -> Ticket:
        """Add a change of the catalog, and keep room for `beside`. Raises StoreReadOnly, StoreClosed."""
        self._require_open()
        if change.kind is Kind.FIRST or change.kind is Kind.MODE:
            self._journal_queued(change.log)
        round_ = self._round(len(change.body) + ENTRY_HEADER_BYTES + Round.size_of(beside))
        round_.add(change)
        return round_.ticket(mode)

    def drop_below(self, log: Log, offset: int) -> Ticket:
        self._require_writable(log, reserved=True)
        if not log.first <= offset <= log.end:
            raise ValueError(f"{offset} is not between {log.first} and {log.end}")
        change = Change(Kind.FIRST, log, offset, before=log.first)
        ticket = self.add(change, Mode.SYNCED)
        log.first = offset
        return ticket

    def set_full(self, full: bool) -> None:
        """Whether publishing must stop: what is not marked as reserved is refused with StoreFull."""
        if full and not self.full:
            for round_ in self._rounds:
                for log in round_.runs:
                    log.run = None
        self.full = full

    @property
    def pending_bytes(self) -> int:
        return sum(round_.bytes for round_ in self._rounds)

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        """Call it once, when less waits for the disk; at once if that is so."""
        if self.congested:
            self._uncongested.append(callback)
        else:
            callback()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call it between two commits: now, or when the one under way has ended."""
        if self._busy:
            self._idle.append(callback)
        else:
            callback()

    def _require_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store is closed")
        if self.read_only is not None:
            raise StoreReadOnly(str(self.read_only))

    def _require_writable(self, log: Log, reserved: bool) -> None:
        self._require_open()
        if log.deleted:
            raise LogDeleted(f"{log.namespace}/{log.name} was deleted")
        if self.full and not reserved:
            raise StoreFull("the file system is short of space")

    def _round(self, size: int) -> Round:
        """The round that is being filled, with room for `size` bytes."""
        rounds = self._rounds
        need = size + ENTRY_HEADER_BYTES
        if rounds:
            if rounds[-1].room >= need:
                return rounds[-1]
            rounds[-1].seal()
            if awaited_bytes(self._rounds) + need > self._settings.pending_bytes_max:
                self.congested = True
        else:
            self._filling_since = self._clock.monotonic()
        rounds.append(Round(need))
        return rounds[-1]

    def _journal_queued(self, log: Log) -> None:
        """Something about the log will be in the journal, so what is before it must not come later."""
        for round_ in self._rounds:
            run = round_.runs.get(log)
            if run is not None:
                run.journaled = True

    # -- committing

    def commit_pending(self) -> None:
        """Have everything that was appended committed: at once if that is quick, else soon."""
        if not self._rounds or self._busy:
            return
        if not self._running:
            while self._rounds and not self._busy:
                self._commit_here()
        elif self._is_quick():
            self._commit_here()
            if self._rounds:  # appended by those whom this commit answered
                self._wake.set()
        else:
            self._wake.set()

    def sync_written(self) -> None:
        """Sync what modes `interval` and `none` left unsynced, here and now. Errors poison."""
        if self.read_only is None:
            try:
                self.journal.sync()
            except PoisonError as error:
                self.poison(error)
        self._sync_by = math.inf

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. What has begun is finished: nobody could tell what half a commit did."""
        self._running = True
        task_status.started()
        try:
            while True:
                if self._rounds:
                    if self._journal_is_full() and self.make_room is not None:
                        await self.make_room()
                    commit = self._take()
                    commit.aside = True
                    try:
                        with trio.CancelScope(shield=True):  # a thread that writes cannot be called back
                            await self._in_thread(commit.run, limiter=self._limiter)
                    except Exception as error:
                        self._crashed(commit, error)
                    self._finish(commit)
                elif (left := self._sync_by - self._clock.monotonic()) <= 0:
                    await self._sync_in_thread()
                else:
                    with trio.move_on_after(left):
                        await self._wake.wait()
                    self._wake = trio.Event()
                await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        finally:
            self._running = False

    def _is_quick(self) -> bool:
        """Whether a commit here and now costs less than handing it to a thread."""
        settings = self._settings
        if len(self._rounds) > 1:
            return False
        round_ = self._rounds[0]
        size = round_.bytes
        filling = self._clock.monotonic() - self._filling_since
        return (
            (not round_.sync or settings.syncs_inline(self.counts.sync_seconds, filling))
            and size <= settings.inline_most(round_.background)
            and len(round_.runs) <= _INLINE_LOGS_MAX
            and (self.journal.fits(size) or self.journal.spare is not None)
        )

    def _journal_is_full(self) -> bool:
        """Whether the next batch has no place until a checkpoint frees a segment."""
        journal = self.journal
        size = min(self._rounds[0].bytes, BATCH_PAYLOAD_MAX)
        return (
            not journal.fits(size)
            and journal.spare is None
            and journal.disk_bytes + journal.segment_bytes > journal.bytes_max
        )

    def _commit_here(self) -> None:
        commit = self._take()
        try:
            commit.run()
        except Exception as error:
            self._crashed(commit, error)
        self.counts.inline_commits += 1
        self._finish(commit)

    def _crashed(self, commit: Commit, error: Exception) -> PoisonError:
        """A bug; nobody can tell what it left on the disk."""
        logger.error("a commit crashed", exc_info=error)
        commit.poison = poison = PoisonError("a commit crashed")
        poison.__cause__ = error
        commit.good = 0
        return poison

    async def _sync_in_thread(self) -> None:
        self._busy = True
        began = self._clock.monotonic()
        self._sync_by = math.inf
        try:
            with trio.CancelScope(shield=True):
                await self._in_thread(self.journal.sync, limiter=self._limiter)
        except PoisonError as error:
            self._busy = False
            self.poison(error)
        else:
            self.counts.synced(self._clock.monotonic() - began)
            self._busy = False
        self._rest()

    def _take(self) -> Commit:
        """All that has gathered, as one commit: its logs are busy, its files pinned, until `_finish`."""
        rounds, self._rounds = self._rounds, []
        self._busy = True
        works: dict[Log, Work] = {}
        journaled: set[Log] = set()
        direct_dirty = False
        for round_ in rounds:
            round_.seal()
            for log, run in round_.runs.items():
                work = works.get(log)
                if work is None:
                    work = works[log] = self._work(log)
                    direct_dirty |= log.direct_dirty
                if log.unapplied or log in journaled:
                    # Bytes before it are in the journal, and if the file does not take them, only there: what
                    # goes around the journal would lie behind a hole.
                    run.journaled = True
                if run.journaled:
                    journaled.add(log)
                elif not work.index_pinned:
                    work.mean_direct(self._files.pin(log.index_file))
            for change in round_.changes:
                if change.kind is Kind.FIRST and change.log not in works:
                    works[change.log] = self._work(change.log)
                    direct_dirty |= change.log.direct_dirty
        return Commit(
            rounds,
            works,
            self.journal,
            self._disk,
            self._files,
            self._clock,
            now_ms=self._clock.wall_ms(),
            room=self._files.room,
            sync_direct_first=direct_dirty,
        )

    def _work(self, log: Log) -> Work:
        log.busy = True
        return Work(log, self._files.pin(log.file))

    # -- the outcome

    def _finish(self, commit: Commit) -> None:
        """Show what came of a commit. A bug in that must keep nobody waiting, nor the end of the store."""
        try:
            self._show_outcome(commit)
        except Exception as error:
            poison = self._crashed(commit, error)
            self._busy = False
            self.poison(poison)
            self._take_back(dict.fromkeys(log for round_ in commit.rounds for log in round_.runs))
            for round_ in commit.rounds:
                round_.fail(self.read_only)
            self._rest()

    def _show_outcome(self, commit: Commit) -> None:
        """In this order: who waits for a ticket finds everything else in place."""
        for work in commit.works.values():
            work.give_back(self._files)
        good = commit.rounds if commit.good == len(commit.rounds) else commit.rounds[: commit.good]
        self._count(commit, good)
        failure = commit.error or commit.direct_error  # for a poison there is `read_only`
        error = None if failure is None else refusal(failure)
        direct_failed = commit.direct_error is not None
        moved = self._advance(commit, good, direct_failed)
        for round_ in good:
            for change in round_.changes:
                self._registry.changed(change)
        self._show(moved)
        direct_error = refusal(commit.direct_error) if direct_failed else None
        for round_ in good:
            round_.resolve(direct_error)
        if direct_failed:
            self._take_back(log for log, work in commit.works.items() if work.direct_meant)
        if commit.poison is not None:
            self._set_read_only(commit.poison)
        if self.read_only is not None or error is not None:
            self._fail(commit.rounds[commit.good :], self.read_only or error)
        for round_ in commit.rounds:
            round_.let_go()
        self._filling_since = self._clock.monotonic()
        if self.committed is not None:
            self.committed()
        if self.congested and awaited_bytes(self._rounds) <= self._settings.pending_bytes_max // 2:
            self._end_congestion()
        self._busy = False
        if self._running and self._sync_by < math.inf:
            self._wake.set()
        self._rest()

    def _show(self, moved: Iterable[Log]) -> None:
        """Tell those who watch that these logs have something new."""
        for log in moved:
            if log.advanced is not None:
                call(log.advanced, log)
            if log.watchers:
                for watcher in tuple(log.watchers):
                    call(watcher, log)

    def _end_congestion(self) -> None:
        self.congested = False
        callbacks, self._uncongested = self._uncongested, []
        for callback in callbacks:
            call(callback)

    def _count(self, commit: Commit, good: list[Round]) -> None:
        self.counts.commits += 1
        if commit.synced:
            self.counts.synced(commit.sync_seconds)
            self._sync_by = math.inf
        else:
            now = self._clock.monotonic()
            if self.journal.unsynced:
                for round_ in good:
                    self._sync_by = min(self._sync_by, now + round_.interval_seconds)
        for round_ in good:
            self.counts.batch(round_.bytes)

    def _advance(self, commit: Commit, good: list[Round], direct_failed: bool) -> dict[Log, None]:
        """Show what is durable now; returns the logs that have something new."""
        moved: dict[Log, None] = {}
        now = self._clock.monotonic()
        for log in commit.direct_synced:
            log.direct_dirty = False
        for round_ in good:
            for log, run in round_.runs.items():
                if not run.journaled and direct_failed:
                    continue
                log.visible = run.end
                self.counts.records += sum(run.counts)
                if not run.journaled:
                    self.direct.written(log, run.end - run.offset, now)
                if log.watchers and run.end - run.offset <= _RECENT_BYTES_MAX:
                    self._registry.remember(log, run.offset, run.chunks)
                moved[log] = None
        for log in moved:
            work = commit.works[log]
            work.show(now)
            self.unindexed[log] = None
            self.dirty[log] = None
        return moved

    def poison(self, error: PoisonError) -> None:
        """Final: nothing that waits is acknowledged, nothing more is accepted; reads go on."""
        self._set_read_only(error)
        if not self._busy:  # else the commit under way fails what waits, when it has ended
            self._fail([], self.read_only)

    def _set_read_only(self, error: PoisonError) -> None:
        if self.read_only is None:
            text = f"{error}: {describe(error.__cause__)}" if error.__cause__ is not None else str(error)
            self.read_only = StoreReadOnly(f"read-only until a restart: {text}")
            logger.critical("the store is read-only until a restart", reason=text)
            for round_ in self._rounds:
                round_.seal()  # so that appends come by, and are refused
            if self._sync_by < math.inf or self.direct.due:
                logger.critical("acknowledged since the last sync, and possibly lost", modes="interval")

    def _fail(self, rounds: list[Round], error: StoreError | None) -> None:
        """Take back these rounds and everything behind them."""
        assert error is not None
        failed = rounds + self._rounds
        self._rounds = []
        for round_ in failed:
            round_.seal()
        for round_ in reversed(failed):
            for change in reversed(round_.changes):
                self._registry.undone(change)
        self._take_back(dict.fromkeys(log for round_ in failed for log in round_.runs))
        for round_ in failed:
            round_.fail(error)

    def _take_back(self, logs: Iterable[Log]) -> None:
        for log in logs:
            log.end = log.visible
            if log.rolled_back is not None:
                call(log.rolled_back, log)

    def _rest(self) -> None:
        """Between two commits."""
        while self._idle and not self._busy:
            self._idle.pop(0)()

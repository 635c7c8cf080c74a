"""The store: its parts, and what protocols call (ARCHITECTURE.md; STORAGE.md for the bytes)."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import structlog
import trio

from shared.budget import Account
from shared.errors import StoreClosed, StoreError, StoreReadOnly
from shared.metrics import Histogram, current, total
from shared.storage import reserve_file
from shared.storage.checkpoint import Checkpointer
from shared.storage.committer import Committer
from shared.storage.disk import Clock, Disk
from shared.storage.file_names import FileNames
from shared.storage.files import OpenFiles, out_of_space
from shared.storage.following import Follower
from shared.storage.format import SECTOR
from shared.storage.inventory import Inventory, LogSnapshot, Namespace, log_snapshot
from shared.storage.journal import Journal, PoisonError
from shared.storage.lock import FolderLock
from shared.storage.log import Log, LogAppend, Ticket
from shared.storage.log_writer import LogWriter
from shared.storage.os_disk import OsDisk, SystemClock
from shared.storage.reading import Reader, ReadRemote
from shared.storage.recovery import Recovered, recover
from shared.storage.reserve_file import ReserveFile
from shared.storage.retention import RetentionKeeper
from shared.storage.scrub import Scrub
from shared.storage.settings import Durability, Retention, StorageSettings
from shared.storage.shipping import Shipping, Ships
from shared.storage.threads import ReaderThreads, Threads
from shared.storage.watch import FolderWatch

__all__ = ["Durability", "Log", "LogAppend", "Namespace", "Retention", "Store", "StoreStatistics", "Ticket"]

logger = structlog.stdlib.get_logger("brokers.storage")

_SEGMENTS_LEAST = 4
_SEGMENT_BYTES_LEAST = 64 << 10
"""On a small file system segments are shorter, so that four fit, but never shorter than this."""

_RESERVE_SEGMENTS = 2
"""A start makes one segment; the other is for what it replays, and for acknowledgements after it."""

InThread = Callable[..., Awaitable[Any]]
"""`trio.to_thread.run_sync`, or something that takes the same arguments."""


@attrs.frozen
class StoreStatistics:
    """The store in numbers, since it was opened and now. Fields with a text are metrics, `store_<field>`."""

    batch_bytes_max: int
    recovered_batches: int
    torn_bytes: int
    journal_damages: int
    commits: int = total("Batches committed.")
    inline_commits: int = total("Of these, made without a thread.")
    records: int = total("Records appended.")
    bytes: int = total("Bytes appended.")
    journal_batches: int = total("Batches written to the journal.")
    journal_syncs: int = total("Syncs of the journal.")
    checkpoints: int = total("Checkpoints made.")
    cold_reads: int = total("Reads that had to wait for the disk.")
    scrubbed_bytes: int = total("Bytes read by the scrub.")
    retained_away_bytes: int = total("Bytes that retention gave back.")
    left_to_bucket_bytes: int = total("Bytes given back since the bucket has them: read there from now on.")
    logs: int = current("Logs that exist.")
    journal_bytes: int = current("Size of the journal on disk.")
    pending_bytes: int = current("Bytes that wait for the disk.")
    unapplied_logs: int = current("Logs whose own file could not be written; they are served from memory.")
    restored_files: int = current("Files of logs written anew: somebody had removed or replaced them.")
    open_files: int = current("Handles of logs kept open.")
    free_bytes: int = current("Free on the file system of the data folder.")
    scarce: bool = current("1: less than twice the space is free at which publishing stops.")
    full: bool = current("1: publishing has stopped for want of space.")
    read_only: bool = current("1: a sync failed or files were removed, nothing more is written.")
    damaged_ranges: int = current("Places found damaged since the start.")
    sync_seconds_mean: float = current("Mean time of a sync.")
    sync_seconds_median: float = current("Median time of the last 1000 syncs.")
    sync_seconds_p99: float = current("99 of 100 of these took no longer.")
    sync_seconds_last: float = current("Time of the last sync.")
    retention_paused: bool = current("1: the wall clock jumped, retention by age waits.")
    recovery_seconds: float = current("Time that the start took to recover.")


class Store:
    """An open data folder, of which one process is the owner. `run` must be running for all but the simplest
    uses.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        settings: StorageSettings,
        in_thread: InThread,
        recovered: Recovered,
        journal: Journal,
        lock: FolderLock | None,
        ships: Ships | None = None,
    ) -> None:
        self.folder: Path | None = None
        """The folder's path, for other files in it; None for a simulated disk."""
        self.clock = clock
        """By which records have their times."""
        self._disk = disk
        self._in_thread = in_thread
        self._lock = lock
        self._recovered = recovered
        self._journal = journal
        self._reader_threads = ReaderThreads(in_thread, settings.reader_threads)
        zero_copy = isinstance(disk, OsDisk)
        self._files = files = OpenFiles(
            disk, settings.open_files_max, recovered.in_files, self._reader_threads
        )
        self._reader = Reader(disk, files, self._reader_threads, in_thread, settings.cache_bytes, zero_copy)
        self._inventory = Inventory(disk, files, clock, recovered.journal_id, recovered.next_log_id)
        inventory = self._inventory
        self._committer = committer = Committer(
            journal, disk, files, clock, settings, inventory.changed, inventory.undone, in_thread
        )
        # What protocols call here is said there.
        self.commit_pending = committer.commit_pending
        self.append_all = committer.append_all
        self.together = committer.together
        self.when_uncongested = committer.when_uncongested
        self._reader_threads.commit_pending = committer.commit_pending
        self.shipping: Shipping | None = None
        """What a shipper asks; None where nothing is shipped."""
        if ships is not None:
            self._inventory.acks_shipped = ships.acks
            self.shipping = committer.shipping = Shipping(
                journal,
                disk,
                files,
                self._inventory.logs,
                in_thread,
                committer.sync_soon,
                lambda: committer.closed or committer.read_only is not None,
                recovered.end_lsn,
                recovered.next_lsn,
            )
        self._inventory.attach(self._committer, self._reader, recovered.logs)
        self._inventory.folds_case = _folds_case(disk)
        self._log_writer = LogWriter(committer)
        self._checkpointer = Checkpointer(committer, self._log_writer, inventory)
        self._names = FileNames(committer, self._log_writer, self._checkpointer)
        reserve = ReserveFile(disk, _RESERVE_SEGMENTS * journal.segment_bytes, in_thread)
        self._watch = FolderWatch(committer, lock, self._names, reserve)
        self.retention = RetentionKeeper(committer, inventory, self._reader, recovered.written_ms)
        if self.shipping is not None:
            self.retention.may_punch = self.shipping.may_punch
        self._scrub = Scrub(
            self._inventory,
            self._reader,
            disk,
            files,
            committer.tails,
            settings.scrub_bytes_per_second,
            in_thread,
        )

    @classmethod
    async def open(
        cls,
        folder: Path,
        settings: StorageSettings | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        in_thread: InThread | None = None,
        ships: Ships | None = None,
    ) -> "Store":
        """Lock and recover the folder, creating it if needed. `disk` replaces the folder's files, `in_thread`
        threads. `ships`: the journal is shipped.

        Raises StoreInUse, StoreFormat, OSError.
        """
        settings = settings or StorageSettings()
        clock = clock or SystemClock()
        in_thread = in_thread or Threads()
        lock: FolderLock | None = None
        own = disk is None
        if disk is None:
            disk = OsDisk(folder)
        try:
            if own:
                lock = FolderLock.take(folder)
            recovered, journal = await in_thread(_start_anywhere, disk, clock, settings, ships)
            store = cls(disk, clock, settings, in_thread, recovered, journal, lock, ships)
            store.folder = folder if own else None
            return store
        except BaseException:
            if lock is not None:
                lock.release()
            if own and isinstance(disk, OsDisk):
                disk.release()
            raise

    # -- what protocols use

    def namespace(
        self,
        name: str,
        mode: Durability,
        *,
        plain_names: bool = False,
        retention: Retention | None = None,
    ) -> Namespace:
        """Get or make a namespace. `name`: lower-case letters, digits, `-`, `_` and dots.

        `plain_names`: log files are named like their logs, whose names must then be valid file names. `mode`
        and `retention` are defaults for new logs; existing logs keep their mode.
        """
        return self._inventory.namespace(name, mode, plain_names, retention)

    def has_log(self, namespace: str, name: str) -> bool:
        """Whether there is such a log. Unlike `namespace` this makes nothing."""
        return self._inventory.has_log(namespace, name)

    def charge_to(self, account: Account) -> None:
        """Charge the memory of records that wait for the disk or for their logs' files to `account`."""
        self._committer.tails.account = account

    def reserve_descriptors(self, connections: int) -> None:
        """`connections` are open in this process: adjust the number of files that stay open."""
        self._files.reserve_descriptors(connections)

    async def wait(self, ticket: Ticket | None) -> None:
        """Commit, and wait until the ticket is done. Raises its error. None: nothing waits for the disk."""
        if ticket is None:
            return
        if not ticket.done:
            event = trio.Event()
            ticket.when_done(lambda _: event.set())
            self._committer.commit_pending()
            await event.wait()
        if ticket.error is not None:
            raise type(ticket.error)(str(ticket.error)) from ticket.error

    @contextmanager
    def reading_on_loop(self) -> Iterator[None]:
        """Reads in this context wait for the disk on the loop: for a start, while nobody is served. A thread
        costs more than most of them. A start with 5,000 durable AMQP queues takes 1.7 s of processor so, and
        3.9 s with threads.
        """
        self._reader_threads.on_loop = True
        try:
            yield
        finally:
            self._reader_threads.on_loop = False

    @property
    def read_only(self) -> StoreError | None:
        """Why nothing can be written here; None while the store is writable."""
        return self._committer.read_only or self._committer.refuses

    @property
    def follows(self) -> bool:
        """Whether it is written by `follow` alone, and well."""
        return self._committer.refuses is not None and self._committer.read_only is None

    def follow(self, why: StoreError) -> Follower:
        """Follow another store: from now on the returned one alone writes, and `why` is told to others."""
        return Follower(self._committer, self._inventory, why)

    def make_read_only(self, reason: str, advice: str) -> None:
        """Accept nothing more, for a reason that lies outside of the folder."""
        self._committer.poison(PoisonError(reason, advice))

    @property
    def full(self) -> bool:
        """Publishing is refused because space is short."""
        return self._committer.full

    @property
    def volume_bytes(self) -> int:
        """The size of the data folder's file system, as it last told, once a second; 0: not yet."""
        return self._watch.total_bytes

    @property
    def scarce(self) -> bool:
        """Space is short: optional data should not be written. Publishing stops much later."""
        return self._watch.scarce

    @property
    def over_budget(self) -> bool:
        """Memory is used up: optional data should not be written, as it would wait in memory."""
        return self._committer.tails.account.over

    @property
    def congested(self) -> bool:
        """Whether so much waits for the disk that sessions should stop reading; see `when_uncongested`."""
        return self._committer.congested

    def read_remotely(self, read: ReadRemote) -> None:
        """What is in the bucket only is read by `read`, a method of whoever ships or follows."""
        self._reader.read_remote = read

    def in_bucket_only(self) -> list[str]:
        """The logs that have records which this disk does not have."""
        return [log.name for log in self._inventory.all_logs() if log.local > log.first]

    # -- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """All background work, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._reader_threads.nursery = nursery
            self._committer.make_room = self._checkpointer.make_room
            self._committer.write_tails = self._log_writer.make_room
            await nursery.start(self._committer.run)
            nursery.start_soon(self._checkpointer.run)
            nursery.start_soon(self._log_writer.run)
            nursery.start_soon(self._watch.run)
            nursery.start_soon(self.retention.run)
            nursery.start_soon(self._scrub.run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._reader_threads.nursery = None
                self._committer.make_room = self._committer.write_tails = None

    async def checkpoint(self) -> bool:
        """Sync the logs' own files now; False if that must be tried again."""
        return await self._checkpointer.checkpoint()

    async def snapshot(self) -> list[LogSnapshot]:
        """Every log as of one moment, just after a checkpoint if one can be made."""
        if self._committer.read_only is None:
            await self.keep_names()
            await self.checkpoint()
        return await self._committer.between_commits(
            lambda: [log_snapshot(log) for log in self._inventory.all_logs()]
        )

    async def instant(self) -> tuple[int, list[LogSnapshot]]:
        """Every log as of one moment, and the LSN behind it: the journal has all of them below that."""
        await self.flush()
        return await self._committer.between_commits(
            lambda: (self._journal.position, [log_snapshot(log) for log in self._inventory.all_logs()])
        )

    async def flush(self) -> bool:
        """Write tails and index entries to the logs' files; False if some could not be written."""
        return await self._log_writer.flush()

    async def in_thread(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run long work that touches nothing of the store in a thread; when cancelled, the thread is
        abandoned.
        """
        return await self._in_thread(work, *arguments, abandon_on_cancel=True)

    def trusted_wall_ms(self) -> int | None:
        """The wall clock's Unix ms, for what goes by age; None: the clock was set, and nothing may go."""
        wall_ms = self.retention.watched_ms()
        return wall_ms if self.retention.paused is None else None

    async def retain(self) -> None:
        """Apply retention to every log now."""
        await self.retention.tick()

    async def close(self) -> None:
        """Commit what was appended, sync everything, release the folder. `run` must have ended.

        Raises StoreReadOnly if the last state could not be synced; the folder is released all the same.
        """
        committer = self._committer
        if committer.closed:
            return
        try:
            self._watch.look_at_files()
            committer.commit_pending()
            if committer.read_only is None:
                await self.keep_names()
            committer.closed = True  # recovery would not find appends after the last checkpoint
            committer.sync_journal()
            clean = committer.read_only is None and await self._checkpointer.checkpoint(clean=True)
            if committer.read_only is not None:
                raise StoreReadOnly(str(committer.read_only))
            if not clean:
                logger.warning(
                    "the shutdown checkpoint failed: nothing is lost, the next start replays the journal; "
                    "look at the messages before this one"
                )
        finally:
            committer.closed = True
            if self.shipping is not None:
                self.shipping.fail(StoreClosed("the store was closed before the bucket had it"))
            with trio.CancelScope(shield=True):
                await self._in_thread(self._files.let_all_go)
            self.abandon()

    async def keep_names(self) -> None:
        """Write the files anew that have lost their names, of all logs that are open."""
        logs = self._inventory.all_logs()
        await self._names.look([log for log in logs if log.file.fd >= 0 or log.index_file.fd >= 0])

    def abandon(self) -> None:
        """Release the folder as a crash would: nothing more is written. For tests, and after an error."""
        self._committer.closed = True
        self._files.close_all()
        self._journal.close()
        if isinstance(self._disk, OsDisk):
            self._disk.release()
        if self._lock is not None:
            self._lock.release()

    def statistics(self) -> StoreStatistics:
        committer, recovered = self._committer, self._recovered
        counts = committer.counts
        return StoreStatistics(
            logs=len(self._inventory.logs),
            commits=counts.commits,
            inline_commits=counts.inline_commits,
            records=counts.records,
            bytes=counts.bytes,
            batch_bytes_max=counts.batch_bytes_max,
            journal_batches=self._journal.batches,
            journal_syncs=self._journal.syncs,
            sync_seconds_last=counts.sync_seconds_last,
            sync_seconds_mean=counts.sync_times.mean,
            sync_seconds_median=counts.sync_quantile(0.5),
            sync_seconds_p99=counts.sync_quantile(0.99),
            journal_bytes=self._journal.disk_bytes + self._journal.held_bytes,
            checkpoints=self._checkpointer.checkpoints,
            pending_bytes=committer.pending_bytes,
            unapplied_logs=len(committer.tails.unwritable),
            restored_files=self._names.restored,
            open_files=len(self._files),
            free_bytes=self._watch.free_bytes,
            scarce=self._watch.scarce,
            full=committer.full,
            read_only=committer.read_only is not None,
            damaged_ranges=len(self._files.damage),
            cold_reads=self._reader.cold_reads,
            scrubbed_bytes=self._scrub.bytes,
            retained_away_bytes=self.retention.dropped_bytes,
            left_to_bucket_bytes=self.retention.left_bytes,
            retention_paused=self.retention.paused is not None,
            recovery_seconds=recovered.seconds,
            recovered_batches=recovered.batches,
            torn_bytes=recovered.torn_bytes,
            journal_damages=len(recovered.damage),
        )

    def ack_seconds(self, namespace: str) -> Histogram:
        """How long records of a namespace took until their mode's durability was reached."""
        return self._committer.counts.ack_seconds[namespace]

    @property
    def sync_times(self) -> Histogram:
        """How long syncs of the journal took."""
        return self._committer.counts.sync_times


def _start_anywhere(
    disk: Disk, clock: Clock, settings: StorageSettings, ships: Ships | None
) -> tuple[Recovered, Journal]:
    """Start, on a full volume in the space that was set aside for this."""
    try:
        return _start(disk, clock, settings, ships)
    except OSError as error:
        if not out_of_space(error) or not reserve_file.give_up(disk):
            raise
        logger.error(
            "the volume is full: the start goes on in the space that was set aside for it; publishing is "
            "refused until there is space",
            path=reserve_file.PATH,
        )
        return _start(disk, clock, settings, ships)


def _start(
    disk: Disk, clock: Clock, settings: StorageSettings, ships: Ships | None
) -> tuple[Recovered, Journal]:
    recovered = recover(disk, clock, settings.sync_all_logs)
    _, total = disk.free_bytes()
    bytes_max = int(total * settings.journal_fraction)
    segment_bytes = min(settings.segment_bytes, max(bytes_max // _SEGMENTS_LEAST, _SEGMENT_BYTES_LEAST))
    try:
        journal = Journal.start(
            disk,
            recovered.journal_id,
            recovered.next_lsn,
            segment_bytes=segment_bytes // SECTOR * SECTOR,
            bytes_max=max(bytes_max, 2 * segment_bytes),
            zero_fill=settings.zero_fill,
            free=recovered.segments,
            held_from=None if ships is None else ships.held_from(disk),
        )
    except PoisonError as error:
        raise error.__cause__ or OSError(str(error)) from error
    return recovered, journal


def _folds_case(disk: Disk) -> bool:
    try:
        disk.close(disk.open("format"))
    except FileNotFoundError:
        return False
    return True

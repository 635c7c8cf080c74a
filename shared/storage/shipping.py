"""What leaves the store for a bucket: the journal's batches, logs' bytes, and who waits until they are there.

The journal's order is what is shipped. Batches are read from the segments, behind the commits, and only what
is synced. Bytes that the journal refers to are read from their logs' files. Segments, and the space of what
unshipped batches refer to, are kept until `advance` says that they are shipped. A ticket of `Mode.SHIPPED`
waits for that, too.

A log may be deleted before what was written to it is shipped. Its file stays open meanwhile. Where that
cannot be, as after a start, the deletion goes into the same object: no object ends between what is missing
and the word that it is deleted.

Reading blocks, and is for threads; all else belongs to the trio thread.
"""

import math
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import attrs
import trio
from crc32c import crc32c

from shared.errors import StoreError
from shared.storage import catalog, format, index
from shared.storage.disk import Disk, opened, read_file, replace_file
from shared.storage.entries import quick_crc32c
from shared.storage.files import FileGone, LogFile, OpenFiles
from shared.storage.format import BATCH_HEADER_BYTES, EntryKind, IndexEntry
from shared.storage.journal import Journal, segment_path
from shared.storage.log import Log, Ticket, opaque
from shared.storage.settings import Mode

REUSED_BYTES_MAX = 16 << 20
"""More memory is not kept for the next read."""
WITH_DELETION_BYTES = 64 << 20
"""The most that is read to have a deletion beside what it made unreadable."""
_SYNC_LOOK_SECONDS = 0.005
_HEAD = struct.Struct(">4sIQ8xQQQ4xQ4x")
"""Of a batch's header: magic, CRC, LSN, time, journal id, payload length, LSN of the batch before it."""


class JournalGap(Exception):
    """The journal does not have all that is to be shipped: segments were removed, or one is damaged."""


class Referred(NamedTuple):
    """Bytes of a log's file to which a batch refers. `data`: None once they are gone."""

    lsn: int
    log_id: int
    offset: int
    length: int
    crc32c: int
    data: memoryview | None = None


class Room(NamedTuple):
    """Bytes that a reader leaves in front of the batches, and in front of what each REFERENCE names: an
    object is made where it was read."""

    batches: int = 0
    piece: int = 0


@attrs.frozen
class JournalRange:
    """Consecutive batches, as they are on disk, padding included, in `data` behind the room left for them.
    `next_lsn`: where the last one ends. `times_ms`: of the first and the last. `is_cut`: there was no space
    for more.

    Behind the batches is room for each of `referred`, and its bytes, unless they are gone.
    """

    first_lsn: int
    next_lsn: int
    batches: int
    batch_bytes: int
    times_ms: tuple[int, int]
    data: memoryview
    referred: list[Referred]
    is_cut: bool = False

    @classmethod
    def empty(cls, lsn: int, now_ms: int, room: Room) -> Self:
        """No batch, at this LSN."""
        return cls(lsn, lsn, 0, 0, (now_ms, now_ms), memoryview(bytearray(room.batches)), [])


@attrs.frozen
class Ships:
    """How a store is opened whose journal is shipped. `held_from`: what says from where on the journal of the
    last run is kept; `acks`: whether appends to a log, by namespace and name, wait for the bucket.
    """

    held_from: Callable[[Disk], int | None]
    acks: Callable[[str, str], object]


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Shipping:
    """One per store that is shipped. `shipped_lsn`: all below is in the bucket. `restorable`: what is there
    can be restored up to it; until then nobody who waits is answered.

    `end_lsn`, `start_lsn`: where the journal of the last run ends, and that of this one begins.
    """

    _journal: Journal
    _disk: Disk
    _files: OpenFiles
    _logs: dict[int, Log]
    _in_thread: Callable[..., Awaitable[Any]]
    _sync_soon: Callable[[], None]
    _stopped: Callable[[], bool]
    end_lsn: int
    start_lsn: int
    wake: Callable[[], None] = lambda: None
    """Called when somebody begins to wait."""
    filled: Callable[[], None] = lambda: None
    """Called by each commit while `object_bytes` or more of the journal are ready to be shipped."""
    object_bytes: float = math.inf
    shipped_lsn: int = 0
    restorable: bool = False
    _told_lsn: int = attrs.field(init=False)
    """Behind the newest batch whose references were told."""
    _error: StoreError | None = None
    _waiting: deque[tuple[int, Ticket]] = attrs.Factory(deque)
    _referred: deque[Referred] = attrs.Factory(deque)
    _files_referred: dict[int, tuple[LogFile, int]] = attrs.Factory(dict)
    """By log id: its file, and behind which LSN nothing refers to it."""
    _read_before: tuple[int, int] = (-1, -1)
    """Where the last read ended, and the LSN of its last batch."""
    _memory: bytearray = attrs.Factory(bytearray)
    """For the next read: to have new memory each time took more than half of what shipping costs."""

    def __attrs_post_init__(self) -> None:
        self._told_lsn = self.start_lsn

    @property
    def journal_id(self) -> int:
        return self._journal.journal_id

    @property
    def synced_lsn(self) -> int:
        """All below can be read. A thread syncs a batch before the loop is told to what that refers."""
        return min(self._journal.synced, self._told_lsn)

    @property
    def written_lsn(self) -> int:
        """All that is written is below."""
        return self._journal.position

    @property
    def unsynced(self) -> bool:
        """Whether there is something that only a sync makes ready to be shipped."""
        return self._journal.unsynced

    @property
    def waiting(self) -> int:
        """How many tickets wait for the bucket: one a batch."""
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        """Bytes of the journal that are kept only because they are not shipped."""
        return self._journal.held_bytes

    def frees_segment(self, kept_from: int) -> bool:
        """Whether the journal may let a segment go, which is kept while it is from `kept_from` on."""
        return any(kept_from < end <= self.shipped_lsn for end in self._journal.ends)

    # -- calls of the committer

    def refers(self, referred: Iterable[Referred]) -> None:
        """A commit is over: it wrote these bytes to logs' files alone."""
        for each in referred if self._error is None else ():
            self._referred.append(each)
            if (log := self._logs.get(each.log_id)) is not None:
                log.file.wanted = True
                self._files_referred[each.log_id] = log.file, each.lsn
        self._told_lsn = self._journal.position
        if self.synced_lsn - self.shipped_lsn >= self.object_bytes:
            self.filled()

    def take(self, tickets: dict[Mode, Ticket]) -> None:
        """A batch is durable, and the journal at its end or behind it: keep its ticket that waits for the
        bucket.
        """
        ticket = tickets.pop(Mode.SHIPPED, None)
        if ticket is None:
            return
        if self._error is not None:
            ticket.resolve(self._error)
        else:
            self._waiting.append((self._journal.position, ticket))
            self.wake()

    def may_punch(self, log: Log, offset: int) -> bool:
        """Whether space of a log below `offset` may be given back: nothing unshipped refers to it."""
        if self.shipped_lsn < self.end_lsn:  # what the last run referred to is not known here
            return self._journal.held_from is None
        return not any(each.log_id == log.id and each.offset < offset for each in self._referred)

    # -- calls of the shipper

    def advance(self, lsn: int, *, restorable: bool) -> None:
        """All below `lsn` is in the bucket: answer who waits for that."""
        self.shipped_lsn = lsn
        self.restorable = restorable
        while self._referred and self._referred[0].lsn < lsn:
            log_id = self._referred.popleft().log_id
            file, last_lsn = self._files_referred.get(log_id, (None, lsn))
            if file is not None and last_lsn < lsn:
                del self._files_referred[log_id]
                self._files.let_go(file)
        # A ticket's place may be a segment's start that has no batch yet.
        reached = self._journal.position if lsn >= self._journal.synced else lsn
        while restorable and self._waiting and self._waiting[0][0] <= reached:
            self._waiting.popleft()[1].resolve(None)

    def fail(self, error: StoreError) -> None:
        """Nothing will be shipped any more: tell who waits, and who comes."""
        self._error = error
        waiting, self._waiting = self._waiting, deque()
        for _, ticket in waiting:
            ticket.resolve(error)

    def forget_referred(self) -> None:
        """Nothing will be shipped any more, and nobody reads: what was referred to need not be kept."""
        self._referred.clear()
        for file, _ in self._files_referred.values():
            self._files.let_go(file)
        self._files_referred.clear()

    def hold(self, lsn: int) -> None:
        """Keep the journal from `lsn` on, which is not below what is kept already."""
        self._journal.held_from = lsn

    async def read(
        self,
        first_lsn: int,
        end_lsn: int,
        starts: Sequence[tuple[int, int]],
        bytes_max: int,
        room: Room = Room(),  # noqa: B008 - frozen
        then: Callable[[JournalRange], object] = lambda found: None,
    ) -> JournalRange:
        """The batches from `first_lsn` on, up to `end_lsn`: at least one, else at most `bytes_max`.

        More of them where they refer to what is deleted: then up to the deletion. `starts`: where the journal
        went on after the ends of earlier runs. Raises JournalGap, OSError.

        `read_again` takes the memory back.
        """

        async def read(end_lsn: int, bytes_max: int) -> JournalRange:
            known: dict[int, list[Referred]] = {}
            for each in self._referred:
                known.setdefault(each.lsn, []).append(each)
            memory, self._memory = self._memory, bytearray()
            reader = _JournalReader(self._disk, self._journal, bytes_max, memory, room)

            def work() -> JournalRange:
                found = self._read(reader, first_lsn, end_lsn, dict(starts), known)
                then(found)
                return found

            found: JournalRange = await self._in_thread(work)
            return found

        found = await read(end_lsn, bytes_max)
        if not any(each.data is None for each in found.referred):
            return found
        self.read_again(found)
        end_lsn = await self._reached(self._journal.position)  # a file goes when its deletion is durable
        found = await read(end_lsn, max(bytes_max, WITH_DELETION_BYTES))
        if found.is_cut:
            raise JournalGap(f"what batches from {found.first_lsn} on refer to is deleted, far behind them")
        return found

    def read_again(self, found: JournalRange) -> None:
        """Nobody looks at what was read any more, not even a thread that was left to itself."""
        memory = found.data.obj
        if isinstance(memory, bytearray) and len(memory) <= REUSED_BYTES_MAX:
            self._memory = memory

    async def _reached(self, position: int) -> int:
        """Wait until all below can be read. Returns where that ends, at least there."""
        await self.sync()
        while self.synced_lsn < position and not self._stopped():  # noqa: ASYNC110 - a thread moves it on
            await trio.sleep(_SYNC_LOOK_SECONDS)
        return self.synced_lsn

    async def sync(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Have all that is written synced, whatever the modes ask for, unless one `gives_up` meanwhile."""
        position = self._journal.position
        while self._journal.unsynced and self._journal.synced < position and not self._stopped():
            if gives_up():
                return
            self._sync_soon()
            await trio.sleep(_SYNC_LOOK_SECONDS)

    # -- in a thread

    def let_go(self, lsn: int | None) -> None:
        """Keep the journal only from `lsn` on; None: as without shipping. Raises OSError."""
        self._journal.let_go(lsn)

    def read_file(self, path: str) -> bytes | None:
        """A whole file of the data folder; None where it is not there. Raises OSError."""
        return read_file(self._disk, path)

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a file of the data folder. Raises OSError."""
        replace_file(self._disk, path, data)

    def catalog(self) -> bytes:
        """The catalog as the last checkpoint wrote it. Raises OSError."""
        return self.read_file(catalog.PATH) or b""

    def index_entries(self, log_id: int, offset: int, end: int) -> list[IndexEntry]:
        """A log's index entries from the one with `offset` on, up to `end`. Raises FileGone, OSError."""
        log = self._log(log_id)
        with self._files.opened(log.index_file) as fd:
            found = index.entries_from(self._disk, fd, log_id, offset)
        return [entry for entry in found if entry.end <= end]

    def read_log(self, log_id: int, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a log's file; zeros where it is shorter. Raises FileGone, OSError."""
        with self._files.opened(self._log(log_id).file) as fd:
            self._fill(fd, target, offset)

    def _fill(self, fd: int, target: memoryview, offset: int) -> None:
        count = self._disk.read_into(fd, target, offset)
        target[count:] = bytes(len(target) - count)

    def log_bytes(self, log_id: int, offset: int, length: int) -> bytearray:
        """Bytes of a log's file, as `read_log`."""
        data = bytearray(length)
        self.read_log(log_id, offset, memoryview(data))
        return data

    def logs(self) -> list[Log]:
        """All logs, as of now."""
        return list(self._logs.values())

    def logs_left(self) -> list[Log]:
        """Those that have left bytes to the bucket, which this disk has no longer."""
        return [log for log in self._logs.values() if log.local > log.first]

    def has_dropped(self, log_id: int, first: int) -> bool:
        """Whether a log was deleted, or records from `first` on were dropped: their bytes may be gone."""
        log = self._logs.get(log_id)
        return log is None or log.gone or log.first_kept > first

    def _log(self, log_id: int) -> Log:
        log = self._logs.get(log_id)
        if log is None:
            raise FileGone(f"log {log_id}")
        return log

    def _read(
        self,
        reader: "_JournalReader",
        first_lsn: int,
        end_lsn: int,
        starts: dict[int, int],
        known: dict[int, list[Referred]],
    ) -> JournalRange:
        if self._read_before[0] == first_lsn:
            reader.previous = self._read_before[1]
        references = partial(self._references, known)
        position, next_lsn = first_lsn, first_lsn
        while position < end_lsn and not reader.full:
            if position in starts:
                position, reader.previous = starts.pop(position), None
                continue
            limit = min([end for end in starts if end > position] + [end_lsn])
            reached = reader.read_run(position, limit, references)
            if reached > position:
                position = next_lsn = reached
            elif not reader.full:
                position = reader.segment_behind(position, limit)
        batch_bytes = reader.used - reader.room.batches
        referred = reader.pieces(self._read_referred)
        if next_lsn > first_lsn and reader.previous is not None:
            self._read_before = next_lsn, reader.previous
        return JournalRange(
            first_lsn,
            next_lsn,
            reader.batches,
            batch_bytes,
            (reader.first_ms, reader.last_ms),
            memoryview(reader.memory)[: reader.used],
            referred,
            reader.full,
        )

    def _references(self, known: dict[int, list[Referred]], lsn: int, batch: memoryview) -> list[Referred]:
        """What a batch refers to. Of this run's the committer has told, and no entry is looked at."""
        if lsn >= self.start_lsn:
            return known.get(lsn, [])
        head = format.unpack_batch(bytes(batch[:BATCH_HEADER_BYTES]))
        payload = batch[BATCH_HEADER_BYTES:]
        found = []
        if head is not None:
            payload = payload[: head.payload_bytes]
            for entry in format.unpack_entries(payload, head.entries) or ():
                if entry.kind == EntryKind.REFERENCE and (said := format.unpack_reference(payload, entry)):
                    found.append(Referred(lsn, entry.log_id, entry.offset, *said))
        return found

    def _read_referred(self, each: Referred, target: memoryview) -> bool:
        """Whether the bytes are there still; otherwise they were dropped, or their log deleted."""
        try:
            self.read_log(each.log_id, each.offset, target)
        except (FileGone, FileNotFoundError):
            file, _ = self._files_referred.get(each.log_id, (None, 0))
            if file is None or file.kept < 0:
                return False
            self._fill(file.kept, target, each.offset)
        return crc32c(target) == each.crc32c


class _JournalReader:
    """Follows batches through segments. `memory`: has what was read, up to `used`. `previous`: the LSN of the
    last batch; None where a run begins.
    """

    def __init__(self, disk: Disk, journal: Journal, bytes_max: int, memory: bytearray, room: Room) -> None:
        self.memory = memory
        self.room = room
        self.used = room.batches
        self.referred: list[Referred] = []
        self.batches = 0
        self.first_ms = 0
        self.last_ms = 0
        self.full = False
        self.previous: int | None = None
        self._disk = disk
        self._journal = journal
        self._left = bytes_max

    def _behind(self, size: int) -> memoryview:
        """Memory of that size behind what is used, which keeps what is in it."""
        end = self.used + size
        if end > len(self.memory):
            larger = bytearray(max(end, 2 * len(self.memory)))
            larger[: len(self.memory)] = self.memory
            self.memory = larger
        return memoryview(self.memory)[self.used : end]

    def pieces(self, read: Callable[[Referred, memoryview], bool]) -> list[Referred]:
        """To what batches refer, each read behind its room, unless it is gone."""
        self._behind(sum([self.room.piece + each.length for each in self.referred]))  # once, and for all
        found = []
        for each in self.referred:
            self.used += self.room.piece
            data: memoryview | None = self._behind(each.length)
            if data is not None and read(each, data):
                self.used += each.length
            else:
                data = None
            found.append(each._replace(data=data))
        return found

    @cached_property
    def _segments(self) -> list[int]:
        return self._journal.lsns  # when it is first asked for: in the thread that reads

    def segment_behind(self, position: int, limit: int) -> int:
        """The first LSN of the segment that follows. Raises JournalGap where there is none below `limit`."""
        following = bisect_right(self._segments, position)
        if following == len(self._segments) or self._segments[following] > limit:
            raise JournalGap(f"the journal has no batch at {position}, and goes on to {limit}")
        return self._segments[following]

    def read_run(
        self, position: int, limit: int, references: Callable[[int, memoryview], list[Referred]]
    ) -> int:
        """Take the batches that follow in one segment; returns where they end, which is `position` where
        there is none.
        """
        number = bisect_right(self._segments, position) - 1
        if number < 0:
            return position
        segment = self._segments[number]
        size = have = 0  # of the batch in front, where that is known; of what is read, and not taken
        try:
            with opened(self._disk, segment_path(segment)) as fd:
                while position < limit and not self.full:
                    if self.batches and max(size, BATCH_HEADER_BYTES) > self._left:
                        self.full = True
                        break
                    data = self._behind(max(size, BATCH_HEADER_BYTES, min(self._left, limit - position)))
                    have += self._disk.read_into(fd, data[have:], position - segment + have)
                    size = self._batch_bytes(data[:have], position)
                    if size > have and len(data) < size:
                        continue
                    taken = self._take(data[:have], position, references) if size else 0
                    if not taken:
                        break
                    position += taken
                    have -= taken
                    size = 0
        except FileNotFoundError:
            raise JournalGap(f"a segment of the journal is gone: {segment_path(segment)}") from None
        return position

    def _batch_bytes(self, data: memoryview, position: int) -> int:
        """The size of the batch in front; 0 where there is none."""
        if len(data) < BATCH_HEADER_BYTES:
            return 0
        magic, _, lsn, _, journal_id, payload, _ = _HEAD.unpack_from(data)
        if magic != format.BATCH_MAGIC or lsn != position or journal_id != self._journal.journal_id:
            return 0
        return format.padded(BATCH_HEADER_BYTES + payload)

    def _take(
        self, data: memoryview, position: int, references: Callable[[int, memoryview], list[Referred]]
    ) -> int:
        """Take the whole batches in front of `data`, as far as there is space; returns their bytes."""
        at = 0
        while at + BATCH_HEADER_BYTES <= len(data):
            magic, crc, lsn, time_ms, journal_id, payload, previous = _HEAD.unpack_from(data, at)
            if magic != format.BATCH_MAGIC or lsn != position + at or journal_id != self._journal.journal_id:
                break
            used = at + BATCH_HEADER_BYTES + payload
            end = at + format.padded(BATCH_HEADER_BYTES + payload)
            if end > len(data):
                break
            if quick_crc32c(data[at + 8 : used]) != crc or self.previous not in (None, previous):
                raise JournalGap(f"the journal is damaged at {lsn}")
            refers = references(lsn, data[at:end])
            size = end - at + sum([each.length for each in refers])
            if size > self._left and self.batches:
                self.full = True
                break
            self._left = max(self._left - size, 0)
            self.referred += refers
            self.first_ms = self.first_ms if self.batches else time_ms
            self.batches += 1
            self.last_ms = time_ms
            self.previous = lsn
            at = end
        self.used += at
        return at

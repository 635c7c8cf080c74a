"""The journal's writer: batches into preallocated segments, one sync for everything in them (STORAGE.md).

When a batch does not fit, the journal rolls to the spare segment, which was prepared ahead: filled with
zeros, so that a sync need not write block maps. Full segments stay in `old` until a checkpoint says that
replay will never need them, and where the journal is shipped in `held` until they are.

OSError from `write`: nothing was written, or it was taken back (the batch's header is zero), and the journal
goes on. `PoisonError`: what the disk holds is unknown, which is final. `write` and `sync` are called by one
thread at a time (the committer's), `prepare` and `release` by another (the checkpoint's), at any time.
"""

import errno
import math
import threading
from collections.abc import Sequence

import attrs

from shared.storage import format
from shared.storage.disk import Disk, write_all

FOLDER = "journal"
_ZEROS = bytes(1 << 20)


class PoisonError(Exception):
    """A sync failed, or a failed write could not be taken back; `__cause__` is the OSError.

    `advice`: what the operator should do.
    """

    def __init__(self, text: str, advice: str = "look at the disk, then restart") -> None:
        super().__init__(text)
        self.advice = advice


@attrs.define(eq=False)
class Segment:
    """A file of the journal: the bytes from `lsn` to `end`."""

    lsn: int
    size: int
    fd: int

    @property
    def end(self) -> int:
        return self.lsn + self.size

    @property
    def path(self) -> str:
        return segment_path(self.lsn)


def segment_path(lsn: int) -> str:
    return f"{FOLDER}/{lsn:020d}.wal"


def segment_lsns(disk: Disk) -> list[int]:
    """The LSNs of the segments on disk, ascending."""
    names = (name for name in disk.names(FOLDER) if name.endswith(".wal"))
    return sorted(int(name[:-4]) for name in names if len(name) == 24 and name[:-4].isdigit())


@attrs.define(eq=False)
class Journal:
    """The journal of one data folder. `position`: where the next batch goes, unless it does not fit.

    `room`: the largest payload that fits into the current segment. `synced`: all below it is known to be on
    disk. `bytes_max`: bound on all segments together; a roll beyond it is ENOSPC.
    """

    disk: Disk
    journal_id: int
    segment_bytes: int
    bytes_max: int
    zero_fill: bool
    current: Segment
    position: int
    synced: int
    previous: int | None = None
    spare: Segment | None = None
    old: list[Segment] = attrs.Factory(list)
    held_from: int | None = None
    """From here on segments are kept though replay does not need them: they are to be shipped."""
    held: list[Segment] = attrs.Factory(list)
    """Segments that are kept for that alone. They are closed, and no bound counts them."""
    next_spare: Segment | None = None
    """A segment that nobody needs, which becomes the spare when that is used: cheaper than a new one."""
    batches: int = 0
    syncs: int = 0
    unsynced: bool = False
    """Something was written since the last sync."""
    room: int = attrs.field(init=False)
    _ready: threading.Lock = attrs.Factory(threading.Lock)

    def __attrs_post_init__(self) -> None:
        self._measure_room()

    @classmethod
    def start(
        cls,
        disk: Disk,
        journal_id: int,
        lsn: int,
        *,
        segment_bytes: int,
        bytes_max: int,
        zero_fill: bool = True,
        free: Sequence[tuple[int, int]] = (),
        held_from: int | None = None,
    ) -> "Journal":
        """Begin at `lsn`, above every segment on disk. `free`: segments, (lsn, length), to be reused or
        removed, but for those with an LSN from `held_from` on.

        Raises OSError and PoisonError.
        """
        disk.make_folder(FOLDER)
        held: list[Segment] = []
        if held_from is not None:
            held = [Segment(old_lsn, size, -1) for old_lsn, size in free if old_lsn + size > held_from]
            free = [(old_lsn, size) for old_lsn, size in free if old_lsn + size <= held_from]
        ready: list[Segment] = []
        whole = [old_lsn for old_lsn, size in free if size == segment_bytes][:2]
        for old_lsn, _ in free:
            if old_lsn not in whole:
                disk.unlink(segment_path(old_lsn))  # first: an empty file may have a name that is used below
        for old_lsn in whole:
            segment = Segment(lsn + len(ready) * segment_bytes, segment_bytes, -1)
            disk.rename(segment_path(old_lsn), segment.path)
            segment.fd = disk.open(segment.path)
            ready.append(segment)
        if ready:
            disk.sync_folder(FOLDER)
        else:
            ready.append(_make(disk, lsn, segment_bytes, zero_fill))
        spare = ready[1] if len(ready) > 1 else None
        return cls(
            disk,
            journal_id,
            segment_bytes,
            bytes_max,
            zero_fill,
            ready[0],
            lsn,
            lsn,
            spare=spare,
            held_from=held_from,
            held=held,
        )

    @property
    def disk_bytes(self) -> int:
        """Bytes of all segments on disk."""
        ahead = (self.spare, self.next_spare)
        return self.current.size + sum(s.size for s in (*self.old, *ahead) if s is not None)

    @property
    def held_bytes(self) -> int:
        """Bytes of the segments that are kept only because they are not shipped."""
        return sum([segment.size for segment in self.held])

    @property
    def lsns(self) -> list[int]:
        """The LSNs of the segments that have batches, ascending. Waits for a segment that is prepared."""
        with self._ready:
            return [segment.lsn for segment in (*self.held, *self.old, self.current)]

    @property
    def ends(self) -> list[int]:
        """Where segments end that are full."""
        return [segment.end for segment in (*self.held, *self.old)]

    def _measure_room(self) -> None:
        whole = (self.current.end - self.position) // format.SECTOR * format.SECTOR
        self.room = whole - format.BATCH_HEADER_BYTES

    def is_ready(self, payload_bytes: int) -> bool:
        """Whether a batch can be written without making a segment first."""
        spare = self.spare
        return payload_bytes <= self.room or (spare is not None and _batch_bytes(payload_bytes) <= spare.size)

    def fits(self, payload_bytes: int) -> bool:
        """Whether a batch can be written before a checkpoint frees a segment."""
        size = max(self.segment_bytes, _batch_bytes(payload_bytes))
        return self.is_ready(payload_bytes) or self._may_make(size)

    @property
    def needs_segment(self) -> bool:
        """Whether the next batch goes into a segment that is not there yet."""
        return self.position == self.current.end and self.spare is None

    def fit_together(self, payloads: Sequence[int]) -> bool:
        """Whether all of these batches certainly can, even if each needs a segment of its own."""
        needed = sum(self.segment_bytes + _batch_bytes(payload) for payload in payloads)
        return self.disk_bytes + needed <= self.bytes_max

    def _may_make(self, size: int) -> bool:
        """Whether there may be a segment of this size in place of the spare one."""
        others = sum(segment.size for segment in self.old)
        return not others or self.current.size + others + size <= self.bytes_max

    def write(
        self, parts: Sequence[bytes | memoryview], entries: int, payload_bytes: int, time_ms: int
    ) -> bytearray:
        """Write one batch; returns its bytes. Nothing is synced.

        Raises OSError where the journal is as it was before, and PoisonError.
        """
        if payload_bytes > self.room:
            self._roll(_batch_bytes(payload_bytes))
        lsn, segment = self.position, self.current
        previous = lsn if self.previous is None else self.previous
        batch = format.pack_batch(
            lsn, self.synced, time_ms, self.journal_id, payload_bytes, entries, previous, parts
        )
        offset = lsn - segment.lsn
        try:
            whole = memoryview(batch)
            taken = self.disk.write(segment.fd, whole, offset)
            if taken < len(batch):
                write_all(self.disk, segment.fd, whole[taken:], offset + taken)
        except OSError as error:
            try:
                write_all(self.disk, segment.fd, bytes(format.SECTOR), offset)
            except OSError:
                raise PoisonError("a failed write of the journal could not be taken back") from error
            raise
        self.previous = lsn
        self.position = lsn + len(batch)
        self.room -= len(batch)
        self.unsynced = True
        self.batches += 1
        return batch

    def sync(self, beside: Sequence[int] = ()) -> None:
        """Make everything written so far durable, and the files `beside`, to which it refers.

        Raises PoisonError.
        """
        if not self.unsynced:
            return
        position = self.position
        try:
            for fd in (*beside, self.current.fd):
                self.disk.sync_data(fd)
        except OSError as error:
            raise PoisonError("the journal could not be synced") from error
        self.syncs += 1
        self.synced = position
        self.unsynced = False

    def _roll(self, batch_bytes: int) -> None:
        """Continue in the next segment, which is longer than usual if the batch is."""
        self.sync()
        with self._ready:
            if self.spare is None:
                self._free([])
            spare, self.spare = self.spare, None
            if spare is not None and spare.size < batch_bytes:
                self.disk.close(spare.fd)
                self.disk.unlink(spare.path)
                spare = None
            if spare is None:
                size = max(self.segment_bytes, batch_bytes)
                if not self._may_make(size):
                    raise OSError(errno.ENOSPC, "the journal is full until a checkpoint ends")
                spare = _make(self.disk, self.current.end, size, zero_fill=False)
            self.old.append(self.current)
            self.current = spare
            # `synced` stays at the end of the last batch: nothing was ever written between there and here.
            self.position = spare.lsn
            self._measure_room()

    def prepare(self) -> None:
        """Prepare the spare segment, if there is none. Raises OSError."""
        with self._ready:
            self._free([])
            if self.spare is None and self.disk_bytes + self.segment_bytes <= self.bytes_max:
                self.spare = _make(self.disk, self.current.end, self.segment_bytes, self.zero_fill)

    def release(self, replay_lsn: int) -> None:
        """Replay never starts below `replay_lsn` again: reuse or remove segments below it, but for those that
        are to be shipped. Raises OSError.
        """
        with self._ready:
            free = [segment for segment in self.old if segment.end <= replay_lsn]
            self.old = [segment for segment in self.old if segment.end > replay_lsn]
            if self.held_from is not None:
                for segment in free:
                    self.disk.close(segment.fd)
                    segment.fd = -1
                self.held += free
                free = self._take_shipped(self.held_from)
            self._free(free)

    def let_go(self, lsn: int | None) -> None:
        """Keep segments from `lsn` on, for shipping, and no others; None: none are. Raises OSError."""
        with self._ready:
            self.held_from = lsn
            self._free(self._take_shipped(math.inf if lsn is None else lsn))

    def _take_shipped(self, below: float) -> list[Segment]:
        shipped = [segment for segment in self.held if segment.end <= below]
        self.held = [segment for segment in self.held if segment.end > below]
        return shipped

    def _free(self, free: list[Segment]) -> None:
        """Reuse one of these segments as the spare, keep the next one while they are shipped, remove the
        others.
        """
        if self.next_spare is not None:
            free.insert(0, self.next_spare)
            self.next_spare = None
        removed = False
        while free:
            segment = free.pop()
            whole = segment.size == self.segment_bytes
            if self.spare is None and whole:
                fd = segment.fd if segment.fd >= 0 else self.disk.open(segment.path)
                renamed = Segment(self.current.end, segment.size, fd)
                self.disk.rename(segment.path, renamed.path)
                # Sync the name first: a power cut must not undo the rename of a file that holds
                # acknowledged batches.
                self.disk.sync_folder(FOLDER)
                self.spare = renamed
                continue
            if segment.fd >= 0:
                self.disk.close(segment.fd)
                segment.fd = -1
            if whole and self.held_from is not None and self.next_spare is None:
                self.next_spare = segment
            else:
                self.disk.unlink(segment.path)
                removed = True
        if removed and self.spare is None:
            self.disk.sync_folder(FOLDER)

    def close(self) -> None:
        for segment in (self.current, self.spare, *self.old):
            if segment is not None:
                self.disk.close(segment.fd)


def _batch_bytes(payload_bytes: int) -> int:
    return format.padded(format.BATCH_HEADER_BYTES + payload_bytes)


def _make(disk: Disk, lsn: int, size: int, zero_fill: bool) -> Segment:
    """Make a segment: blocks reserved, name synced. Raises OSError and PoisonError."""
    path = segment_path(lsn)
    try:
        fd = disk.open(path, create=True, exclusive=True)
    except FileExistsError:  # left by an attempt that failed half-way
        disk.unlink(path)
        fd = disk.open(path, create=True, exclusive=True)
    try:
        disk.allocate(fd, size)
        if zero_fill:
            for offset in range(0, size, len(_ZEROS)):
                write_all(disk, fd, _ZEROS[: size - offset], offset)
        # Sync length and name now: the sync of a later batch need not include them.
        _sync_new(disk, fd)
    except BaseException:
        disk.close(fd)
        disk.unlink(path)
        raise
    return Segment(lsn, size, fd)


def _sync_new(disk: Disk, fd: int) -> None:
    try:
        disk.sync_data(fd)
        disk.sync_folder(FOLDER)
    except OSError as error:
        raise PoisonError("a new segment of the journal could not be synced") from error

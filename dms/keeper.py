"""What makes a queue durable: its log of operations, one record for each change.

Theory of operation. What changes a queue is appended to its log at once and counts when its ticket is done;
a message is shown to consumers when the log's visible end has passed it. What comes and what is acknowledged
is gathered round by round (`dms.gathering`). Messages that came are found again
at `homes`, places in the log a few dozen KiB apart; what the queue does not keep in memory is read back from
there in batches, in order, skipping what has gone. That a message was delivered, or came back, need not be
durable by itself: such notes go along with the next record, or after a moment.

A *snapshot* says where the row begins, and copies forward the few messages that are older (held, or come
back). So opening a queue reads from its last snapshot on and no more, everything below it and below the row's
begin is dropped, and no single old message pins the disk.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dms import records, runs
from dms.gathering import Acks, Gathering
from dms.messages import Letter, Out
from dms.queue import Queue
from dms.reading import Reading
from dms.records import Kept, Kind, Reason, Run
from dms.wire import Refusal, refusal_for
from shared.errors import StoreError, StoreReadOnly
from shared.storage.store import Log, Ticket

if TYPE_CHECKING:
    from dms.consuming import Consuming

HOME_BYTES = 64 << 10
"""From one known place in the log to the next."""
SNAPSHOT_BYTES = 8 << 20
"""Written, or drained, since the last snapshot, for the next: so much is read at most to open a queue."""
HOT_LEAST_BYTES = 16 << 10
"""Every queue may keep so much in memory, whatever the others do."""
NOTES_MS = 100
"""A note waits so long for something to go along with."""
NOTES_MAX = 4096
KEPT_BYTES = 1 << 20
"""Of one KEPT record."""


class _Coming:
    """Messages that wait for the disk: the log's end behind them, and where they begin."""

    __slots__ = ("bodies", "end", "first", "offset", "size")

    def __init__(self, end: int, offset: int, first: int, bodies: Sequence[bytes], size: int) -> None:
        self.end = end
        self.offset = offset
        self.first = first
        self.bodies = bodies
        self.size = size


class _Going:
    """What wait for the disk to have gone (acknowledged, moved), and how to undo it."""

    __slots__ = ("end", "undo")

    def __init__(self, end: int, undo: Callable[[], None]) -> None:
        self.end = end
        self.undo = undo


class Keeper:
    """One queue's log. `detached`: the disk has failed, and the queue goes on in memory (best-effort)."""

    def __init__(self, queue: Queue, log: Log) -> None:
        self.queue = queue
        self.broker = queue.broker
        self.log = log
        self.detached = False
        self.damaged: StoreError | None = None
        self.homes: deque[tuple[int, int]] = deque()
        """(sequence, offset of its record): where messages of the row are found, from `head` on."""
        self.cold_offset = log.end
        """Where to read on for what is not in memory."""
        self.snapshot_end = 0
        self._snapshot_floor = log.first
        """What the last snapshot drops once it is durable, though it may not be so yet."""
        self._snapshot_bytes = 0
        self._kept_bytes = 0
        self._coming: deque[_Coming] = deque()
        self._going: deque[_Going] = deque()
        self.overflow: list[tuple[Sequence[bytes], int]] = []
        """What came since the disk has failed and has to wait until what is cold before it is read back."""
        self.gathered = Gathering(self)
        self._notes: list[tuple[Kind, Reason, list[Any]]] = []
        self._newest: list[int] | None = None
        """The run of deliveries that is the newest note: first sequence, number."""
        self._notes_awaited = False
        self.reading = Reading(self)
        log.advanced = self._moved
        log.rolled_back = self._rolled_back

    # -- what the queue does

    def enqueue(self, bodies: Sequence[bytes], size: int) -> Ticket | None:
        """Messages come; None: the disk has failed, and they live in memory. Raises Refusal."""
        if isinstance(bodies[0], Letter):
            first = self.queue.tail
            appended = self.append(*self._with_notes(self.coming(bodies, first)))
            if appended is None:
                return None
            self.came(bodies, size, appended[0], first)
            return appended[1]
        try:
            return self.gathered.came(bodies, size)
        except StoreError as error:
            self._refuse_or_detach(error)
            return None

    def coming(self, bodies: Sequence[bytes], first: int) -> bytes:
        """The record that says so, to be appended now."""
        self.gathered.write()
        return self.record_of(bodies, first)

    def record_of(self, bodies: Sequence[bytes], first: int) -> bytes:
        if isinstance(bodies[0], Letter):
            kind, body = Kind.LETTERS, records.letters(bodies)  # type: ignore[arg-type]
        else:
            kind, body = Kind.ENQUEUED, runs.records(bodies)
        return self._pack(kind, len(bodies), first, body)

    def came(self, bodies: Sequence[bytes], size: int, offset: int, first: int) -> None:
        """They stand in the log from `offset` on, and wait to be seen."""
        self._coming.append(_Coming(self.log.end, offset, first, bodies, size))

    def ack(self, session: "Consuming", ids: Sequence[bytes], outs: Sequence[Out]) -> Ticket | None:
        """Messages go; None: the disk has failed, and the queue is in memory. Raises Refusal."""
        try:
            return self.gathered.acked(session, ids, outs)
        except StoreError as error:
            self._refuse_or_detach(error)
            return None

    def went(self, acks: Sequence[Acks]) -> None:
        """It stands in the log that these have gone."""

        def undo() -> None:
            for session, ids, outs in acks:
                self.queue.held_again(len(outs))
                session.connection.attempt(session.hold_again, ids, outs)

        self._going.append(_Going(self.log.end, undo))

    def gone(self, those: Sequence[tuple[int, int]], reason: str | Reason) -> Ticket | None:
        """Messages go, nobody has acknowledged them. Raises Refusal."""
        why = records.REASONS[reason] if isinstance(reason, str) else reason
        body = records.pack_runs(Run(*run) for run in those)
        record, count = self._with_notes(self._pack(Kind.GONE, len(those), 0, body, why))
        appended = self.append(record, count, reserved=True)
        return appended[1] if appended else None

    def gone_seqs(self, seqs: Sequence[int], reason: str | Reason) -> Ticket | None:
        return self.gone(records.to_runs(seqs), reason)

    def moving(self, seqs: Sequence[int], reason: str, target: str) -> tuple[bytes, int]:
        """The records that say that messages move to another queue, for `Store.append_all`."""
        self.gathered.write()
        those = records.to_runs(seqs)
        body = records.pack_runs(those) + target.encode()
        return self._with_notes(self._pack(Kind.MOVED, len(those), 0, body, records.REASONS[reason]))

    def moved(self, undo: Callable[[], None]) -> None:
        """They were appended; `undo` if that fails."""
        self._going.append(_Going(self.log.end, undo))

    def delivered(self, seq: int, count: int) -> None:
        """Note it."""
        newest = self._newest
        if newest is not None and newest[0] + newest[1] == seq:
            newest[1] += count
        else:
            entries = self._entries(Kind.DELIVERED, Reason.NONE)
            self._newest = [seq, count]
            entries.append(self._newest)

    def returned(self, seqs: Sequence[int], *, nacked: bool) -> None:
        """Note it."""
        queue = self.queue
        later = queue.mortality.later if queue.mortality is not None else {}
        entries = self._entries(Kind.RETURNED, Reason.NACKED if nacked else Reason.LOST)
        entries += [(seq, queue.back[seq][1], later.get(seq, 0)) for seq in seqs if seq in queue.back]

    def flush_notes(self) -> None:
        """Write what is noted by itself."""
        self._notes_awaited = False
        if self._notes and not self.detached:
            try:
                self.append(*self._with_notes(b"", 0), reserved=True)
            except Refusal:
                pass  # notes are not promised

    def _entries(self, kind: Kind, reason: Reason) -> list[Any]:
        """Where to note something of that kind."""
        self._newest = None
        notes = self._notes
        if not notes or notes[-1][:2] != (kind, reason) or len(notes[-1][2]) >= NOTES_MAX:
            if len(notes) >= NOTES_MAX or self.detached:
                notes.clear()
            notes.append((kind, reason, []))
            if not self._notes_awaited:
                self._notes_awaited = True
                self.broker.times.set(self.queue, self.broker.times.now_ms() + NOTES_MS)
        return notes[-1][2]

    def _with_notes(self, record: bytes, count: int = 1) -> tuple[bytes, int]:
        """A record (or `count` of them) behind those of what was noted before it."""
        notes, noted = self.take_notes()
        return notes + record, noted + count

    def take_notes(self, bytes_max: float = math.inf) -> tuple[bytes, int]:
        """Records of what is noted, to be appended now; none where they have more bytes than that."""
        if not self._notes:
            return b"", 0
        parts = []
        for kind, reason, entries in self._notes:
            if kind is Kind.DELIVERED:
                parts.append(self.runs_record(kind, entries))
            elif entries:
                parts.append(self._pack(kind, len(entries), 0, records.pack_returned(entries), reason))
        packed = b"".join(parts)
        if len(packed) > bytes_max:
            return b"", 0
        self._notes, self._newest = [], None
        return packed, len(parts)

    def runs_record(self, kind: Kind, those: Sequence[Sequence[int]]) -> bytes:
        if len(those) == 1:
            first, length = those[0]
            return records.pack_run(kind, first, length, *self.broker.times.stamp())
        return self._pack(kind, len(those), 0, records.pack_runs(those))

    def _pack(self, kind: Kind, count: int, seq: int, body: bytes, reason: int = 0) -> bytes:
        age_ms, time_ms = self.broker.times.stamp()
        return records.pack(kind, count, seq, age_ms, time_ms, body, reason)

    def append(self, data: bytes, count: int, *, reserved: bool = False) -> tuple[int, Ticket] | None:
        """Append; None: the disk has failed and the queue is detached. Raises Refusal."""
        self.gathered.write()
        try:
            return self.log.append(data, count, reserved)
        except StoreError as error:
            self._refuse_or_detach(error)
            return None

    def _refuse_or_detach(self, error: StoreError) -> None:
        """The store takes nothing: go on in memory, where that is wanted. Raises Refusal."""
        if isinstance(error, StoreReadOnly) and self.broker.best_effort:
            self.detach(error)
        else:
            raise refusal_for(error) from None

    def detach(self, error: StoreError) -> None:
        """Go on in memory."""
        self.detached = True
        self._notes, self._newest = [], None
        self.broker.goes_on_in_memory(error)

    @property
    def may_heat(self) -> bool:
        """Whether more of the queue may be kept in memory."""
        broker, queue = self.broker, self.queue
        return (
            broker.hot_bytes < broker.settings.hot_bytes
            or queue.hot_bytes + queue.back_bytes < HOT_LEAST_BYTES
        )

    # -- what the log tells

    def _moved(self, log: Log) -> None:
        """More of the log is durable, as far as its mode asks."""
        queue = self.queue
        if log.deleted or queue.deleted:
            return
        visible = log.visible
        while self._going and self._going[0].end <= visible:
            self._going.popleft()
        coming = self._coming
        if coming and coming[0].end <= visible:
            while coming and coming[0].end <= visible:
                self._show(coming.popleft())
            if queue.mortality is not None:
                queue.mortality.shown()
            if queue.waiting:
                queue.give()
        if self._snapshot_due():
            self.snapshot()

    def _show(self, come: _Coming) -> None:
        queue = self.queue
        hot_end = queue.head + len(queue.bodies)
        if hot_end == queue.end:  # nothing is cold
            if self.may_heat:
                if queue.head == queue.end:
                    self.homes.clear()
                self.found_at(come.first, come.offset)
                queue.show(come.bodies, come.size)
                return
            self.cold_offset = come.offset
            if queue.head == queue.end:
                self.homes.clear()
            self.homes.append((come.first, come.offset))
        queue.end = come.first + len(come.bodies)

    def found_at(self, first: int, offset: int) -> None:
        """Where messages of the row are, from `first` on; kept where that is far from the last."""
        if not self.homes or offset - self.homes[-1][1] >= HOME_BYTES:
            self.homes.append((first, offset))

    def _rolled_back(self, log: Log) -> None:
        """What was appended and is not visible was not written after all."""
        keep = self.broker.best_effort and self.broker.disk_failed is not None
        coming, self._coming = self._coming, deque()
        going, self._going = self._going, deque()
        if keep:
            if not self.detached:
                self.detach(self.broker.disk_failed or StoreReadOnly("the disk has failed"))
            for come in coming:
                self.queue.show(come.bodies, come.size)
        else:
            for come in reversed(coming):
                self.queue.took_back(come.first, len(come.bodies))
            for go in reversed(going):
                go.undo()
        self.snapshot_end = min(self.snapshot_end, log.end)
        self._snapshot_floor = min(self._snapshot_floor, log.first)
        if self.queue.waiting:
            self.queue.give()

    # -- snapshots

    @property
    def home(self) -> int:
        """Where the row is found: no message of it stands below. The log's end if it is empty."""
        queue, homes = self.queue, self.homes
        while len(homes) > 1 and homes[1][0] <= queue.head:
            homes.popleft()
        if queue.head < queue.end:
            return homes[0][1] if homes else self.log.first
        return self._coming[0].offset if self._coming else self.log.end

    def _snapshot_due(self) -> bool:
        if self.detached:
            return False
        least = max(SNAPSHOT_BYTES, 4 * self._kept_bytes)
        if self.log.end - self.snapshot_end >= least:
            return True
        left = self.home - max(self._snapshot_floor, self.log.first)
        return left >= least + self._snapshot_bytes  # a snapshot is no reason for another

    def snapshot(self) -> None:
        """Write one, and drop what no longer counts."""
        queue, broker = self.queue, self.broker
        times = broker.times
        now = times.now_ms()
        self.gathered.write()
        # What is noted rests on what was before it: opening begins behind the notes.
        notes, noted = self._with_notes(b"", 0)
        offset = self.log.end + len(notes)
        row_home = self.home
        if row_home == self.log.end:  # the row is empty
            row_home = offset
        parts, count = self._kept_parts(now)
        self._kept_bytes = sum(map(len, parts))
        later = queue.mortality
        state = {
            "head": queue.head,
            "tail": queue.tail,
            "home": row_home,
            "expired": later.expired if later else 0,
            "released": later.released if later and queue.options.delay_ms else 0,
            "lives": list(later.lives) if later else [],
            "delays": list(later.delays) if later else [],
        }
        parts.append(self._pack(Kind.SNAPSHOT, 1, queue.head, json.dumps(state).encode()))
        data, count = b"".join((notes, *parts)), noted + count + 1
        row = broker.row(queue, snapshot=offset)
        try:
            _, ticket = broker.store.append_all(
                [(self.log, data, count), broker.table.put_record(queue.name, row)], reserved=True
            )
        except StoreError:
            return  # it can wait
        self.snapshot_end = self.log.end
        self._snapshot_bytes = len(data)
        if row_home == offset:  # the row is empty: it will begin behind the snapshot
            row_home = self.log.end
        floor = self._snapshot_floor = min(offset, row_home)
        broker.counts.snapshots += 1

        def done(ticket: Ticket) -> None:
            if ticket.error is None:
                self._drop_below(floor)

        ticket.when_done(done)

    def _kept_parts(self, now: int) -> tuple[list[bytes], int]:
        """KEPT records of all that is older than the row."""
        queue = self.queue
        later = queue.mortality.later if queue.mortality is not None else {}
        kept = [Kept(seq, count, later.get(seq, 0), body) for seq, (body, count) in queue.back.items()]
        for session in self.broker.sessions:
            kept += [
                Kept(seq, count, 0, body)
                for owner, seq, body, count in session.held.values()
                if owner is queue
            ]
        kept.sort()
        parts: list[bytes] = []
        some: list[Kept] = []
        size = 0
        for entry in kept:
            some.append(entry)
            size += len(entry.body)
            if size >= KEPT_BYTES:
                parts.append(self._pack(Kind.KEPT, len(some), 0, records.pack_kept(some)))
                some, size = [], 0
        if some:
            parts.append(self._pack(Kind.KEPT, len(some), 0, records.pack_kept(some)))
        return parts, len(parts)

    def _drop_below(self, offset: int) -> None:
        if offset > self.log.first and not self.log.deleted:
            try:
                self.log.drop_below(offset)
            except StoreError:
                pass  # the next snapshot does it

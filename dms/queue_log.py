"""One queue's log: a record for each change, and what waits until the disk has it. It knows no queue.

How a change becomes durable. `produce` and `ack` add to the *pending records* of the batch being filled, and
return its ticket. When the store seals the batch it calls `write_pending`. That writes at most one ENQUEUED
record, the notes, and one ACKED record, however many requests there were. A record costs as much as a dozen
of its entries. Replies wait for the ticket, so a late write is never visible. All other records are appended
at once, behind the pending ones.

That a message was delivered or returned is a *note*. Notes need not be durable: they are written with the
next record, or after a moment.

A *snapshot* tells where the record of each job is, where the row begins, and which older messages of the row
there are (unacknowledged or returned); then it copies those. Opening a queue reads from where its last
snapshot began. A snapshot is written in slices, and what happens meanwhile stands between them: each record
is true where it stands, and a copy is of a message that may have left. Everything below the snapshot, the
row and the jobs is dropped.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from dms import records
from dms.cold_jobs import with_decided
from dms.job_copying import JobCopying
from dms.records import HEAD, JOB_RECORD_BYTES, RUN_BYTES, DeadLetter, Reason, RecordKind
from shared.errors import StoreError
from shared.queues.cold import place_of
from shared.queues.runs import Run, numbers_of, to_spans
from shared.queues.undoing import Undoing

if TYPE_CHECKING:
    from dms.times import Times
    from shared.storage.store import Log, LogAppend, Ticket

SNAPSHOT_BYTES = 8 << 20
"""Bytes written, or removed, between two snapshots: opening a queue reads at most so much."""
KEPT_BYTES = 64 << 10
"""Bytes of one KEPT record, which is made in one step; a longer message is alone."""
NOTES_MS = 1000
"""How long a note waits for another record. With 100 ms most deliveries of 1,000 busy queues were written
alone, each as a record and an append of its own."""
NOTES_MAX = 4096
"""How many notes of a kind are written at once: some hundred microseconds."""

_HEADS_BYTES = 3 * HEAD.size
_LENGTH_BYTES = 4

# Looking up an enum member takes as long as packing a record.
_ACKED, _DELIVERED, _NO_REASON = RecordKind.ACKED, RecordKind.DELIVERED, Reason.NONE

Arrival: TypeAlias = "tuple[int, int, int, Sequence[bytes], int, Ticket]"
"""Messages in the log that are not visible yet. The log's end behind their record, and its offset; the first
sequence; the bodies, and their bytes; the ticket. Whoever waits for their durability waits for that."""


class LoggedJobs(Protocol):
    """A queue's jobs, as its log sees them."""

    def places(self) -> Iterator[list[tuple[int, bytes]]]:
        """All jobs that are visible, in lists: sequence, and where its record is. Each as of when it is asked
        for."""

    def cold(self, seq: int) -> bytes | None:
        """A job as `dms.cold_jobs` has it; None: it has left."""

    def move(self, seq: int, before: int, place: int) -> None:
        """The record of a job was at one place, and is at another now."""

    def left_keys(self) -> Iterator[list[tuple[str, int, int]]]:
        """The keys of jobs that have left, in lists, as a SEEN record has them."""


class LogOwner(Protocol):
    """The queue, as its log sees it."""

    deleted: bool

    @property
    def jobs(self) -> LoggedJobs | None:
        """None: there was none."""

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """One commit made these messages as durable as the log's mode asks; the last one's ticket is about to
        resolve, unless it waits for the bucket.
        """

    def refused(self, arrivals: Sequence[Arrival], durable: int, leaving: Undoing) -> None:
        """The disk refused everything that is not durable: these arrivals, oldest first, but for the first so
        many, which are to be visible now; and what left."""

    def wake_by(self, age_ms: int) -> None:
        """Have `flush_notes` called at that age or earlier."""

    def row_start(self) -> int | None:
        """The offset from which the visible row is in the log; None: the row is empty."""

    def snapshot_state(self) -> Mapping[str, Any]:
        """The fields of a SNAPSHOT record, without `home`."""

    def older_than_row(self) -> Iterable[tuple[Run, int]]:
        """All messages not in the row and not gone, but for jobs: each run with the age at which it is due;
        0: now."""

    def append_snapshot(self, data: bytes, count: int, offset: int) -> Ticket:
        """Append so many records together with the table's row that names `offset`. Raises StoreError."""


class QueueLog:
    """One queue's log; see the top of this file. Whatever appends raises StoreError."""

    def __init__(
        self, log: Log, owner: LogOwner, times: Times, work: Callable[[Iterator[None]], None]
    ) -> None:
        """`work`: does long work in turns; it begins at once."""
        self.log = log
        self.work = work
        self._owner = owner
        self._times = times
        self.detached = False
        """The disk has failed and the queue is in memory: no notes, no snapshots."""
        # Lists, mostly of one: an empty deque is 760 bytes, and most queues of many are idle.
        self._arrivals: list[Arrival] = []
        self._leaving = Undoing()
        self._emptied = 0
        """The log's end behind a record by which all of the row leaves, while the disk may refuse that. Until
        then nothing more of the row is visible: so it can be undone."""

        # Pending records, for the batch being filled. `_reserved`: bytes reserved for them there.
        self._pending: LogAppend | None = None
        self._reserved = 0
        self._bodies: list[bytes] = []
        self._bodies_size = self._first = 0
        self._forms: list[bytes] = []
        self._forms_first = 0
        self._acked: list[Run] = []
        self._undo_acks: list[Callable[[], None]] = []

        self._notes: list[tuple[RecordKind, Reason, list[Any]]] = []
        self._delivered_first = self._delivered_end = 0
        """The newest note, if it is a run of deliveries: the first sequence, and that behind it; else 0."""
        self._notes_awaited = False
        self._ahead: list[int] = []
        """Messages that were taken ahead and not tried yet, in order. No record says that they have left the
        row; one of a later sequence would say that they were delivered."""

        self.snapshot_end = 0
        self._snapshot_floor = log.first
        """The offset below which the newest snapshot drops the log once it is durable. Not above
        `snapshot_end`."""
        self._snapshot_bytes = self._kept_bytes = 0
        self._snapshotting = False
        self._rollbacks = 0
        """How often the disk has refused what was appended."""
        self._copying = JobCopying(log, self)
        self._jobs_start = math.inf
        """No record of a job is below this offset."""
        log.advanced = self._advanced
        log.rolled_back = self._rolled_back

    # -- pending records

    def produce(self, bodies: Sequence[bytes], size: int, first: int) -> Ticket:
        """Messages arrive, from sequence `first` on, `size` bytes in all. No dead letters: see `arriving`."""
        ticket = self._reserve(size + _LENGTH_BYTES * len(bodies))
        if not self._bodies:
            self._first = first
        self._bodies += bodies
        self._bodies_size += size
        return ticket

    def job(self, form: bytes, seq: int) -> Ticket:
        """A job arrives. `form`: its entry without the sequence."""
        ticket = self._reserve(JOB_RECORD_BYTES + len(form))
        if not self._forms:
            self._forms_first = seq
        self._forms.append(form)
        return ticket

    def ack(self, runs: Sequence[Run], undo: Callable[[], None]) -> Ticket:
        """Acknowledged messages leave; if their record cannot be written, `undo` is called."""
        ticket = self._reserve(RUN_BYTES * len(runs), from_reserve=True)
        self._acked += runs
        self._undo_acks.append(undo)
        return ticket

    def _reserve(self, needed: int, *, from_reserve: bool = False) -> Ticket:
        """Reserve so many bytes for pending records; `from_reserve`: of the disk's, too."""
        pending = self._pending
        if pending is None or pending is not self.log.pending or needed > pending.batch.room:
            needed += _HEADS_BYTES
            # If the batch is full this seals it, which writes what is pending.
            pending = self._pending = self.log.gather(needed, self.write_pending, reserved=from_reserve)
        else:
            pending.batch.room -= needed
        self._reserved += needed
        return pending.ticket

    def write_pending(self) -> None:
        """Append the pending records, if there are any."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        batch = pending.batch
        batch.room += self._reserved
        self._reserved = 0
        bodies, forms, acked = self._bodies, self._forms, self._acked
        age_ms, time_ms = self._times.stamp()
        produced = gone = b""
        count = 0
        spans: Sequence[tuple[int, int]] = ()
        if bodies:
            produced = records.pack_enqueued(bodies, self._first, age_ms, time_ms)
            count = 1
        jobs_at = len(produced)
        if forms:
            produced += records.pack_jobs(forms, self._forms_first, age_ms, time_ms)
            count += len(forms)
        if acked:
            if self._ahead:
                numbers = numbers_of(acked)
                self._passed(numbers[-1], numbers)
            spans = to_spans(acked)
            gone = records.pack_run_record(_ACKED, spans, age_ms, time_ms)
            count += 1
        if self._delivered_end or self._notes:
            notes, noted = self._take_notes(age_ms, time_ms, batch.room - len(produced) - len(gone))
            offset = pending.add(produced + notes + gone, count + noted)
        else:
            offset = pending.add(produced + gone, count)
        end = self.log.end
        if bodies:
            arrival = end, offset, self._first, bodies, self._bodies_size, pending.ticket
            self._arrivals.append(arrival)
            self._bodies, self._bodies_size = [], 0
        if forms:
            size = len(produced) - jobs_at
            self._arrivals.append((end, offset + jobs_at, self._forms_first, forms, size, pending.ticket))
            self._forms = []
        if acked:
            for undo in self._undo_acks:
                self._leaving.add(end, undo)
            self._acked, self._undo_acks = [], []

    @property
    def newest_arrival(self) -> Ticket | None:
        """What the newest messages wait for that the disk does not have yet; None: it has all."""
        if self._bodies:
            assert self._pending is not None
            return self._pending.ticket
        return self._arrivals[-1][-1] if self._arrivals else None

    # -- records appended at once

    def arriving_jobs(self, forms: Sequence[bytes], first: int) -> bytes:
        """The records of arriving jobs, from sequence `first` on, for the caller to append now; then it calls
        `appended`."""
        self.write_pending()
        return records.pack_jobs(forms, first, *self._times.stamp())

    def scheduled(self, form: bytes, first: int, done: Mapping[str, int]) -> Ticket:
        """A job of a schedule arrives; `done`: up to when each schedule is done, by what it says."""
        job = self.arriving_jobs((form,), first)
        offset, ticket = self.append(
            job + self._pack(RecordKind.SCHEDULED, 1, 0, records.pack_scheduled(done)), 2
        )
        self.appended((form,), len(form), offset, first, ticket)
        return ticket

    def schedules_begin(self, done: Mapping[str, int]) -> Ticket:
        """The queue has these schedules from now on."""
        self.write_pending()
        record = self._pack(RecordKind.SCHEDULED, 1, 0, records.pack_scheduled(done))
        return self.append(record, 1, reserved=True)[1]

    def rescheduled(self, seq: int, due: int, at_ms: int, undo: Callable[[], None]) -> Ticket:
        """A job waits for another time."""
        self.write_pending()
        record = self._pack(RecordKind.RESCHEDULED, 1, 0, records.pack_rescheduled(seq, due, at_ms))
        _, ticket = self.append(*self._with_notes(record), reserved=True)  # it may have returned just now
        self.departed(undo)
        return ticket

    def append(self, data: bytes, count: int, *, reserved: bool = False) -> tuple[int, Ticket]:
        self.write_pending()
        return self.log.append(data, count, reserved)

    def arriving(self, bodies: Sequence[bytes], first: int) -> bytes:
        """The record of arriving messages, for the caller to append now; then it calls `appended`. All of
        them are dead letters, or none is.
        """
        self.write_pending()
        if isinstance(bodies[0], DeadLetter):
            letters = records.pack_letters(bodies)  # type: ignore[arg-type]
            return self._pack(RecordKind.LETTERS, len(bodies), first, letters)
        return records.pack_enqueued(bodies, first, *self._times.stamp())

    def appended(self, bodies: Sequence[bytes], size: int, offset: int, first: int, ticket: Ticket) -> None:
        """Messages are in the log, from `offset` to its end."""
        self._arrivals.append((self.log.end, offset, first, bodies, size, ticket))

    def moving(self, runs: Sequence[Run], reason: Reason, target: str) -> tuple[bytes, int]:
        """The records of messages that move to another queue, to be appended now; then call `departed`."""
        self.write_pending()
        spans = to_spans(runs)
        self._passed(sum(spans[-1]) - 1)
        body = records.pack_runs(spans) + target.encode()
        return self._with_notes(self._pack(RecordKind.MOVED, len(spans), 0, body, reason))

    def departed(self, undo: Callable[[], None], *, emptied: bool = False) -> None:
        """The last append makes messages leave; if it fails, `undo` is called. `emptied`: all of the row."""
        self._leaving.add(self.log.end, undo)
        if emptied:
            self._emptied = self.log.end

    def gone(self, runs: Sequence[tuple[int, int]], reason: Reason) -> Ticket:
        """Messages leave unacknowledged."""
        self.write_pending()
        self._passed(sum(runs[-1]) - 1)
        record = records.pack_run_record(RecordKind.GONE, runs, *self._times.stamp(), reason)
        _, ticket = self.append(*self._with_notes(record), reserved=True)
        return ticket

    def _pack(self, kind: RecordKind, count: int, seq: int, body: bytes, reason: int = 0) -> bytes:
        return records.pack_head(kind, count, seq, *self._times.stamp(), len(body), reason) + body

    # -- notes

    def note_delivered(self, seq: int, count: int) -> None:
        if self._delivered_end == seq:
            self._delivered_end = seq + count
            return
        if self._ahead:
            self._passed(seq - 1)
        if self._delivered_end or self._notes or not self._notes_awaited:
            self._begin_note()
        self._delivered_first, self._delivered_end = seq, seq + count

    def note_returned(self, returned: Sequence[tuple[int, int, int]], *, nacked: bool) -> None:
        """Note messages that returned: sequence, deliveries, and the age at which each may be delivered again
        (0: now)."""
        if self._ahead:
            seqs = [seq for seq, _, _ in returned]
            self._passed(max(seqs), seqs)
        self._begin_note()
        self._add_notes(RecordKind.RETURNED, Reason.NACKED if nacked else Reason.LOST, returned)

    def note_text(self, seq: int, text: str) -> None:
        """Note what a NACK said. Behind the note that the message has returned."""
        self._add_notes(RecordKind.TEXTS, _NO_REASON, ((seq, text),))

    def taken_ahead(self, numbers: range) -> None:
        """Messages never delivered are held before they are tried. No record says so, except a snapshot."""
        self._ahead += numbers

    def _passed(self, last: int, seqs: Collection[int] = ()) -> None:
        """A record comes that is of the sequence `last`. Note before it what was taken ahead up to there, but
        for the record's own `seqs`: it is out, and was not delivered.
        """
        passed = bisect_right(self._ahead, last)
        if passed:
            ahead = self._ahead[:passed]
            del self._ahead[:passed]
            untried = [] if ahead == seqs else sorted(set(ahead).difference(seqs))
            if untried:
                self._end_run()
                self._add_notes(RecordKind.RETURNED, Reason.LOST, [(seq, 0, 0) for seq in untried])

    def flush_notes(self) -> Ticket | None:
        """Write notes that no record has taken along. The ticket of what has them; None: nothing has."""
        self._notes_awaited = False
        ticket = None
        if (self._delivered_end or self._notes) and self._pending is not None:
            ticket = self._pending.ticket
            self.write_pending()  # it takes them along: behind ACKs, deliveries before those count twice
        if (self._delivered_end or self._notes) and not self.detached:
            try:
                _, ticket = self.append(*self._with_notes(b"", 0), reserved=True)
            except StoreError:
                pass  # notes need not be durable
        return ticket

    def detach(self) -> None:
        """The disk has failed, and the queue goes on in memory."""
        self.detached = True
        self._notes, self._delivered_end = [], 0

    def _begin_note(self) -> None:
        """Another note comes than more of the same run of deliveries."""
        self._end_run()
        if self._notes and len(self._notes[-1][2]) >= NOTES_MAX:
            self.flush_notes()
        if not self._notes_awaited:
            self._notes_awaited = True
            self._owner.wake_by(self._times.now_ms() + NOTES_MS)

    def _end_run(self) -> None:
        """Have the newest run of deliveries among `_notes`."""
        first, end = self._delivered_first, self._delivered_end
        if end:
            self._delivered_end = 0
            self._add_notes(_DELIVERED, _NO_REASON, ((first, end - first),))

    def _add_notes(self, kind: RecordKind, reason: Reason, entries: Iterable[Any]) -> None:
        notes = self._notes
        if not notes or notes[-1][:2] != (kind, reason):
            if len(notes) >= NOTES_MAX:
                notes.clear()
            notes.append((kind, reason, []))
        notes[-1][2].extend(entries)

    def _with_notes(self, record: bytes, count: int = 1) -> tuple[bytes, int]:
        """A record (or `count` of them), preceded by those of earlier notes."""
        notes, noted = self._take_notes(*self._times.stamp())
        return notes + record, noted + count

    def _take_notes(self, age_ms: int, time_ms: int, bytes_max: float = math.inf) -> tuple[bytes, int]:
        """Records of the notes, to be appended now, and their number; none if longer than `bytes_max`."""
        if self._notes:
            self._end_run()
        elif not self._delivered_end:
            return b"", 0
        else:  # as mostly, and no list is made
            first, end = self._delivered_first, self._delivered_end
            packed = records.pack_run_record(_DELIVERED, ((first, end - first),), age_ms, time_ms)
            if len(packed) > bytes_max:
                return b"", 0
            self._delivered_end = 0
            return packed, 1
        parts = []
        for kind, reason, entries in self._notes:
            if kind is _DELIVERED:
                parts.append(records.pack_run_record(kind, entries, age_ms, time_ms))
            elif kind is RecordKind.TEXTS:
                parts.append(self._pack(kind, len(entries), 0, records.pack_texts(entries)))
            elif entries:
                parts.append(self._pack(kind, len(entries), 0, records.pack_returned(entries), reason))
        packed = b"".join(parts)
        if len(packed) > bytes_max:
            return b"", 0
        self._notes = []
        return packed, len(parts)

    # -- jobs that are there for long

    def is_at(self, seq: int, place: int) -> bool:
        job = self._jobs.cold(seq)
        return job is not None and place_of(job) == place

    @property
    def _jobs(self) -> LoggedJobs:
        jobs = self._owner.jobs
        assert jobs is not None, "records of jobs, and no jobs"
        return jobs

    def copy_of(self, seq: int, form: bytes) -> bytes:
        """A KEPT record of a job that is there: as it is now."""
        job = self._jobs.cold(seq)
        assert job is not None
        kept = seq.to_bytes(8) + with_decided(form, job)
        return self._pack(RecordKind.KEPT, 1, 0, kept)

    def move(self, seq: int, before: int, place: int) -> None:
        self._jobs.move(seq, before, place)

    def all_copied(self, below: int) -> None:
        """No record of a job that counts is below this offset."""
        self._jobs_start = below

    # -- calls of the store

    def _advanced(self, log: Log) -> None:
        """More of the log is durable."""
        owner = self._owner
        if log.deleted or owner.deleted:
            return
        visible = log.visible
        arrivals = self._arrivals
        self._leaving.confirmed(visible)
        if self._emptied > visible:
            return
        if arrivals and arrivals[0][0] <= visible:
            if arrivals[-1][0] <= visible:
                self._arrivals = []
            else:
                count = bisect_right(arrivals, visible, key=itemgetter(0))
                arrivals, self._arrivals = arrivals[:count], arrivals[count:]
            owner.arrived(arrivals)
        if log.end - self._snapshot_floor >= SNAPSHOT_BYTES and self._snapshot_due():
            self.snapshot()

    def _rolled_back(self, log: Log) -> None:
        """What was appended and is not visible has been rolled back."""
        arrivals, self._arrivals = self._arrivals, []
        self._rollbacks += 1
        self.snapshot_end = min(self.snapshot_end, log.end)
        self._snapshot_floor = min(self._snapshot_floor, log.first)
        self._emptied = 0
        durable = bisect_right(arrivals, log.visible, key=itemgetter(0))
        self._owner.refused(arrivals, durable, self._leaving)

    # -- snapshots

    def snapshot(self) -> None:
        """Write a snapshot, and drop what is older. If the disk refuses it, the next one will do."""
        if not self._snapshotting:
            self._snapshotting = True
            self.work(self._snapshot_in_slices())

    def _snapshot_in_slices(self) -> Iterator[None]:
        rollbacks = self._rollbacks
        try:
            self.flush_notes()  # they are about earlier records, and opening begins behind them
            start = self.log.end
            if self._arrivals:
                start = min(start, *[arrival[1] for arrival in self._arrivals])
            lowest, size = float(start), 0
            for jobs in () if self._owner.jobs is None else self._owner.jobs.places():
                lowest = min([lowest, *[place_of(job) for _, job in jobs]])
                size += self._append_part(RecordKind.PLACES, len(jobs), records.pack_places(jobs))
                yield
            for keys in () if self._owner.jobs is None else self._owner.jobs.left_keys():
                size += self._append_part(RecordKind.SEEN, 1, json.dumps({"keys": keys}).encode())
                yield
            if not self._may_go_on(rollbacks):
                return
            self.write_pending()
            state, row_start = self._owner.snapshot_state(), self._row_start()
            out, listed = _out_of_row(self._owner.older_than_row())
            body = json.dumps({**state, "home": row_start, "places": True, "out": listed}).encode()
            part = self._with_notes(self._pack(RecordKind.SNAPSHOT, 1, state["head"], body))
            kept_bytes = size
            for count, messages in records.pack_kept(out, KEPT_BYTES):
                self.append(*part, reserved=True)
                size += len(part[0])
                part = self._pack(RecordKind.KEPT, count, 0, messages), 1
                kept_bytes += len(part[0])
                yield
                if not self._may_go_on(rollbacks):
                    return
            self.write_pending()
            ticket = self._owner.append_snapshot(*part, start)
            self.snapshot_end = self.log.end
            self._kept_bytes, self._snapshot_bytes = kept_bytes, size + len(part[0])
            self._drop_behind(ticket, start, row_start, lowest, state.get("job_bytes", 0))
        except StoreError:
            pass
        finally:
            self._snapshotting = False

    def _may_go_on(self, rollbacks: int) -> bool:
        """Whether a snapshot may, that began when the disk had refused so many appends."""
        return rollbacks == self._rollbacks and not (self.detached or self.log.deleted)

    def _append_part(self, kind: RecordKind, count: int, body: bytes) -> int:
        """Append a part of a snapshot; returns its bytes."""
        record, count = self._with_notes(self._pack(kind, count, 0, body))
        self.append(record, count, reserved=True)
        return len(record)

    def _drop_behind(
        self, ticket: Ticket, start: int, row_start: int, lowest: float, job_bytes: float
    ) -> None:
        """Drop what is older than the snapshot that begins at `start`, once that is durable. No record of a
        job is below `lowest`."""
        self._jobs_start = lowest if lowest < start else math.inf
        floor = self._snapshot_floor = int(min(start, row_start, lowest))
        pinned = min(start, row_start) - lowest
        if pinned > 2 * job_bytes + SNAPSHOT_BYTES:
            self._copying.begin(int(lowest), int(lowest + pinned // 2))
        ticket.when_done(lambda ticket: self._drop_below(floor) if ticket.error is None else None)

    def _row_start(self) -> int:
        """No message of the row is below this offset; the log's end if the row is empty."""
        start = self._owner.row_start()
        if start is not None:
            return start
        return self._arrivals[0][1] if self._arrivals else self.log.end

    def _snapshot_due(self) -> bool:
        if self.detached:
            return False
        least = max(SNAPSHOT_BYTES, 4 * self._kept_bytes)
        end = self.log.end
        if end - self.snapshot_end >= least:
            return True
        least += self._snapshot_bytes  # a snapshot is no reason for another
        floor = max(self._snapshot_floor, self.log.first)
        return end - floor >= least and min(self._row_start(), self._jobs_start) - floor >= least

    def _drop_below(self, offset: int) -> None:
        if offset > self.log.first and not self.log.deleted:
            try:
                self.log.drop_below(offset)
            except StoreError:
                pass  # the next snapshot does it


def _out_of_row(runs: Iterable[tuple[Run, int]]) -> tuple[list[tuple[Run, int]], list[int]]:
    """Runs that do not change while they are written, each with the age at which it is due; and what a
    SNAPSHOT says of them: in fours, the first sequence, how many, their deliveries, and that age."""
    lasting: list[tuple[Run, int]] = []
    listed: list[int] = []
    first = end = tries = due = 0
    for pair in sorted(runs, key=_first_sequence):
        run, run_due = pair
        count = len(run.bodies)
        # 50,000 are gone through at once, most of them alone: what would copy each took three times as long.
        lasting.append(pair if count == 1 else (run.part(0, count), run_due))
        if run.first == end and run.tries == tries and run_due == due:
            end += count
            continue
        if end:
            listed += (first, end - first, tries, due)
        first, end, tries, due = run.first, run.first + count, run.tries, run_due
    if end:
        listed += (first, end - first, tries, due)
    return lasting, listed


def _first_sequence(pair: tuple[Run, int]) -> int:
    return pair[0].first

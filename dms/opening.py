"""Opening: every queue's state, from its last snapshot and its log since then.

What cannot be read of a log is skipped: messages that arrived there are lost, and those that left there are
back. If the snapshot itself is lost, all of the log is read, which may hold older ones. A queue that has lost
something tells the first consumer that asks.
"""

import json
import math
import struct
from typing import Any

from dms import engine as engines
from dms import records
from dms.cold_jobs import cold_job_of, head_of, rescheduled, said_of, tried
from dms.engine import ENGINE_KEY, Engine, Queue
from dms.job_head import JOB_BYTES, JOB_FIRST, JobHead
from dms.records import NotOurs, Record, RecordKind, SeqRange
from dms.settings import NAMESPACE, QUEUES, TABLES_NAMESPACE, DmsSettings
from dms.times import Times
from shared.errors import StoreError
from shared.plugin import Context
from shared.queues.cold import tries_of
from shared.queues.pausing import tell_paused
from shared.queues.runs import Run
from shared.storage.log import WholeRecords
from shared.storage.lost import Lost
from shared.storage.settings import Durability
from shared.storage.store import Log, Retention
from shared.storage.table import Table

_ROWS = Durability("always")
"""Whatever mode queues have: the catalog, with their names, is journaled, and a queue must not be there
without its options."""
READ_BYTES = 1 << 20
_JOBS = int(RecordKind.JOBS)


class LogReplay:
    """The state that records make of an empty queue; bodies are not read, except those in a snapshot.

    `beheaded`: the log begins later than the queue, so earlier messages are gone.
    """

    _copies_follow = False
    """The last snapshot has told what was out, and KEPT records behind it bring bodies alone. In an earlier
    version they told that, before the snapshot."""

    def __init__(self, *, beheaded: bool = False) -> None:
        self.head = self.tail = 1
        self._beheaded = beheaded
        self._kept: dict[int, tuple[int, int]] = {}
        self.age_ms = 0
        self.out: dict[int, tuple[int, int]] = {}
        """Delivered and not gone, by sequence: deliveries, due."""
        self.bodies: dict[int, bytes] = {}
        self.homes: list[tuple[int, int]] = []
        self.bodies_from = math.inf
        """Bodies that no snapshot has are in the log from this offset on."""
        self.state: dict[str, Any] = {}
        self.state_age_ms = 0
        self.produced: list[tuple[int, int]] = []
        """(age, sequence behind) of messages since the snapshot."""
        self.heads: dict[int, JobHead] = {}
        """Of messages that are out and have one."""
        self.jobs: dict[int, bytes] = {}
        self.job_bytes = 0.0
        """Of the jobs' records, about."""
        self.job_tail = JOB_FIRST
        self.seen: list[list[Any]] = []
        self._kept_jobs: dict[int, bytes] = {}
        self.scheduled: dict[str, int] = {}
        """Up to when each schedule is done."""

    def apply(self, data: bytes, offset: int) -> None:
        """Apply whole records, the first at `offset`. Raises NotOurs."""
        at = 0
        for record in records.unpack(data):
            if record.age_ms > self.age_ms:
                self.age_ms = record.age_ms
            if record.kind == _JOBS:  # as many as there are jobs
                for seq, form in records.forms_in(data, record):
                    self._job(seq, form, offset + at)
                self.job_tail = record.seq + record.entries
            else:
                self._apply(data, record, offset + at)
            at = record.end

    def _apply(self, data: bytes, record: Record, offset: int) -> None:
        if record.kind not in (RecordKind.KEPT, RecordKind.SEEN, RecordKind.SNAPSHOT) and (
            self._kept or self._kept_jobs
        ):
            self._kept.clear()
            self._kept_jobs.clear()
        match record.kind:
            case RecordKind.ENQUEUED | RecordKind.LETTERS:
                self._begin(record.seq)
                self.tail = record.seq + record.entries
                if not self.homes or offset - self.homes[-1][1] >= engines.POSITION_BYTES:
                    self.homes.append((record.seq, offset))
                    self.bodies_from = min(self.bodies_from, offset)
                self.produced.append((record.age_ms, self.tail))
            case RecordKind.DELIVERED:
                for run in records.runs_in(data, record):
                    if run.first >= JOB_FIRST:
                        self._job_delivered(run)
                        continue
                    self._begin(run.first)
                    head = self.head
                    self._passed(run)
                    for seq in range(run.first, sum(run)):
                        if seq >= head or seq in self.out:
                            self.out[seq] = self.out.get(seq, (0, 0))[0] + 1, 0
            case RecordKind.ACKED | RecordKind.GONE | RecordKind.MOVED:
                for run in records.runs_in(data, record):
                    if run.first >= JOB_FIRST:
                        self._jobs_gone(run)
                        continue
                    self._begin(run.first)
                    self._gone(run)
            case RecordKind.RETURNED:
                for seq, deliveries, due in records.returned_in(data, record):
                    if seq >= JOB_FIRST:
                        if seq in self.jobs:
                            self.jobs[seq] = tried(self.jobs[seq], deliveries, due)
                    elif seq >= self.head or seq in self.out:
                        self._passed(SeqRange(seq, 1))
                        self.out[seq] = deliveries, due
            case RecordKind.KEPT:
                for seq, form in records.forms_in(data, record):
                    if seq >= JOB_FIRST:
                        self._job(seq, form, offset)
                        self._kept_jobs[seq] = self.jobs[seq]
                for kept in records.kept_in(data, record, JOB_FIRST):
                    if not self._copies_follow:
                        self.out[kept.seq] = self._kept[kept.seq] = kept.deliveries, kept.due
                    elif kept.seq not in self.out:
                        continue  # it has left since
                    self.bodies[kept.seq] = kept.body
                    if kept.head is not None:
                        self.heads.setdefault(kept.seq, kept.head)
            case RecordKind.SNAPSHOT:
                self._beheaded = False
                self.state = dict(records.object_in(data, record))
                self._copies_follow = "out" in self.state
                self.out = dict(self._kept)
                listed = iter(self.state.pop("out", ()))
                for first, count, deliveries, due in zip(listed, listed, listed, listed, strict=True):
                    self.out.update(dict.fromkeys(range(first, first + count), (deliveries, due)))
                self.bodies = {seq: body for seq, body in self.bodies.items() if seq in self.out}
                self.heads = {seq: head for seq, head in self.heads.items() if seq in self.out}
                if not self.state.get("places"):  # of an earlier version, which has copied all jobs
                    self.jobs = dict(self._kept_jobs)
                self.job_bytes = self.state.get("job_bytes", self.job_bytes)
                self.job_tail = self.state.get("jobs", JOB_FIRST)
                self.scheduled = dict(self.state.get("scheduled", {}))
                self.state_age_ms = record.age_ms
                self.head, self.tail = self.state["head"], self.state["tail"]
                self.homes = [(self.head, self.state["home"])]
                self.bodies_from = min(self.bodies_from, self.state["home"])
                self.produced.clear()
            case RecordKind.PLACES:
                for seq, rest in records.places_in(data, record):
                    self.jobs[seq] = rest
            case RecordKind.TEXTS:
                for seq, text in records.texts_in(data, record):
                    self._said(seq, text)
            case RecordKind.RESCHEDULED:
                for seq, due, at_ms in records.rescheduled_in(data, record):
                    job = self.jobs.get(seq)
                    if job is not None:
                        self.jobs[seq] = rescheduled(job, due, at_ms)
            case RecordKind.SEEN:
                self.seen += records.object_in(data, record)["keys"]
            case RecordKind.SCHEDULED:
                self.scheduled = dict(records.object_in(data, record)["done"])
            case RecordKind.IMPORTED:
                pass  # the table has the imported files
            case _:
                raise NotOurs(f"a record of kind {record.kind}")

    def _job(self, seq: int, form: bytes, place: int) -> None:
        """A job came, or was copied; its record is at `place`."""
        if seq not in self.jobs:
            self.job_bytes += records.JOB_RECORD_BYTES + len(form)
        self.jobs[seq] = cold_job_of(form, place)

    def _job_delivered(self, run: SeqRange) -> None:
        for seq in range(run.first, sum(run)):
            if seq in self.jobs:
                self.jobs[seq] = tried(self.jobs[seq], tries_of(self.jobs[seq]) + 1, 0)

    def _jobs_gone(self, run: SeqRange) -> None:
        for seq in range(run.first, sum(run)):
            job = self.jobs.pop(seq, None)
            if job is None:
                continue
            self.job_bytes -= self.job_bytes / (len(self.jobs) + 1)
            head = head_of(job)
            if head.known_until:
                self.seen.append([head.dedup, seq, head.known_until])

    def _said(self, seq: int, text: str) -> None:
        """What a NACK of a message said."""
        job = self.jobs.get(seq)
        if job is not None:
            self.jobs[seq] = said_of(job, text)
        elif seq in self.out:
            self.heads[seq] = JobHead(text=text)

    def _begin(self, seq: int) -> None:
        """Begin at the first sequence in a beheaded log."""
        if self._beheaded:
            self._beheaded = False
            self.head = self.tail = seq

    def _passed(self, run: SeqRange) -> None:
        """The row begins behind `run` at least; everything before was delivered."""
        for seq in range(self.head, run.first):
            self.out[seq] = 1, 0
        self.head = max(self.head, sum(run))

    def _gone(self, run: SeqRange) -> None:
        head = self.head
        if run.first > head:
            self._passed(SeqRange(run.first, 0))
        self.head = max(head, sum(run))
        for seq in range(run.first, min(sum(run), max(head, run.first))):
            self.out.pop(seq, None)
            self.bodies.pop(seq, None)
            self.heads.pop(seq, None)


async def open_engine(context: Context, settings: DmsSettings, times: Times | None = None) -> Engine:
    """Open all queues of the data folder; none if everything is in memory. Raises StoreError."""
    store = context.store
    times = times or Times(unix_ms=store.clock.wall_ms)
    if not settings.persist:
        return Engine(settings, context.log, times, store=store, budget=context.budget)
    namespace = store.namespace(NAMESPACE, settings.durability, retention=Retention())
    tables = store.namespace(TABLES_NAMESPACE, _ROWS)
    table = await Table.open(tables, QUEUES)
    if store.read_only is None:
        tables.change_mode(QUEUES, _ROWS)  # an earlier version gave it the mode of queues
    engine = Engine(
        settings,
        context.log,
        times,
        store=store,
        namespace=namespace,
        table=table,
        budget=context.budget,
    )
    mine = table.get(ENGINE_KEY)
    if mine is not None:
        engine.times.not_before(json.loads(mine)["age_ms"])
    for name, log in tuple(namespace.logs.items()):
        row = json.loads(table.get(name.encode()) or b"{}")
        if row.get("log") != log.id:  # none, or of an earlier queue of that name
            row = {}
        queue = engine.adopt(name, row.get("options", {}))
        if row.get("paused"):
            queue.pause()
        try:
            await open_log(queue, log, row.get("snapshot", 0))
        except (StoreError, NotOurs) as error:
            context.log.error(
                "a queue cannot be opened: its log is left as it is, and nobody is served from it; "
                "put right what the reason says, then restart",
                queue=name,
                reason=str(error),
            )
            engine.discard(queue)
    for key, _ in table.items():
        if not key.startswith(ENGINE_KEY) and key.decode(errors="replace") not in namespace.logs:
            # A deletion would have removed the row with the log.
            context.log.error(
                "the log of a queue is not there, though its options are: its messages are lost; restore a "
                "backup, or create the queue again to go on without them",
                queue=key.decode(errors="replace"),
            )
    tell_paused(context.log, [queue.text for queue in engine.queues.values() if queue.paused])
    for queue in tuple(engine.queues.values()):
        if engine.follows:
            queue.stops += 1
        queue.schedules.begin()
        if queue.expiry is not None:  # now that the dead-letter queues exist
            queue.expire(engine.times.now_ms())
    return engine


async def open_log(queue: Queue, log: Log, snapshot: int) -> None:
    """Read the queue's log from its last snapshot on. Raises StoreError, NotOurs."""
    start = max(snapshot, log.first)
    replay, lost = await _replay(log, start)
    if lost and start > log.first and not replay.state:
        start = log.first
        replay, lost = await _replay(log, start)
    queue.open_log(log)
    assert queue.log is not None
    assert queue.cold is not None
    queue.log.snapshot_end = start
    queue.engine.times.not_before(replay.age_ms)
    homes = [home for home in replay.homes if home[0] <= replay.head] or replay.homes[:1]
    lost += await _find_bodies(replay, log, int(min(replay.bodies_from, log.visible)))
    if homes:
        queue.cold.positions.append(homes[-1])
        queue.cold.offset = homes[-1][1]
    queue.head = replay.head
    queue.end = queue.tail = queue.recovered = max(replay.tail, replay.head)
    queue.depth = queue.end - queue.head + len(replay.out) + len(replay.jobs)
    _restore_times(queue, replay)
    queue.schedules.restore(replay.scheduled)
    if replay.jobs or replay.seen or replay.job_tail > JOB_FIRST:
        queue.made_for_jobs().restore(replay.jobs, replay.job_tail, replay.seen, replay.job_bytes)
    queue.cold.teller.lose(*lost)


async def _replay(log: Log, start: int) -> tuple[LogReplay, list[Lost]]:
    """Replay the log from `start` on; also returns what cannot be read."""
    replay = LogReplay(beheaded=log.first > 0)
    reader = WholeRecords(log, start, READ_BYTES)
    while data := await reader.read():
        try:
            replay.apply(data, reader.offset)
        except (NotOurs, ValueError, KeyError, IndexError, struct.error):
            if log.was_written(reader.offset):
                raise
            reader.pass_over(Lost(reader.offset, len(data), 0))
    return replay, reader.lost


async def _find_bodies(replay: LogReplay, log: Log, offset: int) -> list[Lost]:
    """Read the bodies of delivered messages that no snapshot has. Returns what could not be read."""
    missing = replay.out.keys() - replay.bodies.keys()
    reader = WholeRecords(log, offset, READ_BYTES)
    while missing and (data := await reader.read()):
        for record in records.unpack(data):
            if record.kind in (RecordKind.ENQUEUED, RecordKind.LETTERS):
                last = record.seq + record.entries
                wanted = missing.intersection(range(record.seq, last))
                if wanted:
                    bodies = records.messages_in(data, record)
                    for seq in wanted:
                        replay.bodies[seq] = bodies[seq - record.seq]
                    missing -= wanted
    for seq in missing:  # a snapshot says that they are there, and the log does not
        del replay.out[seq]
    return reader.lost


def _restore_times(queue: Queue, replay: LogReplay) -> None:
    """Return deliveries, each with its remaining time."""
    expiry = queue.expiry
    if expiry is not None:
        expiry.restore(replay.state, replay.state_age_ms, replay.produced)
    for seq, (deliveries, due) in sorted(replay.out.items()):
        run = Run(None, [replay.bodies[seq]], seq, deliveries)
        if seq in replay.heads:
            run.head = replay.heads[seq]
            run.head.cost_bytes = JOB_BYTES + len(run.bodies[0])
        queue.charge_runs((run,))
        if due:  # a NACK may have delayed it in a queue without options
            queue.timed().put_off(run, due)
        else:
            queue.place(run)
    if queue.expiry is not None:
        queue.expiry.arm()

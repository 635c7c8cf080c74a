"""Jobs: messages that came with PRODUCE_WITH (`dms.job_head`); and the schedules that bring some.

Each job is in one of four places. It *waits*
for its time; it is *ready*, by priority, key and place; a consumer *holds* it; or it is *aside*: dead, or
looked at by an action. In a durable queue those that wait are cold (`dms.cold_jobs`), and so are ready ones
while memory is scarce. The front of what is ready is read back when somebody takes it. A job stands where it
came: behind the messages of the row that came before it, and before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from dms.cold_jobs import (
    NO_RECORD,
    READY_BYTES,
    cold_job,
    cold_job_of,
    cold_run,
    head_of,
    is_cold_job,
    make_cold,
    read_back,
    timed,
)
from dms.expiry import TRY_AGAIN_MS, due_at
from dms.job_head import JOB_FIRST, JobHead, pack_job, pack_new_job, times_of, unpack_job
from dms.job_requests import JobRequest
from dms.records import JOB_RECORD_BYTES, Reason
from dms.wire import Refusal, Status, malformed
from shared.errors import StoreError
from shared.queues.cold import (
    PLAIN_BYTES,
    ColdMessages,
    due_of,
    is_cold,
    is_lost,
    moved,
    place_of,
    tries_of,
)
from shared.queues.dedup import SeenKeys
from shared.queues.keys import Keys
from shared.queues.runs import Run
from shared.queues.waiting import WAITING_BYTES, ClockWatch, Waiting
from shared.schedules import Due
from shared.turns import ITEMS, Turn, batched

if TYPE_CHECKING:
    from dms.engine import Queue
    from dms.options import Options
    from shared.queues.naming import MessageName
    from shared.storage.store import Ticket

CLOCK_LOOK_MS = 60_000
"""The wall clock is looked at so often where there are schedules, or jobs for a time of it."""
KNOWN_BYTES = 350
"""Memory of a `dedup` key that is known."""
FORGET_MS = 1000
"""How late keys may be forgotten."""
KNOWN_MAX = 1_000_000
"""Keys that a queue knows, of jobs that it has and of those that came lately."""
_ONCE = b'"dedup"'
_EXPIRES = b'"expires"'
_AT = b'"at"'
"""JSON of a job is only read where it has one of these."""


class Jobs:
    """The jobs of one queue, by sequence. Times are ages of the engine, in milliseconds."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.tail = JOB_FIRST
        """The sequence of the next job."""
        self.waiting: Waiting[bytes] = Waiting()
        """Cold jobs; in a queue without a log each as it would stand in a record."""
        self.ready = self._new_keys()
        self.held: dict[int, Run] = {}
        self._aside: dict[int, Run] = {}
        """Those that were taken out, and nobody holds."""
        self._reader = (
            None if queue.cold is None else ColdMessages(queue.cold.log, queue.cold.teller, read_back)
        )
        self._reads_front = False
        self.not_yet = False
        """The next one is on its way from the log; or some were lost, and who asked was told."""
        self.record_bytes = 0.0
        """Bytes of the records of all that are visible: of those that have left it is the mean."""
        self._runs: dict[int, Run] = {}
        """Those that are in `ready`."""
        self._unplaced: dict[int, Run] = {}
        """Ready and held jobs of which `ready` does not know yet, while options change."""
        self._lives: Waiting[bool] = Waiting()
        """When each is too old."""
        self._seen = SeenKeys(KNOWN_BYTES, self._charge)
        self.coming = 0
        """Jobs that the disk does not have yet."""
        self._clock: ClockWatch | None = None
        """None: no job came for a time of the wall clock."""
        self.memory_bytes = 0
        """Of the queue's memory: what its jobs take however cold they are."""
        self._since_row = 0
        """Where keys take turns: jobs that were delivered since the row had its turn."""
        self._unconfirmed: dict[int, Ticket] = {}
        """What the answer to a repeated key waits for: jobs with a key that the disk does not have yet."""

    def _new_keys(self) -> Keys:
        self._order = per_key, fair, priority_max = _order_of(self.queue.options)
        return Keys(per_key, fair=fair, priority_max=priority_max)

    def options_changed(self) -> None:
        """The queue's options have changed: what is ready stands anew, if they say in which order. The queue
        delivers nothing until all does."""
        if self._order == _order_of(self.queue.options):
            return
        before, self.ready = self.ready, self._new_keys()
        self._unplaced = {**self._runs, **self.held}
        self.queue.await_returns()
        self.queue.engine.long_work.add(self._place_anew(before))

    def _place_anew(self, before: Keys) -> Iterator[None]:
        ready, unplaced = self.ready, self._unplaced
        try:
            for seqs in batched([*unplaced]):
                if ready is not self.ready:
                    return  # the options have changed again
                for seq in seqs:
                    run = unplaced.pop(seq, None)
                    if run is None:
                        continue
                    if seq in self.held:
                        ready.take_over(run.head.key)
                    else:
                        ready.add(run, run.head.priority, run.head.key)
                yield
            for seqs in batched([*self.waiting.numbers] if ready.per_key == 1 else ()):
                for seq in seqs:
                    job = self.waiting.get(seq)
                    if job is not None:
                        self._waits(seq, job)
                yield
        finally:
            self.queue.all_returned()
        for _ in before.clear():
            yield

    # -- jobs arrive

    def produce(
        self, asked: JobRequest, body: bytes, *, done: Mapping[str, int] | None = None
    ) -> Ticket | None:
        """Add what PRODUCE_WITH asks for; `done`: it is of a schedule. None: done. Raises Refusal."""
        queue, times, options = self.queue, self.queue.engine.times, self.queue.options
        now, unix_ms = times.stamp()
        known_until = 0
        if asked.dedup:
            known = self._seen.number_of(asked.dedup, now)
            if known is not None:
                queue.engine.counts.repeated += 1
                return self._unconfirmed.get(known)
            if len(self._seen) >= KNOWN_MAX:
                text = f"{queue.text} knows {KNOWN_MAX} keys already"
                raise Refusal(Status.QUEUE_FULL, text, limit="dedup")
            known_until = due_at(now, options.dedup_ms) if options.dedup_ms else 0
        if queue.depth >= options.depth:
            raise Refusal(Status.QUEUE_FULL, f"{queue.text} holds its {options.depth} messages")
        delay_ms = options.delay_ms if asked.delay_ms is None else asked.delay_ms
        if asked.at_ms:
            delay_ms = max(asked.at_ms - times.wall_ms(), 0)
        ttl_ms = options.ttl_ms if asked.ttl_ms is None else asked.ttl_ms
        if 0 < ttl_ms < delay_ms:
            raise malformed(f"ttl_ms ({ttl_ms}) is below its delay ({delay_ms}): it would die undelivered")
        expires, due = due_at(now, ttl_ms) if ttl_ms else 0, due_at(now, delay_ms) if delay_ms else 0
        form = pack_new_job(asked.about, unix_ms, queue.tail, expires, known_until, due, body)
        return self.add(form, body, asked.dedup, known_until, done=done)

    def add(
        self,
        form: bytes,
        body: bytes,
        dedup: str,
        known_until: int = 0,
        *,
        moved: bool = False,
        done: Mapping[str, int] | None = None,
    ) -> Ticket | None:
        """Add a job; `moved`: it is in memory already, and needs no room there. Raises Refusal."""
        queue, engine, memory = self.queue, self.queue.engine, self.queue.memory
        if memory.unsynced:
            engine.sync_budget()
        if queue.crowded and not moved:  # on disk or not: something of each job is in memory
            queue.refuse_crowded()
        if memory.full and not moved and (queue.log is None or memory.jobs_full):
            raise Refusal(Status.QUEUE_FULL, "the server has no memory for more jobs", limit="memory")
        ticket = None
        if queue.log is not None:
            try:
                if done is None:
                    ticket = queue.log.job(form, self.tail)
                else:
                    ticket = queue.log.scheduled(form, self.tail, done)
            except StoreError as error:
                queue.detach_or_refuse(error)
        self.came(body, dedup, known_until, ticket)
        if ticket is None:
            if engine.durable is not None:
                engine.count_not_durable()
            self.arrived(self.tail - 1, (form,), NO_RECORD)
            if queue.line:
                queue.dispatch()
        return ticket

    def welcome(self, jobs: Sequence[tuple[JobHead, bytes]], now: int) -> list[bytes]:
        """The forms of jobs that come from another queue, where their place, key and lifetime were others."""
        queue = self.queue
        for head, _ in jobs:
            head.behind, head.text = queue.tail, ""
            head.expires = due_at(now, queue.options.ttl_ms) if queue.options.ttl_ms else 0
            if self._seen.waiting(head.dedup) is not None:
                head.dedup = ""
            dedup_ms = queue.options.dedup_ms if head.dedup else 0
            head.known_until = due_at(now, dedup_ms) if dedup_ms else 0
        return [pack_job(0, head, body) for head, body in jobs]

    def came(self, body: bytes, dedup: str, known_until: int, ticket: Ticket | None) -> None:
        """A job is in the queue, and not visible yet."""
        queue, engine = self.queue, self.queue.engine
        engine.counts.produced += 1
        for observe in engine.observers:
            observe(queue.name, (body,))
        queue.depth += 1
        if dedup:
            self._seen.add(dedup, self.tail, known_until)
            if ticket is not None:
                self._unconfirmed[self.tail] = ticket
        self.tail += 1
        self.coming += 1

    def _charge(self, size: int) -> None:
        """Memory that jobs take in a durable queue too: so much more, or less."""
        self.queue.charge(size)
        self._count_lasting(size)

    def _count_lasting(self, size: int) -> None:
        self.queue.memory.jobs_bytes += size
        self.memory_bytes += size

    def arrived(self, first: int, forms: Sequence[bytes], place: int) -> None:
        """Jobs are visible; `place`: where in the log the first one's record is."""
        self.coming -= len(forms)
        now, plain = self.queue.engine.times.now_ms(), 0
        for seq, form in enumerate(forms, first):
            if self._unconfirmed:
                self._unconfirmed.pop(seq, None)
            size = JOB_RECORD_BYTES + len(form)
            if place == NO_RECORD:
                self._enter(seq, form, now)
                continue
            _, due = times_of(form)
            self.record_bytes += size
            if due > now:
                job = cold_job_of(form, place)
                if len(job) == PLAIN_BYTES:
                    self.waiting.add(seq, due, job)
                    plain += 1
                else:
                    self._enter(seq, job, now)
            elif self.queue.may_load_more:
                self._enter(seq, form, now, place)
            else:
                self._enter(seq, cold_job_of(form, place), now)
            place += size
        if plain:
            self._charge((WAITING_BYTES + PLAIN_BYTES) * plain)
        self.arm()

    def refused(self, first: int, forms: Sequence[bytes]) -> None:
        """The disk refused the newest jobs."""
        self.tail = first
        self.coming -= len(forms)
        for seq, form in enumerate(forms, first):
            self._unconfirmed.pop(seq, None)
            if _ONCE in form:
                self._seen.undo(unpack_job(form)[1].dedup)

    def _enter(self, seq: int, job: bytes, now: int, place: int = NO_RECORD) -> None:
        """A job waits from now on, or is ready; `place`: of its record, unless it is cold."""
        due = due_of(job) if is_cold_job(job) else times_of(job)[1]
        run = None
        if due <= now:
            run = _run_of(seq, job, place)
        if _EXPIRES in job:
            head = _run_of(seq, job, place).head if run is None else run.head
            if head.expires:
                self._lives.add(seq, head.expires, True)
        if run is None:
            self._wait(seq, due, job)
        else:
            self.queue.charge_runs((run,))
            self._make_ready(run)

    def _wait(self, seq: int, due: int, job: bytes) -> None:
        self.waiting.add(seq, due, job)
        if _AT in job and self._clock is None:
            times = self.queue.engine.times
            self._clock = ClockWatch(times.wall_ms() - times.now_ms())
        self._waits(seq, job)
        self._charge(WAITING_BYTES + len(job))

    def _make_ready(self, run: Run) -> None:
        self._runs[run.first] = run
        self._count_lasting(READY_BYTES)
        self.ready.requeue(run, run.head.priority, run.head.key)

    # -- jobs are delivered, and return

    def take_next(self) -> Run | None:
        """Take the job that is to be delivered next; None: none is, or a message of the row is."""
        run = self._first_loaded()
        if run is None:
            return None
        now = self.queue.engine.times.now_ms()
        if 0 < run.head.expires <= now:  # its timer has not come yet
            self.on_time(now)
            run = self._first_loaded()
            if run is None:
                return None
        if self.ready.first_priority == 0 and self._row_goes_first(run.head):
            return None
        run = self.ready.take(1)
        del self._runs[run.first]
        self._count_lasting(-READY_BYTES)
        self.held[run.first] = run
        run.head.at_ms = 0  # what comes back waits for no time of the wall clock
        return run

    def _first_loaded(self) -> Run | None:
        """The next job that may be taken, with its body; None: there is none, or `not_yet`."""
        self.not_yet = False
        run = self.ready.first()
        if run is not None and is_cold(run):
            before = len(self._runs)
            if not self._reads_front:
                self._read_front()
            run = self.ready.first()
            if len(self._runs) < before or (run is not None and is_cold(run)):
                self.not_yet = True
                return None
        return run

    def _read_front(self) -> None:
        """Read back the jobs that are to be delivered next."""
        assert self._reader is not None
        runs = [run for run in self.ready.upcoming(ITEMS) if is_cold(run)]
        inside = self._reads_front = True

        def done() -> None:
            queue, self._reads_front = self.queue, False
            lost = [run.first for run in runs if is_lost(run)]
            if lost:
                queue.drop([run for seq in lost if (run := self.take_out(seq)) is not None])
                queue.wake_by(queue.engine.times.now_ms())
            if not inside and queue.line and not queue.deleted:
                queue.dispatch()

        self.load(runs, done)
        inside = False

    def load(self, runs: Iterable[Run], then: Callable[[], None]) -> None:
        """Have the bodies of jobs in memory; see `ColdMessages.load`. Of copies the memory is not counted."""
        if self._reader is None:
            then()
            return
        costs = [(run, run.head.cost_bytes) for run in runs if is_cold(run)]

        def done() -> None:
            for run, cost_bytes in costs:
                if run.bodies and run in (self._runs.get(run.first), self._aside.get(run.first)):
                    self.queue.charge(run.head.cost_bytes - cost_bytes)
            then()

        self._reader.load([run for run, _ in costs], done)

    def _row_goes_first(self, head: JobHead) -> bool:
        queue = self.queue
        if queue.ready.requeued:
            first = queue.ready.requeued[0][0]
        elif queue.head < min(queue.end, queue.released):
            first = queue.head
        else:
            return False
        if not queue.options.fair:
            return first < head.behind
        if self._since_row < self.ready.in_line:
            self._since_row += 1
            return False
        self._since_row = 0
        return True

    def before_first(self, seq: int, most: int) -> int:
        """How many of the row's messages from `seq` on, at most so many, stand before the first job."""
        run = self.ready.first()
        if run is None:
            return most
        return 1 if self.queue.options.fair else max(min(most, run.head.behind - seq), 1)

    def released(self, runs: Iterable[Run]) -> None:
        """Consumers do not hold these any more."""
        for run in runs:
            if self.held.pop(run.first, None) is not None:
                if self._unplaced.pop(run.first, None) is None:
                    self.ready.release(run.head.key)
                self._aside[run.first] = run

    def held_again(self, run: Run) -> None:
        """The acknowledgement of a job is undone."""
        self.held[run.first] = run
        self.ready.take_over(run.head.key)
        self.came_back(run)

    def place(self, run: Run, delay_ms: int = 0) -> int:
        """A job that was taken waits again. Returns the age at which it is due; 0: it may go now."""
        queue, head = self.queue, run.head
        now = queue.engine.times.now_ms()
        assert queue.expiry is not None
        before = self._aside.pop(run.first, run)
        run.offset = before.offset  # where it was split, a part of it may not know that its record was moved
        if 0 < head.expires <= now:
            self._aside[run.first] = run
            queue.expiry.died(run, Reason.TTL)
            return 0
        if delay_ms:
            head.due = due_at(now, delay_ms)
        if head.due <= now:
            if run.offset != NO_RECORD and not (is_cold(run) or queue.may_load_more):
                queue.uncharge_runs((run,))
                make_cold(run)
                queue.charge_runs((run,))
            self._make_ready(run)
            return 0
        queue.uncharge_runs((run,))
        if run.offset == NO_RECORD:
            self._wait(run.first, head.due, pack_job(run.tries, head, run.bodies[0]))
        else:
            self._wait(run.first, head.due, cold_job(run.offset, head.due, run.tries, head))
        self.arm()
        return int(head.due)

    def take_out(self, seq: int) -> Run | None:
        """Take out a job that waits or is ready; it stays in the queue. None: it is held, dead or gone."""
        job = self.waiting.take(seq)
        if job is not None:
            run = self._aside[seq] = self._no_longer_waiting(seq, job)
            return run
        ready = self._runs.pop(seq, None)
        if ready is None:
            return None
        self._count_lasting(-READY_BYTES)
        if self._unplaced.pop(seq, None) is None:
            ready = self.ready.remove(ready, ready.head.priority, ready.head.key)
        self._aside[seq] = ready
        return ready

    def _waits(self, seq: int, job: bytes) -> None:
        """A job waits for its time: one that was tried may hold its key."""
        if self.ready.per_key == 1 and (tries_of(job) if is_cold_job(job) else times_of(job)[0]):
            self.ready.waits(seq, _run_of(seq, job).head.key, tried=True)

    def _no_longer_waiting(self, seq: int, job: bytes) -> Run:
        run = _run_of(seq, job)
        self.ready.waits_no_more(seq, run.head.key)
        self._charge(-WAITING_BYTES - len(job))
        self.queue.charge_runs((run,))
        return run

    def take_some(self, most: int) -> list[Run]:
        """Take out so many, in no order."""
        seqs = [*islice(self._runs, most)]
        if most > len(seqs):
            seqs += islice(self.waiting.numbers, most - len(seqs))
        return [run for seq in seqs if (run := self.take_out(seq)) is not None]

    def gone(self, runs: Iterable[Run]) -> None:
        """Messages have left the queue."""
        for run in runs:
            if run.first >= JOB_FIRST:
                visible = len(self.waiting) + len(self._runs) + len(self.held) + len(self._aside)
                self.record_bytes -= self.record_bytes / max(visible + 1, 1)
                self._aside.pop(run.first, None)
                if run.head.dedup:
                    self._seen.leave(run.head.dedup)
                if run.head.expires:
                    self._lives.take(run.first)

    def came_back(self, run: Run) -> None:
        """A job has not left after all: the disk has refused that."""
        if run.head.dedup:
            self._seen.back(run.head.dedup, run.first)
        if run.head.expires:
            self._lives.add(run.first, run.head.expires, True)

    # -- by name

    def sequence_of(self, name: MessageName) -> int | None:
        """The sequence of a job that is in the queue. None: there is none."""
        seq = self._seen.waiting(name.dedup) if name.dedup else name.number
        return seq if seq in self.waiting or seq in self._runs or seq in self.held else None

    # -- time

    def arm(self) -> None:
        """Have `on_time` called when something is due."""
        due = min(self.waiting.next, self._lives.next, self._seen.next + FORGET_MS)
        if self._clock is not None and self.waiting:
            due = min(due, self.queue.engine.times.now_ms() + CLOCK_LOOK_MS)
        if due < float("inf"):
            self.queue.wake_by(int(due))

    def on_time(self, now: int) -> None:
        """Jobs whose time has come are ready, and those whose life has ended are dead."""
        queue, turn = self.queue, Turn()
        assert queue.expiry is not None
        if self._clock is not None and self._clock.moved_ms(queue.engine.times.wall_ms() - now):
            queue.engine.upkeep.add(self._reckon_anew())
        while (due := self.waiting.pop(now)) is not None:
            if not (self._clock and self._reckon(*due, now)):
                self._make_ready(self._no_longer_waiting(*due))
            if turn.over():
                break
        while (ended := self._lives.pop(now)) is not None:
            run = self.take_out(ended[0])
            if run is not None:  # else it is held, and dies if it returns
                queue.expiry.died(run, Reason.TTL)
            if turn.over():
                break
        self._seen.forget(now)
        self.arm()

    def _reckon_anew(self) -> Iterator[None]:
        """The wall clock was set: jobs for a time of it are due at another age."""
        for seqs in batched([*self.waiting.numbers]):
            for seq in seqs:
                job = self.waiting.get(seq)
                if job is not None:
                    self._reckon(seq, job, self.queue.engine.times.now_ms(), always=True)
            yield
        self.arm()

    def _reckon(self, seq: int, job: bytes, now: int, *, always: bool = False) -> bool:
        """Have a job wait until its time of the wall clock, unless that has come.
        `always`: also where it has come. Returns whether the job waits."""
        if _AT not in job:
            return False
        run = _run_of(seq, job)
        left_ms = run.head.at_ms - self.queue.engine.times.wall_ms()
        if not run.head.at_ms or (left_ms <= 0 and not always):
            return False
        due = run.head.due = due_at(now, max(left_ms, 0))
        cold = is_cold_job(job)
        again = timed(job, run.tries, due) if cold else pack_job(run.tries, run.head, run.bodies[0])
        self.waiting.add(seq, due, again)
        return True

    # -- what the log has

    @property
    def all_that_came(self) -> int:
        """How many ever came."""
        return self.tail - JOB_FIRST

    @property
    def ready_for_longest(self) -> Run | None:
        """The job that has been ready for longest, but for those that came back since; it may be cold."""
        return next(iter(self._runs.values()), None)

    @property
    def count(self) -> int:
        """How many are visible, and nobody holds them; without the dead."""
        return len(self.waiting) + len(self._runs)

    @property
    def sequences(self) -> list[int]:
        """Of those that wait or are ready, in no order."""
        return [*self.waiting.numbers, *self._runs]

    def copy_of(self, seq: int) -> Run | None:
        """A job as it is now, which may be cold. None: it has left."""
        job = self.waiting.get(seq)
        if job is not None:
            return _run_of(seq, job)
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        return None if run is None else run.part(0, 1)

    def places(self) -> Iterator[list[tuple[int, bytes]]]:
        """All jobs, as a start is to find them in the log: in lists, each as of when it is asked for."""
        for seqs in batched([*self.waiting.numbers, *self._runs, *self.held, *self._aside]):
            found = [(seq, self.cold(seq)) for seq in seqs]
            yield [(seq, job) for seq, job in found if job is not None]

    def move(self, seq: int, before: int, place: int) -> None:
        """The record of a job was at one place, and is at another now."""
        job = self.waiting.get(seq)
        if job is not None:
            if is_cold_job(job) and place_of(job) == before:
                self.waiting.replace(seq, moved(job, place))
            return
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        if run is not None and run.offset == before:
            run.offset = place

    def cold(self, seq: int) -> bytes | None:
        """A job as a cold one. None: it has left, or has no record."""
        job = self.waiting.get(seq)
        if job is not None:
            return job if is_cold_job(job) else None
        run = self._runs.get(seq) or self.held.get(seq) or self._aside.get(seq)
        if run is None or run.offset < 0:
            return None
        return cold_job(run.offset, run.head.due, run.tries, run.head)

    def left_keys(self) -> Iterator[list[tuple[str, int, int]]]:
        """The keys of jobs that have left, as a SEEN record has them: in lists."""
        self._seen.forget(self.queue.engine.times.now_ms())
        return batched(self._seen.left_keys())

    def restore(
        self, jobs: dict[int, bytes], tail: int, seen: Iterable[Sequence[Any]], record_bytes: float
    ) -> None:
        """What was in the queue when the server ended; `seen`: keys, numbers and ends of windows. Empties
        `jobs`."""
        times = self.queue.engine.times
        now, wall_ms = times.now_ms(), times.wall_ms()
        self.tail = tail
        for key, seq, until in seen:
            if until > now:
                self._seen.add(key, seq, until)
                self._seen.leave(key)
        self.record_bytes = record_bytes
        others: list[tuple[int, bytes]] = []
        self.waiting.fill(_plain_ones(jobs, now, others))
        self._charge((WAITING_BYTES + PLAIN_BYTES) * len(self.waiting))
        while others:
            seq, job = others.pop()
            if len(job) > PLAIN_BYTES:
                head = head_of(job)
                if head.dedup:
                    self._seen.add(head.dedup, seq, head.known_until)
                if head.at_ms:  # the clock went on while no server ran
                    due = due_at(now, head.at_ms - wall_ms) if head.at_ms > wall_ms else 0
                    job = timed(job, tries_of(job), due)
            self._enter(seq, job, now)
        self.arm()


def _order_of(options: Options) -> tuple[int, bool, int]:
    """What options say of the order of jobs, as `Keys` takes it."""
    return options.per_key, options.fair, max(options.priorities - 1, 0)


def _plain_ones(
    jobs: dict[int, bytes], now: int, others: list[tuple[int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Take out all jobs: those that wait, and of which only numbers are known, with their times; the others
    are added to that list. There may be a million, and none is twice in memory."""
    while jobs:
        seq, job = jobs.popitem()
        due = due_of(job)
        if len(job) == PLAIN_BYTES and due > now:
            yield seq, due, job
        else:
            others.append((seq, job))


class DueSchedules:
    """The schedules of one queue, each with the time up to which it is done. Times are of the wall clock."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: dict[str, int] = {}
        """By what a schedule says, up to when it was done at the start."""
        self.due: list[Due] = []

    def restore(self, done: Mapping[str, int]) -> None:
        self._known = dict(done)

    @property
    def done(self) -> dict[str, int]:
        return {each.name: each.done_ms for each in self.due}

    def begin(self) -> None:
        """The queue has the schedules of its options from now on; those that it had already go on."""
        queue = self._queue
        schedules = queue.options.schedule
        if not (schedules or self.due):
            return
        now_ms = queue.engine.times.wall_ms()
        known = {**self._known, **self.done}
        named = {each.name: each for each in (Due(schedule, now_ms) for schedule in schedules)}
        self.due = [
            Due.going_on(each.schedule, known[name], now_ms) if name in known else each
            for name, each in named.items()
        ]
        if queue.log is not None and self.done.keys() != known.keys():
            try:
                queue.log.schedules_begin(self.done)
            except StoreError:
                pass  # where the server ends before one is due, they begin anew
        self.arm()

    def arm(self) -> None:
        """Have `on_time` called when one is due, or in a minute: the wall clock may have jumped."""
        times = self._queue.engine.times
        following = [each.next_ms for each in self.due if each.next_ms is not None]
        if following:
            wait_ms = min(max(min(following) - times.wall_ms(), 0), CLOCK_LOOK_MS)
            self._queue.wake_by(due_at(times.now_ms(), wait_ms))

    def on_time(self) -> None:
        """Add the jobs that are due. What has no place is tried again in a second."""
        queue, times = self._queue, self._queue.engine.times
        now_ms = times.wall_ms()
        if any(each.done_ms > now_ms for each in self.due):
            self.due = [Due.going_on(each.schedule, each.done_ms, now_ms) for each in self.due]
        for each in self.due:
            before = each.done_ms
            time = each.take(now_ms)
            if time is None:
                continue
            try:
                asked = JobRequest(headers={"scheduled": time})
                body = each.schedule.body.encode(errors="replace")  # versions before took any text
                queue.made_for_jobs().produce(asked, body, done=self.done)
                queue.engine.counts.scheduled += 1
            except Refusal as refusal:
                self.due[self.due.index(each)] = Due(each.schedule, before)
                queue.engine.counts.scheduled_late += 1
                queue.engine.log.warning(
                    "a scheduled message has no place: it comes when there is room",
                    queue=queue.text,
                    reason=str(refusal),
                )
                queue.wake_by(due_at(times.now_ms(), TRY_AGAIN_MS))
                return
        self.arm()


def _run_of(seq: int, job: bytes, place: int = NO_RECORD) -> Run:
    """A job that is cold, or as it stands in a record, which is at `place`."""
    if is_cold_job(job):
        return cold_run(seq, job)
    tries, head, body = unpack_job(job)
    return Run(head, [body], seq, tries, place)

"""What the administration does with DMS's messages: how the actions of all protocols find and move them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import attrs
import trio

from dms import named_jobs, records
from dms.engine import Consumer, Engine, Queue
from dms.expiry import REASON_TEXTS
from dms.job_head import JOB_FIRST, JobHead
from dms.jobs import Jobs
from dms.records import DeadLetter, Reason, RecordKind
from dms.wire import Refusal, Status
from shared.access import WRITE, Guard, asker_may
from shared.errors import StoreError
from shared.objects import BadArgument, MessageRows, ObjectMissing
from shared.queues.cold import is_cold, is_lost
from shared.queues.deaths import Death
from shared.queues.naming import MessageName, NewTime
from shared.queues.runs import RUN_MOST, Run, first_of, split_at
from shared.queues.sifting import MessageActions
from shared.storage.log import Log, Ticket, read_records
from shared.task_turns import TaskTurn
from shared.turns import batched

READ_BYTES = 1 << 20
SORTED_LEAST = 4096
"""So many more than are wanted are collected before the smallest are sorted out."""

_T = TypeVar("_T")


class Messages(MessageActions[Queue]):
    """The messages of one engine."""

    reasons = (*REASON_TEXTS.values(),)

    def __init__(self, engine: Engine, access: Guard | None) -> None:
        super().__init__(engine.long_work)
        self._engine = engine
        self._access = access

    def find(self, name: str) -> Queue | None:
        return self._engine.find(name)

    def may_write(self, queue: Queue) -> bool:
        return asker_may(self._access, WRITE, queue.text)

    def waiting(self, queue: Queue) -> int:
        return queue.depth - queue.held

    async def look(
        self, queue: Queue, most: int, least: int, *, held: bool = False
    ) -> AsyncGenerator[tuple[Run, int | None]]:
        """Those of the row that are on disk are read from there, with their times. `held`: those that are
        held, too, and those of the row that are in memory from there."""
        cold, jobs, start, end = queue.cold, queue.jobs, max(queue.head, least), queue.end
        out = [run for run, _ in queue.returned_runs()]
        if held:
            out += queue.held_runs()
        if held or cold is None or queue.log is None:
            out += queue.ready.runs
            start = max(queue.loaded_end, least)
        offset = 0 if cold is None else cold.row_start()
        if cold is not None:
            offset = max([at for first, at in cold.positions if first <= start], default=offset)
        # Copies: what waits may be cut meanwhile.
        meant = (run for run in out if run.end > least)
        first = attrgetter("first")
        # What leaves meanwhile may be missing from what is shown, but not from an export.
        runs = nsmallest(most, meant, key=first) if held else await _smallest(meant, most, first)
        runs = [run.part(max(least - run.first, 0), len(run)) for run in runs]
        row, of_jobs = split_at(runs, JOB_FIRST)
        for run, place in first_of(row, most):
            most -= 1
            yield run.part(place, place + 1), None
        if cold is not None:
            async for message in logged(cold.log, offset, start, min(end, start + most)):
                most -= 1
                yield message
        if jobs is None:
            return
        sequences = chain([run.first for run in of_jobs], jobs.sequences)
        for batch in batched(await _smallest((seq for seq in sequences if seq >= least), most, int)):
            copies = [run for run in map(jobs.copy_of, batch) if run is not None]
            await _read_back(queue, copies)
            for run in copies:
                yield run, run.head.produced_ms

    async def show(self, rows: MessageRows, queue: Queue, message: Run, time_ms: int | None) -> None:
        body = message.bodies[0]
        more: dict[str, Any] = {"dead_letter": body.about} if isinstance(body, DeadLetter) else {}
        if message.first >= JOB_FIRST:
            more |= message.head.shown
            times = self._engine.times
            if message.head.due > times.now_ms():
                more["due_ms"] = times.unix_ms_of(message.head.due)
        rows.add(message.first, body, time_ms, properties={"deliveries": message.tries, **more})

    def now_ms(self) -> int:
        return self._engine.times.unix_ms()

    def death(self, queue: Queue, run: Run, place: int) -> Death[Queue] | None:
        body = run.bodies[place]
        if not isinstance(body, DeadLetter):
            return None
        origin = self._engine.find(body.origin)
        if origin is None or origin is queue:
            return None
        return Death(origin, body.reason, body.job.get("key", ""), body.time_ms)

    async def ready_to_sift(self, queue: Queue) -> None:
        await self.shown(queue)

    async def load(self, queue: Queue) -> bool:
        cold = queue.cold
        if cold is None or not queue.is_cold:
            return False
        cold.fetch()
        while queue.is_cold and not (queue.ready.loaded or cold.teller.error or queue.deleted):
            await self._engine.store.in_thread(_nothing)
            cold.fetch()
        return queue.ready.loaded > 0

    def take_front(self, queue: Queue, most: int) -> list[Run]:
        if queue.ready.requeued:
            return [queue.ready.take_requeued(most)]
        runs = queue.take_row(most)
        if not runs and queue.jobs is not None and not queue.is_cold:
            runs = queue.jobs.take_some(most)
        return runs

    async def read(self, queue: Queue, runs: list[Run]) -> None:
        queue.drop(await _read_back(queue, runs))

    def return_front(self, queue: Queue, runs: list[Run]) -> None:
        for run in runs:
            queue.place(run)
        if queue.expiry is not None:
            queue.expiry.bury()

    def room(self, target: Queue, run: Run | None) -> float:
        return max(target.room, 0)

    def send(self, queue: Queue, run: Run, target: Queue) -> Ticket | None:
        letters = [bytes(body) for body in run.bodies if job_of(run, body) is None]
        jobs = [(head, bytes(body)) for body in run.bodies if (head := job_of(run, body)) is not None]
        return self._engine.move(queue, target, (run,), letters, Reason.REDRIVEN, jobs)

    def drop(self, queue: Queue, run: Run) -> Ticket | None:
        ticket = queue.discard((run,), Reason.PURGED)
        self._engine.counts.purged += len(run)
        return ticket

    async def purge(self, queue: Queue) -> int:
        """All that is there now, and that nobody holds, leaves: how many. What is not in the row goes in
        turns: there may be a million. Raises Refusal, StoreError."""
        await self.shown(queue)
        tickets: list[Ticket | None] = []
        purged, turn = 0, TaskTurn()
        left = self.waiting(queue) - (queue.tail - queue.head)
        while left > 0 and not queue.deleted and (runs := queue.take_returned(min(left, RUN_MOST))):
            try:
                tickets.append(queue.discard(runs, Reason.PURGED))
            except Refusal:
                self.return_front(queue, runs)
                raise
            count = sum(map(len, runs))
            purged += count
            left -= count
            self._engine.counts.purged += count
            await turn.others()
        rest, ticket = queue.purge()
        self._engine.counts.purged += rest
        self._engine.sync_budget()
        for each in (*tickets, ticket):
            await self._engine.store.wait(each)
        return purged + rest

    async def named(self, queue: Queue, name: MessageName) -> tuple[Run, int | None, str]:
        if name.dedup or name.number >= JOB_FIRST:
            run, state = named_jobs.get(self._jobs(queue, name), name)
            if await _read_back(queue, [run]):
                raise Refusal(Status.INTERNAL, f"the job {name} is lost to damage of the log")
            return run, run.head.produced_ms, state
        number, expiry = name.number, queue.expiry
        if (holder := _holder_of(queue, number)) is not None:
            return holder[2], None, "held"
        waits = expiry is not None and (number >= expiry.released or expiry.delayed_run(number) is not None)
        async with aclosing(self.look(queue, 1, number)) as messages:
            found = [each async for each in messages if each[0].first == number]
        if not found:
            raise ObjectMissing(f"no message {name} is in {queue.text}")
        return *found[0], "waiting" if waits else "ready"

    async def cancel_named(self, queue: Queue, name: MessageName) -> Ticket | None:
        return named_jobs.cancel(self._jobs(queue, name), name)

    async def reschedule_named(self, queue: Queue, name: MessageName, time: NewTime) -> Ticket | None:
        if not name.dedup and name.number < JOB_FIRST and time == NewTime(0):
            if queue.expiry is None or queue.expiry.delayed_run(name.number) is None:
                raise BadArgument(f"{name} waits as its queue says: change its delay_ms")
            queue.expiry.hasten(name.number)
            return None
        return named_jobs.reschedule(self._jobs(queue, name), name, time)

    def take_back(self, queue: Queue, name: MessageName, *, dry_run: bool) -> None:
        number = named_jobs.find(queue.jobs, name) if name.dedup and queue.jobs is not None else name.number
        holder = _holder_of(queue, number)
        if holder is None:
            raise BadArgument(f"{name} is not held any more")
        consumer, delivery_id, _ = holder
        if consumer.prefetches:
            raise BadArgument(f"{name} is held by a bridge: pause it, and what it holds goes back")
        if not dry_run and (run := consumer.give_back(delivery_id)) is not None:
            queue.requeue((run,), nacked=False)

    def _jobs(self, queue: Queue, name: MessageName) -> Jobs:
        """Raises ObjectMissing where that is none of them, BadArgument for what PRODUCE has brought."""
        if not name.dedup and name.number < JOB_FIRST:
            raise BadArgument(
                f"{name} is no job: `discard` takes a message of PRODUCE out, and it has no time"
            )
        if queue.jobs is None or queue.jobs.sequence_of(name) is None:
            raise ObjectMissing(f"no job {name} is in {queue.text}")
        return queue.jobs

    async def settle(self, ticket: Ticket | None = None) -> None:
        self._engine.commit_pending()
        await self._engine.store.wait(ticket)

    async def shown(self, target: Queue) -> None:
        """Wait until the disk has accepted or refused what is in the queue now."""
        if target.log is not None:
            with suppress(StoreError):
                await self._engine.store.wait(target.log.newest_arrival)


def _holder_of(queue: Queue, number: int) -> tuple[Consumer, bytes, Run] | None:
    """Who holds a message: the consumer, the delivery's id, and the message."""
    for consumer in queue.engine.consumers.values():
        for ids, source, run in consumer.unacked:
            if source is queue and number in run.numbers:
                place = number - run.first
                return consumer, ids[place], run.part(place, place + 1)
    return None


async def _smallest(items: Iterable[_T], most: int, key: Callable[[_T], int]) -> list[_T]:
    """The `most` smallest, in order. There may be a million to look at: others run in between."""
    found: list[_T] = []
    turn = TaskTurn()
    for batch in batched(items):
        found += batch
        if len(found) > most + SORTED_LEAST:
            found.sort(key=key)
            del found[most:]
        if turn.over(len(batch)):
            await turn.others()
    found.sort(key=key)
    return found[:most]


async def logged(log: Log, offset: int, seq: int, end: int) -> AsyncGenerator[tuple[Run, int]]:
    """The messages from `seq` to `end`, which are in the log from `offset` on. Raises Refusal."""
    while seq < end:
        try:
            data = await read_records(log, offset, READ_BYTES)
        except StoreError as error:
            raise Refusal(Status.INTERNAL, str(error)) from None
        if not data:
            return
        for record in records.unpack(data):
            last = record.seq + record.entries
            if record.kind in (RecordKind.ENQUEUED, RecordKind.LETTERS) and last > seq:
                bodies = records.messages_in(data, record)
                for number in range(max(seq, record.seq), min(last, end)):
                    yield Run(None, [bodies[number - record.seq]], number), record.time_ms
                seq = last
        offset += len(data)


async def _read_back(queue: Queue, runs: list[Run]) -> Sequence[Run]:
    """Have jobs in memory. What is lost is taken out of the list, and returned. Raises Refusal."""
    if queue.jobs is None or not any(map(is_cold, runs)):
        return ()
    done = trio.Event()
    queue.jobs.load(runs, done.set)
    await done.wait()
    lost = [run for run in runs if is_lost(run)]
    runs[:] = [run for run in runs if not is_lost(run)]
    if any(map(is_cold, runs)):
        raise Refusal(Status.INTERNAL, f"jobs of {queue.text} cannot be read from the disk")
    return lost


def job_of(run: Run, body: bytes) -> JobHead | None:
    """The head with which a message comes to another queue; None: it is no job there."""
    if run.first >= JOB_FIRST:
        head: JobHead = run.head
        return attrs.evolve(head)
    if isinstance(body, DeadLetter) and body.job:
        before = JobHead.of(body.job)
        return JobHead(
            produced_ms=before.produced_ms,
            priority=before.priority,
            key=before.key,
            dedup=before.dedup,
            headers=before.headers,
        )
    return None


def _nothing() -> None:
    """A step that only lets other tasks run."""

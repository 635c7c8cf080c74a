"""One job by its name, which is its `dedup` key or its sequence: look at it, cancel it, give it another time.

`jobs`: of the queue that it is in. Each function raises Refusal.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dms.expiry import due_at
from dms.records import Reason
from dms.wire import NO_JOB, Refusal, malformed, refusal_for
from shared.errors import StoreError

if TYPE_CHECKING:
    from dms.jobs import Jobs
    from shared.queues.naming import MessageName, NewTime
    from shared.queues.runs import Run
    from shared.storage.store import Ticket


def find(jobs: Jobs, name: MessageName) -> int:
    """The job's sequence."""
    seq = jobs.sequence_of(name)
    if seq is None:
        raise malformed(f"{NO_JOB}{name} is in {jobs.queue.text}")
    return seq


def get(jobs: Jobs, name: MessageName) -> tuple[Run, str]:
    """A copy of the job as it is now, which may be cold, and its state: `waiting`, `ready` or `held`."""
    seq = find(jobs, name)
    run = jobs.copy_of(seq)
    assert run is not None
    return run, "waiting" if seq in jobs.waiting else "held" if seq in jobs.held else "ready"


def cancel(jobs: Jobs, name: MessageName) -> Ticket | None:
    """The job leaves the queue. None: done."""
    queue, run = jobs.queue, _taken(jobs, name)
    try:
        ticket = queue.discard((run,), Reason.CANCELLED)
    except Refusal:
        jobs.place(run)
        raise
    queue.engine.counts.cancelled += 1
    if queue.line:  # it may have held its key
        queue.dispatch()
    return ticket


def reschedule(jobs: Jobs, name: MessageName, time: NewTime) -> Ticket | None:
    """The job gets another time. None: done."""
    queue, times, run = jobs.queue, jobs.queue.engine.times, _taken(jobs, name)
    head, now = run.head, times.now_ms()
    before = head.due, head.at_ms
    wall_ms = times.wall_ms()
    delay_ms = max(time.due_ms(wall_ms) - wall_ms, 0)
    if 0 < head.expires < now + delay_ms:
        jobs.place(run)
        raise malformed("it would die undelivered: its ttl_ms ends before that")
    due, ticket = due_at(now, delay_ms), None
    if queue.log is not None:
        try:
            ticket = queue.log.rescheduled(
                run.first, due, time.at_ms, partial(_undo_reschedule, jobs, run.first, *before)
            )
        except StoreError as error:
            jobs.place(run)
            raise refusal_for(error) from None
    head.due, head.at_ms = due, time.at_ms
    jobs.place(run)
    return ticket


def _undo_reschedule(jobs: Jobs, seq: int, due: int, at_ms: int) -> None:
    run = jobs.take_out(seq)
    if run is not None:
        run.head.due, run.head.at_ms = due, at_ms
        jobs.place(run)


def _taken(jobs: Jobs, name: MessageName) -> Run:
    run = jobs.take_out(find(jobs, name))
    if run is None:
        raise malformed(f"the job {name} is held by a consumer")
    return run

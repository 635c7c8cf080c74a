"""Jobs that are in the log alone, and reading them back.

A job that waits for its time, or that is ready while memory is scarce, is *cold*: its body and headers are in
its record, and the queue knows what decides about it (`cold_job`). As a run it has an empty body. Whoever
delivers, moves or shows it reads it back first (`shared.queues.cold`).
"""

from __future__ import annotations

import json
import re

from dms import records
from dms.job_head import JobHead, about_of, pack_job, times_of, unpack_job
from shared.queues.cold import LOST, PLAIN_BYTES, due_of, is_cold, packed, place_of, tries_of
from shared.queues.runs import Run

READY_BYTES = 500
"""Memory of a cold job whose time has come, beside what is known of it: with its places in the queue."""
NO_RECORD = -1
"""The offset of a job that is in memory alone."""
_DECIDING = ("expires", "at", "priority", "key", "dedup", "known_until", "text")
_AT = b'"at"'
_DECIDES = re.compile(f'"(?:{"|".join(_DECIDING)})"'.encode())


def cold_job(place: int, due: int, tries: int, head: JobHead) -> bytes:
    """What a queue knows of a cold job, which no job in a record begins as: the age at which it is due among
    its numbers; and, as JSON, what of its head decides about it, if anything does."""
    decides = b""
    if head.key or head.expires or head.dedup or head.priority or head.at_ms or head.text:
        known = {name: value for name, value in head.about.items() if name in _DECIDING}
        decides = json.dumps(known).encode()
    return packed(place, due, tries, decides)


def cold_job_of(form: bytes, place: int) -> bytes:
    """Of a job as its record has it, which is at `place`."""
    tries, due = times_of(form)
    if _DECIDES.search(about_of(form)):
        return cold_job(place, due, tries, unpack_job(form)[1])
    return packed(place, due, tries, b"")


def is_cold_job(job: bytes) -> bool:
    """Whether a job is cold, or as it stands in a record."""
    return job[0] == 0xFF


def head_of(job: bytes) -> JobHead:
    """Its head, as far as that is known."""
    head = JobHead.of(json.loads(job[PLAIN_BYTES:])) if len(job) > PLAIN_BYTES else JobHead()
    head.cold, head.due, head.cost_bytes = True, due_of(job), READY_BYTES + len(job)
    return head


def timed(job: bytes, tries: int, due: int) -> bytes:
    """The same job with so many deliveries, and due at another time."""
    return packed(place_of(job), due, tries, job[PLAIN_BYTES:])


def tried(job: bytes, tries: int, due: int) -> bytes:
    """The same job, that was delivered so often: no time of the wall clock counts any more."""
    return timed(job, tries, due) if _AT not in job else rescheduled(timed(job, tries, due), due, 0)


def rescheduled(job: bytes, due: int, at_ms: int) -> bytes:
    head = head_of(job)
    head.at_ms = at_ms
    return cold_job(place_of(job), due, tries_of(job), head)


def said_of(job: bytes, text: str) -> bytes:
    """The same job with what a NACK said of it."""
    head = head_of(job)
    head.text = text
    return cold_job(place_of(job), head.due, tries_of(job), head)


def with_decided(form: bytes, job: bytes) -> bytes:
    """A job as its record has it, with what is known of it now."""
    _, head, body = unpack_job(form)
    now = head_of(job)
    head.due, head.at_ms, head.text = now.due, now.at_ms, now.text
    return pack_job(tries_of(job), head, body)


def cold_run(seq: int, job: bytes) -> Run:
    return Run(head_of(job), [b""], seq, tries_of(job), place_of(job))


def make_cold(run: Run) -> None:
    """Forget the body of a job whose record is in the log. Its memory is not counted meanwhile."""
    job = cold_job(run.offset, run.head.due, run.tries, run.head)
    run.bodies, run.head = [b""], head_of(job)


def read_back(run: Run, data: bytes, start: int) -> None:
    """Have a job's body and head from its record, in records that stand at `start`."""
    if not (is_cold(run) and run.bodies):
        return  # it was taken apart meanwhile
    form = records.form_at(data, run.offset - start, run.first)
    if form is None:
        run.offset = LOST
        return
    known = run.head
    _, run.head, body = unpack_job(form)
    run.head.due, run.head.at_ms, run.head.text = known.due, known.at_ms, known.text
    run.bodies = [body]

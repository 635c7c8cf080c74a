"""Jobs that are in the log alone, and reading them back.

A job that waits for its time, or that is ready while memory is scarce, is *cold*: its body and headers are in
its record, and the queue knows what decides about it (`cold_job`). As a run it has an empty body. Whoever
delivers, moves or shows it reads it back first (`ColdJobs.load`).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from dms import records
from dms.job_head import JobHead, about_of, pack_job, times_of, unpack_job
from shared.errors import CorruptRecord, LogDeleted, OutOfRange, StoreError
from shared.queues.cold import ColdReader
from shared.queues.runs import Run

if TYPE_CHECKING:
    from dms.cold import ColdRow

READ_BYTES = 32 << 10
"""Bytes read at once: jobs that are due together came together, or did not."""
READY_BYTES = 500
"""Memory of a cold job whose time has come, beside what is known of it: with its places in the queue."""
NO_RECORD = -1
"""The offset of a job that is in memory alone."""
PLAIN_BYTES = 15
"""Of a cold job about which nothing is known but its numbers."""
_MARK = 0xFF << 112
_LOST = -2
_TRIES_MAX = (1 << 24) - 1
_DECIDING = ("expires", "at", "priority", "key", "dedup", "known_until", "text")
_DECIDES = re.compile(f'"(?:{"|".join(_DECIDING)})"'.encode())


def cold_job(place: int, due: int, tries: int, head: JobHead) -> bytes:
    """What a queue knows of a cold job: a byte that no job in a record begins with, where its record begins
    (6 bytes), the age at which it is due (5: 34 years), its deliveries (3); and, as JSON, what of its head
    decides about it, if anything does.

    Bytes, and not an object: 48 bytes of memory for most, with one more 64, and nothing for the garbage
    collector.
    """
    decides = b""
    if head.key or head.expires or head.dedup or head.priority or head.at_ms or head.text:
        known = {name: value for name, value in head.about.items() if name in _DECIDING}
        decides = json.dumps(known).encode()
    return _packed(place, due, tries, decides)


def cold_job_of(form: bytes, place: int) -> bytes:
    """Of a job as its record has it, which is at `place`."""
    tries, due = times_of(form)
    if _DECIDES.search(about_of(form)):
        return cold_job(place, due, tries, unpack_job(form)[1])
    return _packed(place, due, tries, b"")


def _packed(place: int, due: int, tries: int, decides: bytes) -> bytes:
    numbers = _MARK | place << 64 | due << 24 | min(tries, _TRIES_MAX)
    return numbers.to_bytes(PLAIN_BYTES) + decides


def is_cold_job(job: bytes) -> bool:
    """Whether a job is cold, or as it stands in a record."""
    return job[0] == 0xFF


def place_of(job: bytes) -> int:
    return int.from_bytes(job[1:7])


def due_of(job: bytes) -> int:
    return int.from_bytes(job[7:12])


def tries_of(job: bytes) -> int:
    return int.from_bytes(job[12:PLAIN_BYTES])


def head_of(job: bytes) -> JobHead:
    """Its head, as far as that is known."""
    head = JobHead.of(json.loads(job[PLAIN_BYTES:])) if len(job) > PLAIN_BYTES else JobHead()
    head.cold, head.due, head.cost_bytes = True, due_of(job), READY_BYTES + len(job)
    return head


def moved(job: bytes, place: int) -> bytes:
    """The same job with its record elsewhere."""
    return job[:1] + place.to_bytes(6) + job[7:]


def timed(job: bytes, tries: int, due: int) -> bytes:
    """The same job with so many deliveries, and due at another time."""
    return _packed(place_of(job), due, tries, job[PLAIN_BYTES:])


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


def is_cold(run: Run) -> bool:
    """Whether a job is to be read back before anybody gets it."""
    return run.head is not None and run.head.cold


def is_lost(run: Run) -> bool:
    """Whether it was to be read back, and is not there."""
    return run.offset == _LOST


def make_cold(run: Run) -> None:
    """Forget the body of a job whose record is in the log. Its memory is not counted meanwhile."""
    job = cold_job(run.offset, run.head.due, run.tries, run.head)
    run.bodies, run.head = [b""], head_of(job)


@attrs.define(eq=False)
class ColdJobs(ColdReader):
    """Reads cold jobs of one queue back from its log. Damage is told by the row's reader."""

    _row: ColdRow
    _left: deque[Run] = attrs.field(factory=deque, init=False)
    _then: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def load(self, runs: Iterable[Run], then: Callable[[], None]) -> None:
        """Have the bodies and heads of these jobs in memory, as far as they are cold; `then` is called when
        they are, maybe at once. One that is lost, or has left meanwhile, is `is_lost` then. One that cannot
        be read is cold still: `row.ended`."""
        if not self._row.ended:
            self._left += sorted([run for run in runs if is_cold(run)], key=attrgetter("offset"))
        self._then.append(then)
        if not self.reading:
            if self._left:
                self.offset = self._left[0].offset
                self._read_on(READ_BYTES)
            if not self.reading:
                self._on_read()

    def _on_read(self) -> None:
        done, self._then = self._then, []
        for then in done:
            then()

    def _takes_more(self, data: bytes | StoreError) -> bool:
        left = self._left
        if isinstance(data, CorruptRecord):
            lost = self.log.lost_at(self.offset)
            while left and self.offset <= left[0].offset < lost.end:
                left.popleft().offset = _LOST
            self._row.lose([lost])
        elif isinstance(data, LogDeleted | OutOfRange) or data == b"":
            left.popleft().offset = _LOST
        elif isinstance(data, StoreError):
            left.clear()
            self._row.cannot_read(data)
        else:
            while left and 0 <= left[0].offset - self.offset < len(data):
                _read_back(left.popleft(), data, self.offset)
        if not left:
            return False
        self.offset = left[0].offset
        return True


def _read_back(run: Run, data: bytes, start: int) -> None:
    """Have a job's body and head from its record, in records that stand at `start`."""
    if not (is_cold(run) and run.bodies):
        return  # it was taken apart meanwhile
    form = records.form_at(data, run.offset - start, run.first)
    if form is None:
        run.offset = _LOST
        return
    known = run.head
    _, run.head, body = unpack_job(form)
    run.head.due, run.head.at_ms, run.head.text = known.due, known.at_ms, known.text
    run.bodies = [body]

"""Copies of jobs that are there for long: what leaves the log around them would stay on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from dms import records
from dms.records import RecordKind
from shared.queues.copying import COPY_BYTES, Copying

if TYPE_CHECKING:
    from dms.queue_log import QueueLog


@attrs.define(eq=False)
class JobCopying(Copying):
    """Copies the jobs of one queue from a stretch of its log, step by step."""

    _jobs: QueueLog
    _at: int = attrs.field(default=0, init=False)
    _end: int = attrs.field(default=0, init=False)
    _inside: bool = attrs.field(default=False, init=False)

    def begin(self, start: int, end: int) -> None:
        """Copy the jobs between, unless it does that already."""
        if not self.busy and self._at >= self._end:
            self._at, self._end = start, end
            self._jobs.work(self._steps())

    def _steps(self) -> Iterator[None]:
        while self._at < self._end and not self.busy:
            before, self._inside = self._at, True
            self.copy(self._at, self._end, COPY_BYTES)
            self._inside = False
            if self._at == before and not self.busy:
                self.stopped()  # also where the disk takes no more
            yield
        if not self.busy:
            self._jobs.all_copied(self._end)

    def copied(self, end: int) -> None:
        self._at = max(end, self._at)
        if not self._inside:
            self._jobs.work(self._steps())

    def stopped(self) -> None:
        """The next snapshot begins anew."""
        self._end = self._at

    def copies_in(self, data: bytes, start: int) -> Iterator[tuple[int, int, int, bytes, int]]:
        self._jobs.flush_notes()  # a copy says how often its job was delivered
        at = 0
        for record in records.unpack(data):
            if record.kind in (RecordKind.JOBS, RecordKind.KEPT):
                for seq, form in records.forms_in(data, record):
                    if self._jobs.is_at(seq, start + at):
                        yield seq, start + at, start + record.end, self._jobs.copy_of(seq, form), 1
            at = record.end

    def is_at(self, number: int, place: int) -> bool:
        return self._jobs.is_at(number, place)

    def move(self, number: int, before: int, place: int) -> None:
        self._jobs.move(number, before, place)

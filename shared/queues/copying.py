"""Records of messages that are there for long, written again at the log's end, so that they do not pin it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from shared.errors import StoreError

if TYPE_CHECKING:
    from shared.storage.store import Log, Ticket

COPIES = 64
COPY_BYTES = 256 << 10
"""At most so many of the oldest messages, and bytes of them, are written again at one change."""


@attrs.define(eq=False)
class Copying:
    """Writes the oldest messages of one queue again, some at a time. Until the copies are on the disk it is
    the originals that count."""

    log: Log
    busy: bool = attrs.field(default=False, init=False)
    """Copies are being read or written."""
    _unreadable: int = attrs.field(default=-1, init=False)
    """What stands there could not be read, and is not copied: it holds the log until it has left."""

    def copies_in(self, data: bytes, start: int) -> Iterator[tuple[int, int, int, bytes, int]]:
        """The messages whose records stand in `data`, which begins at `start` in the log, and count: number,
        place, where the record ends, the copy, and how many records that is."""
        raise NotImplementedError

    def is_at(self, number: int, place: int) -> bool:
        """Whether the record that counts of this message is there."""
        raise NotImplementedError

    def move(self, number: int, before: int, place: int) -> None:
        """The record of this message that counts was there before, and is there from now on."""
        raise NotImplementedError

    def copied(self, end: int) -> None:
        """All below `end` that was to be copied is."""

    def stopped(self) -> None:
        """What was to be copied cannot be read, or the disk has refused the copies."""

    def copy(self, start: int, bound: int, size: int) -> None:
        """Copy what counts of the records from `start` on, within so many bytes and below `bound`."""
        if not self.busy and start < bound and start != self._unreadable:
            self.busy = True
            self.log.read(start, size, partial(self._copy, start, bound))

    def _copy(self, start: int, bound: int, data: bytes | StoreError) -> None:
        self.busy = False
        if self.log.deleted:
            return
        if isinstance(data, StoreError):
            self._unreadable = start
            self.stopped()
            return
        copies: list[tuple[int, int, int]] = []
        size, end = 0, start + len(data)
        ticket: Ticket | None = None
        for number, place, behind, copy, count in self.copies_in(data, start):
            if place >= bound or len(copies) == COPIES or size > COPY_BYTES:
                end = place
                break
            try:
                offset, ticket = self.log.append(copy, count, reserved=True)
            except StoreError:
                end = place
                break  # it can wait
            copies.append((number, place, offset))
            size += behind - place
        if ticket is None:
            self.copied(end)
        else:
            self.busy = True
            ticket.when_done(partial(self._done, copies, end))

    def _done(self, copies: Sequence[tuple[int, int, int]], end: int, ticket: Ticket) -> None:
        self.busy = False
        if ticket.error is not None or self.log.deleted:
            self.stopped()
            return
        for number, place, offset in copies:
            if self.is_at(number, place):
                self.move(number, place, offset)
        self.copied(end)

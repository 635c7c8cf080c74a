"""A durable queue's log: what was put in and what was taken out, from which its messages come back.

The log keeps its own size down. All below the oldest message that is still there is dropped; while less than
half of the log is live, the oldest are written again at its end, a few at each change, and what they were
copied from goes when the copies are on the disk. So one message that nobody takes never pins the disk, and
there is no pause. What is cold (`cold`) is not copied: it moves on by being read.
"""

from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter

from dmp.message import Head, Message
from dmp.queue_records import KNOWN_LOST, purged, put, put_bytes, taken
from shared.errors import StoreError
from shared.storage.store import Log, Ticket

_SLACK_BYTES = 256 << 10
"""Dead bytes that nobody minds; also the least that is dropped at once."""
_COPIES = 64
_COPY_BYTES = 256 << 10
"""At most so many of the oldest messages, and bytes of them, are written again at one change."""


class QueueLog:
    """One queue's log, and where in it its messages stand. `cold_at`: from there on is what is cold."""

    __slots__ = ("_copied", "_copying", "_live", "_live_bytes", "_taken", "cold_at", "log")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.cold_at: int | None = None
        self._live: dict[int, Message] = {}  # in memory: by number, in the order of their records
        self._copied: dict[int, Message] = {}  # the same for those that were written again
        self._copying = False
        self._live_bytes = 0
        self._taken: list[int] = []

    def records(self, head: Head, messages: Sequence[Message]) -> bytes:
        """What puts a run into the queue."""
        return put(head, messages)

    def appended(self, head: Head, messages: Sequence[Message], offset: int) -> int:
        """Their records went into the log, from `offset` on; where they end."""
        size = put_bytes(head)
        for message in messages:
            message.offset = offset
            offset += size
        return offset

    def keep(self, messages: Sequence[Message]) -> None:
        """They are on the disk, and in memory. Those that have no record are not looked at."""
        live = self._live
        head: Head | None = None
        size = total = 0
        for message in messages:
            if message.offset >= 0:
                live[message.number] = message
                if message.head is not head:
                    head = message.head
                    size = put_bytes(head)
                total += size
        self._live_bytes += total

    def found(self, messages: Sequence[Message], cold_at: float) -> None:
        """A start has found these, in the order of their records; `cold_at`: where the first that is cold is.

        Those behind it were written again: what is cold comes to memory later, and stands before them.
        """
        self.keep(messages)
        for message in messages:
            if message.offset > cold_at:
                self._copied[message.number] = self._live.pop(message.number)

    def keep_cold(self, messages: Sequence[Message]) -> None:
        """They are on the disk alone."""
        self._live_bytes += sum([put_bytes(message.head) for message in messages])

    def found_cold(self, record_bytes: int) -> None:
        """A start has found so much that stays there."""
        self._live_bytes += record_bytes

    def warmed(self, messages: Sequence[Message]) -> None:
        """They were cold, and are in memory now."""
        for message in messages:
            self._live[message.number] = message

    def take(self, message: Message) -> None:
        """It leaves the queue; `flush` writes that down."""
        number = message.number
        if self._live.pop(number, None) is not None or self._copied.pop(number, None) is not None:
            self._live_bytes -= put_bytes(message.head)
            self._taken.append(number)

    def take_cold(self, first: int, end: int) -> None:
        """All that is cold leaves the queue. Raises StoreError."""
        self.log.append(purged(first, end), 1, reserved=True)
        self._live_bytes = sum(
            put_bytes(message.head) for held in (self._live, self._copied) for message in held.values()
        )

    def lost_is_known(self) -> None:
        """What the log cannot give back is not missed any more. Raises StoreError."""
        self.log.append(purged(*KNOWN_LOST), 1, reserved=True)

    def leaving(self, messages: Sequence[Message]) -> bytes:
        """The record that these leave the queue, for `Store.append_all`; b"" where they have none."""
        numbers = [message.number for message in messages]
        return taken([number for number in numbers if number in self._live or number in self._copied])

    def left(self, messages: Sequence[Message]) -> None:
        """That record is written."""
        before = len(self._taken)
        for message in messages:
            self.take(message)
        del self._taken[before:]

    def flush(self) -> Ticket | None:
        """Write down what was taken, and tidy. Raises StoreError; then it is tried again with the next."""
        if self.log.deleted:
            return None
        ticket = None
        if self._taken:
            _, ticket = self.log.append(taken(self._taken), 1, reserved=True)
            self._taken = []
        with suppress(StoreError):  # tidying can wait; what was taken is written
            self._tidy()
        return ticket

    def _tidy(self) -> None:
        log = self.log
        dead = log.visible - log.first - self._live_bytes
        if dead < _SLACK_BYTES:
            return
        if dead > self._live_bytes and not self._copying:
            self._copy()
        oldest = self._oldest()
        below = log.visible if oldest is None else oldest.offset
        if self.cold_at is not None:
            below = min(below, self.cold_at)
        if below - log.first >= _SLACK_BYTES:
            log.drop_below(below)

    def _oldest(self) -> Message | None:
        """The one whose record stands first."""
        fronts = [next(iter(held.values())) for held in (self._live, self._copied) if held]
        return min(fronts, key=attrgetter("offset")) if fronts else None

    def _copy(self) -> None:
        """Write the oldest again. Until the copies are on the disk it is the originals that count."""
        log, bound = self.log, self.log.visible
        if self.cold_at is not None:
            bound = min(bound, self.cold_at)
        copies: list[tuple[Message, int]] = []
        copied = 0
        for held in sorted(filter(None, (self._live, self._copied)), key=_first_offset):
            for message in held.values():
                if message.offset >= bound or len(copies) == _COPIES or copied > _COPY_BYTES:
                    break
                record = put(message.head, (message,))
                offset, ticket = log.append(record, 1, reserved=True)
                copies.append((message, offset))
                copied += len(record)
        if copies:
            self._copying = True
            ticket.when_done(lambda ticket: self._copies_done(ticket, copies))

    def _copies_done(self, ticket: Ticket, copies: Sequence[tuple[Message, int]]) -> None:
        self._copying = False
        if ticket.error is not None or self.log.deleted:
            return
        for message, offset in copies:
            number = message.number
            if self._live.pop(number, None) is not None or self._copied.pop(number, None) is not None:
                message.offset = offset
                self._copied[number] = message


def _first_offset(held: dict[int, Message]) -> int:
    return next(iter(held.values())).offset

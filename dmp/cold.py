"""The tail of a durable queue that is not in memory: its messages are read back from the queue's log, in
batches, when their turn comes.

What is cold stands in the log in the order of its numbers, behind everything that the queue has in memory,
and nothing of it has left: a queue gives out from its front only. So a place in the log, and how much there
is, says it all; and when each run of messages expires, where they do.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

import attrs

from dmp.message import Message
from dmp.queue_log import QueueLog
from dmp.queue_records import PAGES, PUTS, MessageReader, number_in, places
from shared.errors import CorruptRecord, StoreError
from shared.storage.log import Lost

READ_BYTES = 256 << 10
"""Read back at once."""
_EXPIRY_SECONDS = 0.01
"""Messages whose lives end within this of each other are noted as one run; they may live so much longer."""


@attrs.frozen
class Left:
    """What a start leaves in the log: so many messages, numbered from `first`, from `offset` on; `large`:
    references of large bodies, by number."""

    count: int
    body_bytes: int
    record_bytes: int
    first: int
    end: int
    offset: int
    large: dict[int, bytes]


class Cold:
    """`count` messages with `body_bytes`, numbered from `first` up to `end` (there may be gaps).

    `reading`: some are on their way. `large`: references of large bodies, by number: the queue has these,
    also of messages that cannot be read. `lost`: so much was passed over, since it cannot be read. `damaged`:
    why nothing more can be.
    """

    __slots__ = (
        "_epoch",
        "_expires",
        "_log",
        "_offset",
        "_ours",
        "_reader",
        "body_bytes",
        "count",
        "damaged",
        "end",
        "first",
        "large",
        "lost",
        "reading",
    )

    def __init__(self, log: QueueLog) -> None:
        self._log = log
        self._reader = MessageReader(log.log.file.path)
        self._offset = 0
        self._ours = 0  # the first number of this process
        self._epoch = 0
        self._expires: deque[tuple[int, float]] = deque()  # up to this number, at this time
        self.count = 0
        self.body_bytes = 0
        self.first = self.end = 0
        self.reading = False
        self.large: dict[int, bytes] = {}
        self.lost: Lost | None = None
        self.damaged: StoreError | None = None

    def add(self, messages: Sequence[Message]) -> None:
        """They came, stand in the log, and can be read there."""
        if not self.count:
            self.first = messages[0].number
            self._move_to(messages[0].offset)
        elif not self._expires:
            self._expires.append((self.end - 1, math.inf))  # of those before
        self.count += len(messages)
        self.body_bytes += sum([message.head.body_bytes for message in messages])
        self.end = messages[-1].number + 1
        self.large.update({message.number: message.body for message in messages if message.head.large})
        self._log.keep_cold(messages)
        for expires, those in groupby(messages, attrgetter("expires")):
            self._note(expires, [message.number for message in those][-1])

    def restore(self, found: Left, ours: int) -> None:
        """What a start has found, and left where it was. `ours`: the first number not used before."""
        self.count, self.body_bytes = found.count, found.body_bytes
        self.first, self.end = found.first, found.end
        self.large = found.large
        self._ours = ours
        self._log.found_cold(found.record_bytes)
        self._move_to(found.offset)

    def clear(self) -> None:
        """All of it has left."""
        self._epoch += 1  # what is on its way is not wanted any more
        self.count = self.body_bytes = 0
        self.reading = False
        self._expires.clear()
        self._log.cold_at = None

    def warm(self, done: Callable[[list[Message]], None]) -> None:
        """Read the first of it; `done` gets what came, now or later: nothing where none of it can be read.

        An `expires` of inf says that this is not known here.
        """
        if self.reading or not self.count or self.damaged is not None:
            return
        epoch = self._epoch
        at_once = again = True

        def came(data: bytes | StoreError) -> None:
            nonlocal again
            if epoch != self._epoch:
                return
            self.reading = False
            messages: list[Message] = []
            if isinstance(data, CorruptRecord) or data == b"":
                self._pass_over()
            elif isinstance(data, StoreError):
                self.damaged = data
            else:
                messages = self._read(data)
            if messages or self.damaged is not None or not self.count:
                done(messages)
            elif at_once:  # nothing but what is not there any more: read on
                again = True
            else:
                self.warm(done)

        while again:
            again = False
            self.reading = True
            self._log.log.read(self._offset, READ_BYTES, came)
        at_once = False

    def _pass_over(self) -> None:
        """Go on behind what cannot be read; it is lost."""
        log = self._log.log
        if self._offset < log.visible:
            self.lost = log.lost_at(self._offset)
            self._move_to(self.lost.end)
        else:
            self.lost = self.lost or Lost(self._offset, 0, self.count)
            self.clear()

    def _read(self, data: bytes) -> list[Message]:
        start = self._offset
        messages: list[Message] = []
        for op, at, end in places(data):
            if op in PUTS or op in PAGES:
                number = number_in(data, at)
                if number < self.first or (op in PAGES and number < self._ours):
                    continue  # an older one, copied forward; or one that went with its process
                try:
                    message = self._reader.read(data, at, end, start + at - 4)
                except CorruptRecord:
                    self.lost = Lost(start + at, end - at, 1)
                    continue
                if message.head.large and self.large.pop(number, None) is None:
                    continue  # a start has not found the body, and did not count it
                message.redelivered = number < self._ours
                messages.append(message)
                self.first = number + 1
                if len(messages) == self.count:
                    break
        self.count -= len(messages)
        self.body_bytes -= sum([message.head.body_bytes for message in messages])
        self._date(messages)
        self._log.warmed(messages)
        if self.count:
            self._move_to(start + len(data))
        else:
            self.clear()
        return messages

    def _move_to(self, offset: int) -> None:
        self._offset = self._log.cold_at = offset

    def _note(self, expires: float, last: int) -> None:
        runs = self._expires
        if runs and runs[-1][1] - _EXPIRY_SECONDS <= expires <= runs[-1][1]:
            runs[-1] = last, runs[-1][1]
        else:
            runs.append((last, expires + _EXPIRY_SECONDS))

    def _date(self, messages: Sequence[Message]) -> None:
        runs = self._expires
        for message in messages:
            while runs and runs[0][0] < message.number:
                runs.popleft()
            if runs and message.number >= self._ours:
                message.expires = runs[0][1]

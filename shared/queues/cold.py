"""What a queue has on disk alone, and reading it back: in order batch after batch, or message by message.

A message that waits for its time alone in the log is *cold*: its queue has it as some bytes (`packed`), which
say where its record begins and what decides about it. As a run it has an empty body, and a head that says so.
Whoever delivers, moves or shows it reads it back first (`ColdMessages`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

import attrs

from shared.errors import CorruptRecord, LogDeleted, OutOfRange, StoreError
from shared.storage.lost import Lost
from shared.turns import Turn

if TYPE_CHECKING:
    import structlog

    from shared.queues.runs import Run
    from shared.queues.timers import Timers
    from shared.storage.store import Log

MESSAGES_BYTES = 32 << 10
"""Read back at once of messages in no order: those that are due together came together, or did not."""
PLAIN_BYTES = 15
"""Of a cold message about which nothing is known but its numbers."""
LOST = -2
"""The offset of a message that was to be read back, and is not there."""
_MARK = 0xFF << 112
_DUE_MAX, _TRIES_MAX = (1 << 40) - 1, (1 << 24) - 1


def packed(place: int, due: int, tries: int, more: bytes = b"") -> bytes:
    """A cold message: 0xFF, where its record begins (6 bytes), when it is due (5: 34 years in milliseconds),
    its deliveries (3); and what else is known.

    Bytes, and not an object: 48 bytes of memory for most, with one more 64, and nothing for the garbage
    collector.
    """
    numbers = _MARK | place << 64 | min(due, _DUE_MAX) << 24 | min(tries, _TRIES_MAX)
    return numbers.to_bytes(PLAIN_BYTES) + more


def place_of(message: bytes) -> int:
    return int.from_bytes(message[1:7])


def due_of(message: bytes) -> int:
    return int.from_bytes(message[7:12])


def tries_of(message: bytes) -> int:
    return int.from_bytes(message[12:PLAIN_BYTES])


def moved(message: bytes, place: int) -> bytes:
    """The same message with its record elsewhere."""
    return message[:1] + place.to_bytes(6) + message[7:]


def is_cold(run: Run) -> bool:
    """Whether a message is to be read back before anybody gets it."""
    return run.head is not None and run.head.cold


def is_lost(run: Run) -> bool:
    """Whether it was to be read back, and is not there."""
    return run.offset == LOST


class DamageTeller:
    """Who says what of one queue's log cannot be read, for all that read it back.

    What is damaged is lost. After any other error, which may pass, nothing is read for a second (`error`
    says why), and then it is tried again. The first of such errors in a row is logged, and that they have
    passed.
    """

    error: StoreError | None = None
    """Why nothing is read now; None: something may be."""
    deadline = math.inf
    scheduled = math.inf
    _fails = False
    """The last read has failed."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers

    @property
    def named(self) -> tuple[structlog.stdlib.BoundLogger, str]:
        """Where to log, and the queue's name there."""
        raise NotImplementedError

    def lose(self, lost: Lost, /) -> None:
        """Messages in this range are lost."""
        raise NotImplementedError

    def refuse(self, error: StoreError) -> None:
        """A read has failed: count it, and tell who waits for a message."""
        raise NotImplementedError

    def read_again(self) -> None:
        """What was not read may be asked for again. The queue may be deleted by now."""
        raise NotImplementedError

    def cannot_read(self, error: StoreError) -> None:
        """Nothing can be read, for another reason than damage."""
        self.error = error
        self.timers.set(self, self.timers.now() + self.timers.second)
        if not self._fails:
            self._fails = True
            log, name = self.named
            log.error(
                "a queue's messages cannot be read: they stay, and it is tried again every second; look at "
                "the disk",
                queue=name,
                reason=str(error),
            )
        self.refuse(error)

    def can_read(self) -> None:
        """Something was read."""
        if self._fails:
            self._fails = False
            log, name = self.named
            log.info("a queue's messages can be read again", queue=name)

    def expire(self, now: float) -> None:
        """The timers': a second has passed."""
        self.error = None
        self.read_again()


@attrs.define(eq=False)
class ColdReader:
    """The cold part of a queue. `offset`: where in the log to read next. At most one read is under way."""

    log: Log
    teller: DamageTeller
    offset: int = attrs.field(default=attrs.Factory(lambda self: self.log.end, takes_self=True), init=False)
    _fetching: object | None = attrs.field(default=None, init=False)
    """The reading under way. Batches of another one are not wanted any more."""

    @property
    def reading(self) -> bool:
        """Whether something is on its way."""
        return self._fetching is not None

    def _takes_more(self, data: bytes | Lost) -> bool:
        """Take what was read at `offset`, or what is lost there, and move that. Returns whether to read
        on."""
        raise NotImplementedError

    def _fails(self, error: StoreError) -> bool:
        """Nothing can be read there. Returns whether to read on."""
        if not self.log.deleted:
            self.teller.cannot_read(error)
        return False

    def _on_read(self) -> None:
        """The reading has ended, later than the call that began it."""
        raise NotImplementedError

    def _read_on(self, size: int) -> None:
        """Read batches of so many bytes until `_takes_more` has enough: before this returns, as far as they
        are at hand."""
        fetching = self._fetching = object()
        inside = True
        more: bool | None = True

        def done(data: bytes | StoreError) -> None:
            nonlocal more
            if self._fetching is not fetching:
                return
            read: bytes | Lost | StoreError = data
            if isinstance(data, CorruptRecord):
                try:
                    read = self.log.lost_at(self.offset)
                except StoreError as error:  # nor can its index be read
                    read = error
            if isinstance(read, StoreError):
                more = self._fails(read)
            else:
                self.teller.can_read()
                more = self._takes_more(read)
            if inside:
                return
            if more:
                self._read_on(size)
            else:
                self._ends(fetching)
            if self._fetching is None:
                self._on_read()

        while more:  # all that was read may have left already
            more = None
            self.log.read(self.offset, size, done)
        inside = False
        if more is not None:
            self._ends(fetching)

    def _ends(self, fetching: object) -> None:
        if self._fetching is fetching:
            self._fetching = None


@attrs.define(eq=False)
class ColdMessages(ColdReader):
    """Reads cold messages of one queue back from its log, in any order and in turns. `read_back`: have a
    message's body and head from its record, in records that stand at an offset; else it is `LOST`.
    `deadline` and `scheduled` belong to `Timers`."""

    _read_back: Callable[[Run, bytes, int], None]
    deadline: float = attrs.field(default=math.inf, init=False)
    scheduled: float = attrs.field(default=math.inf, init=False)
    _turn: Turn = attrs.field(factory=Turn, init=False)
    _left: deque[Run] = attrs.field(factory=deque, init=False)
    _then: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def load(self, runs: Iterable[Run], then: Callable[[], None]) -> None:
        """Have the bodies and heads of these messages in memory, as far as they are cold; `then` is called
        when they are, maybe at once. One that is lost, or has left meanwhile, is `is_lost` then. One that
        cannot be read now is cold still."""
        if self.teller.error is None:
            self._left += sorted([run for run in runs if is_cold(run)], key=attrgetter("offset"))
        self._then.append(then)
        if not self.reading and self.deadline == math.inf:
            self.expire(0)

    def expire(self, now: float) -> None:
        """Go on: the next turn has come."""
        if self._left:
            self._turn.begin()
            self.offset = self._left[0].offset
            self._read_on(MESSAGES_BYTES)
        if not self.reading:
            self._on_read()

    def _on_read(self) -> None:
        if self._left:  # the turn is over
            self.teller.timers.set_now(self)
            return
        done, self._then = self._then, []
        for then in done:
            then()

    def _fails(self, error: StoreError) -> bool:
        if isinstance(error, LogDeleted | OutOfRange):
            return self._takes_more(b"")
        self._left.clear()
        return super()._fails(error)

    def _takes_more(self, data: bytes | Lost) -> bool:
        left = self._left
        if isinstance(data, Lost):
            while left and self.offset <= left[0].offset < data.end:
                left.popleft().offset = LOST
            self.teller.lose(data)
        elif data == b"":
            if left[0].offset == self.offset:  # else its record was moved meanwhile
                left.popleft().offset = LOST
        else:
            while left and 0 <= left[0].offset - self.offset < len(data):
                self._read_back(left.popleft(), data, self.offset)
        if not left:
            return False
        self.offset = left[0].offset
        return not self._turn.over_now()

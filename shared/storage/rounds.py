"""Rounds: what piles up while the last commit is under way, and the tickets that tell what became of it.

A `Round` holds the runs of records of every log that was appended to, and changes of the catalog. It becomes
one batch of the journal, all or nothing. All of it belongs to the trio thread until the round is sealed, and
is not changed any more by appenders then.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Protocol

import attrs
import structlog

from shared.errors import StoreError
from shared.storage.format import BATCH_PAYLOAD_MAX, ENTRY_HEADER_BYTES, Kind
from shared.storage.log import Log

logger = structlog.stdlib.get_logger("brokers.storage")


class Ticket:
    """Says when what was appended counts; shared by everybody who appended in one round in one mode.

    `error` is None where it is durable, as far as its mode asks.
    """

    __slots__ = ("_callbacks", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: StoreError | None = None
        self._callbacks: list[Callable[[Ticket], None]] | None = None

    def when_done(self, callback: "Callable[[Ticket], None]") -> None:
        """Call it exactly once, in the trio thread; at once if it is done. It must not raise."""
        if self.done:
            callback(self)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def resolve(self, error: StoreError | None) -> None:
        """It is done: call everybody who waits."""
        self.done = True
        self.error = error
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # what `call` does, without a call for each: every answer passes here
                logger.exception("a waiter failed", waiter=repr(callback))


def call(callback: Callable[..., None], *arguments: Any) -> None:
    """Call it, and log what it raises: one waiter's bug must not keep the others from being called."""
    try:
        callback(*arguments)
    except Exception:
        logger.exception("a waiter failed", waiter=repr(callback))


class Mode(IntEnum):
    """What a ticket waits for."""

    SYNCED = 0
    WRITTEN = 1
    DIRECT = 2


_SYNCED, _DIRECT = Mode.SYNCED, Mode.DIRECT


def mode_of(log: Log) -> Mode:
    mode = log.mode
    if mode.direct:
        return Mode.DIRECT
    return Mode.SYNCED if mode.mode == "always" else Mode.WRITTEN


class Run:
    """The records of one log in one round, in order, from `offset` on.

    `chunks`: whole records each, `counts`: how many; 0 where it begins one that ends with the next chunk.
    """

    __slots__ = ("chunks", "counts", "end", "journaled", "log", "offset", "round", "ticket", "written")

    def __init__(self, log: Log, round_: "Round", ticket: Ticket, journaled: bool) -> None:
        self.log = log
        self.round = round_
        self.offset = self.end = log.end
        self.chunks: list[bytes | memoryview] = []
        self.counts: list[int] = []
        self.ticket = ticket
        self.journaled = journaled
        self.written: memoryview | None = None  # its records, as they stand in the batch

    def add(self, records: bytes, count: int) -> int:
        """What was promised to the round (`Log.gather`), room for it kept; returns its offset."""
        log = self.log
        offset = log.end
        self.chunks.append(records)
        self.counts.append(count)
        self.round.room -= len(records)
        log.end = offset + len(records)
        if log.fold is not None:
            log.fold(offset, records)
        return offset


@attrs.define(eq=False)
class Change:
    """A change of the catalog: CREATE, DELETE, FIRST or MODE. `before`: what FIRST or MODE replaced."""

    kind: Kind
    log: Log
    offset: int = 0
    body: bytes = b""
    before: object = None


class Registry(Protocol):
    """What keeps the catalog: told of each change that is durable, or was taken back."""

    def changed(self, change: Change) -> None: ...

    def undone(self, change: Change) -> None: ...

    def remember(self, log: Log, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """New records are visible and somebody watches."""


class Round:
    """What becomes one batch. `room`: bytes that still fit.

    `gathering`: who adds more when it is sealed; `broken`: what one of them raised, so that the batch is not
    all that it was promised to be.
    """

    __slots__ = (
        "background",
        "broken",
        "changes",
        "gathering",
        "interval_seconds",
        "payload_bytes_max",
        "room",
        "runs",
        "sealed",
        "sync",
        "tickets",
    )

    def __init__(self, size: int = 0) -> None:
        self.room = self.payload_bytes_max = max(BATCH_PAYLOAD_MAX, size)
        self.runs: dict[Log, Run] = {}
        self.changes: list[Change] = []
        self.gathering: list[Callable[[], None]] = []
        self.broken: Exception | None = None
        self.tickets: list[Ticket | None] = [None, None, None]
        self.sync = False
        self.sealed = False
        self.background = False  # it holds what nobody waits for
        self.interval_seconds = math.inf  # by when it must be synced if nobody waits for that

    @staticmethod
    def size_of(parts: "Iterable[tuple[Log, bytes, int]]") -> int:
        """What `Store.append_all` adds for these."""
        return sum(len(records) + ENTRY_HEADER_BYTES for _, records, _ in parts)

    @property
    def bytes(self) -> int:
        return self.payload_bytes_max - self.room

    def ticket(self, mode: Mode) -> Ticket:
        ticket = self.tickets[mode]
        if ticket is None:
            ticket = self.tickets[mode] = Ticket()
        if mode is _SYNCED:
            self.sync = True
        return ticket

    def run_of(self, log: Log, mode: Mode) -> Run:
        """The log's run, made if it is not there. The stricter of the modes it is asked for counts."""
        run = self.runs.get(log)
        if run is None:
            run = self.runs[log] = Run(log, self, self.ticket(mode), mode is not _DIRECT)
            self.room -= ENTRY_HEADER_BYTES
        else:
            run.ticket = self.ticket(mode)
        if log.background:
            self.background = True
        if log.mode.mode == "interval":
            self.interval_seconds = min(self.interval_seconds, log.mode.seconds)
        return run

    def seal(self) -> None:
        """Nothing more is added: it is full, or on its way to the disk."""
        if not self.sealed:
            for complete in self.gathering:
                try:
                    complete()
                except Exception as error:
                    self.broken = error
            self.gathering.clear()
            self.sealed = True
            for log, run in self.runs.items():
                log.run = None
                run.end = log.end

    def resolve(self, direct_error: StoreError | None) -> None:
        """It is written, and its tickets are done. `direct_error`: what goes around the journal is not."""
        for mode, ticket in enumerate(self.tickets):
            if ticket is not None:
                ticket.resolve(direct_error if mode == Mode.DIRECT else None)

    def fail(self, error: StoreError | None) -> None:
        """It is not written, or nobody can tell: whoever still waits is told this."""
        for ticket in self.tickets:
            if ticket is not None and not ticket.done:
                ticket.resolve(error)

    def let_go(self) -> None:
        """It is over, and its bytes are not needed again. Runs and their round refer to each other: without
        this they would stay until the garbage collector comes by, which for a few large objects is seldom."""
        self.runs.clear()

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self.room -= ENTRY_HEADER_BYTES + len(change.body)


def awaited_bytes(rounds: Iterable[Round]) -> int:
    """What is in them without that of logs in the background."""
    total = 0
    for round_ in rounds:
        total += round_.bytes
        if round_.background:
            for log, run in round_.runs.items():
                if log.background:
                    total -= (run.end if round_.sealed else log.end) - run.offset
    return total

"""How requests answer: at once, in their turn, when a read is done, or piece by piece."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from logmq.pacing import READS_PER_ROUND
from logmq.states import STOP_READ
from logmq.wire import refusal_for
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.replies import ReplySlot
from shared.storage.store import Log

if TYPE_CHECKING:
    from logmq.session import Session


class NotYetError(Exception):
    """The request is to be tried again when every earlier one of its connection is answered."""


class Listing:
    """An answer of many lines, said piece by piece as the peer takes them, others' turns between."""

    def __init__(self, session: "Session", pieces: Iterator[tuple[bytes, bool]]) -> None:
        self._session = session
        self._pieces = pieces
        self._held: ReplySlot | None = None
        session.listing = self
        session.replies.slot(self._start)

    def go_on(self) -> None:
        """The peer has taken what there was."""
        if self._held is None or self._session.lost or self._held.ready:
            return
        try:
            piece, last = next(self._pieces)
        except StoreError as error:
            self._end(refused(self._session, error))
            return
        if last:
            self._end(piece + b"END\n")
            return
        self._held.write(piece)
        outbox = self._session.connection.outbox
        if outbox.size <= outbox.bound:
            self._session.soon(self.go_on)

    def _start(self, held: ReplySlot) -> None:
        self._held = held
        self.go_on()

    def _end(self, answer: bytes) -> None:
        assert self._held is not None
        self._session.listing = None
        self._session.has_read(READS_PER_ROUND)
        self._held.resolve(answer)


def begin_read(
    session: "Session",
    begin: Callable[[Callable[[Any], None]], None],
    finish: Callable[[Any, ReplySlot | None], None],
) -> None:
    """Begin a read. `finish` gets what was read: at once, or, with the answer's place, when it is there.

    Until then nothing more is taken from the peer: what it asks for next is probably in what is being read.
    """
    held: ReplySlot | None = None
    finished = False

    def done(result: Any) -> None:
        nonlocal finished
        finished = True
        if held is None:
            finish(result, None)
        else:
            session.replies.attempt(finish_later, result)

    def finish_later(result: Any) -> None:
        finish(result, held)
        session.go(STOP_READ)

    session.has_read()
    begin(done)
    if not finished:
        held = session.replies.slot()
        session.stop(STOP_READ)


def in_turn(session: "Session") -> None:
    """For requests that look at, or change, what earlier ones change."""
    if session.replies.owed:
        raise NotYetError


def at_the_end(session: "Session", log: Log, offset: int, in_turn: Callable[[ReplySlot], None]) -> None:
    """Nothing is visible at `offset`: EOF, unless this connection may have just written there."""
    if offset < log.end and session.replies.owed:
        session.replies.slot(in_turn)
    else:
        session.replies.reply(b"EOF\n")


def answer(session: "Session", held: ReplySlot | None, *parts: bytes | FileRange) -> None:
    if held is not None:
        held.resolve(parts)
    else:
        for part in parts:
            session.replies.reply(part)


def refused(session: "Session", error: StoreError) -> bytes:
    refusal = refusal_for(error)
    session.counts.refused(refusal)
    return refusal.line

"""One LogMQ connection: input to requests, in order, as fast as the answers can leave.

Theory of operation. `receive` gets what one read brought: often hundreds of requests. A read that is all
PRODUCE or all CONSUME lines of one topic, the usual case at speed, is taken as one run (`logmq.runs`). Else
the lines are gone through one by one; neighbouring writes are still queued, and appended a topic at a time
before anything else is done.

*Order.* Every answer takes its place in `Replies`. Writes are applied at once. Reads of records see what was
written before them on the same connection: a CONSUME or FETCH at an offset that this connection has written
but the disk has not confirmed is answered when the answers before it have left. The rarer requests
(OFFSETS, DELETE, ...) are not even begun before that.

*Stops.* Input is held back, each for its own reason, and taken up again when the last reason goes: a request
waits for its turn, a read waits for the disk, too much is owed, the outbox is above its bound, the store is
congested, or it is simply others' turn. What was read but not applied stays in `_data` from `_at` on.

Source: PROTOCOL.md. The states are those of `logmq.states`.
"""

import math
from collections.abc import Callable

from logmq.answering import Listing, NotYetError
from logmq.broker import Broker
from logmq.consuming import consume_run
from logmq.pacing import Pacing
from logmq.readers import Fetch, Tail
from logmq.requests import handlers
from logmq.states import (
    STOP_OUTBOX,
    STOP_TURN,
    TRANSITIONS,
    Event,
    State,
)
from logmq.wire import (
    NAME_BYTES_MAX,
    TLS_BEGINS,
    Code,
    Refusal,
    begins_http,
    looks_like_http,
    refusal_for,
    split_request,
    too_large,
)
from logmq.writing import Writing
from shared.errors import LocalProtocolError, StoreError
from shared.net.connection import Connection
from shared.printable import printable
from shared.storage.store import Ticket

LINES_PER_ROUND = 1024
"""Lines looked at one by one before others have their turn: about a millisecond."""

_SAID_NOTHING = Refusal(Code.SYNTAX, "no whole line came in time; closing").line


class Session(Pacing):
    """The server's side of one connection."""

    __slots__ = (
        "_at",
        "_body_done",
        "_body_length",
        "_data",
        "_due",
        "_end_of_input",
        "_fetches",
        "_late",
        "_line_max",
        "_mixed",
        "_partial",
        "_size_max",
        "broker",
        "counts",
        "listing",
        "state",
        "tail",
        "topics",
        "writing",
    )

    def __init__(self, connection: Connection, broker: Broker) -> None:
        super().__init__(connection, self._failed)
        self.broker = broker
        self.topics = broker.topics
        self.counts = broker.counts
        self.state = State.FIRST_LINE
        self.tail: Tail | None = None
        self.listing: Listing | None = None
        self._size_max = broker.settings.message_bytes_max
        self._line_max = len("PRODUCE  \r") + NAME_BYTES_MAX + self._size_max
        self.writing = Writing(self, self._size_max)
        self._data = b""
        self._at = 0
        self._late = b""
        self._mixed = b""  # input that has been found not to be a run
        self._partial = bytearray()
        self._end_of_input = False
        self._body_length = 0
        self._body_done: Callable[[bytes], None] | None = None
        self._fetches: dict[Fetch, None] | None = None
        self._due = math.inf
        connection.on_drained = self._drained
        broker.sessions.add(self)
        connection.await_first(_SAID_NOTHING)

    # The driver's calls.

    def receive(self, data: bytes) -> None:
        if self._stops:  # it was on its way when reading was paused
            self._late += data
            return
        self._reads = 0
        partial = self._partial
        if not partial and data.startswith(self.writing.word) and self.state is State.REQUESTS:
            # Most reads of a producer are this and nothing else.
            taken = self.writing.run(data)
            if taken == len(data):
                if self._stops:
                    self.connection.pause_reading()
                return
            if taken:  # the rest is the beginning of a line
                data = data[taken:]
            else:
                self._mixed = data
        elif partial:
            partial += data
            if not self._completes(data):
                self.connection.await_rest()
                self._count_partial()
                return
            data = bytes(partial)
            self._partial = bytearray()
        self._apply(data, 0)
        if self.connection.held_bytes or self._partial:
            self._count_partial()

    def receive_eof(self) -> None:
        self._end_of_input = True
        if not self._stops:
            self._end(Event.INPUT_ENDS)

    def on_deadline(self, now: float) -> None:
        self._wake = math.inf
        if self._soon:
            callbacks, self._soon = self._soon, None
            for callback in callbacks:
                callback()
        for fetch in tuple(self._fetches or ()):
            if fetch.deadline <= now:
                fetch.expire()
        if self._due <= now:
            self._too_late()
        self.wake_by(min([self._due, *(fetch.deadline for fetch in self._fetches or ())]))

    def connection_lost(self) -> None:
        self.lost = True
        self.replies.drop()
        self.broker.sessions.discard(self)
        self.broker.windows.drop(self)
        if self.tail is not None:
            self.tail.abandon()
        for fetch in tuple(self._fetches or ()):
            fetch.abandon()
        self._soon = None
        self.listing = None

    def drain(self) -> None:
        """The server stops: waits end as if timed out, what was received is answered, and that is all."""
        for fetch in tuple(self._fetches or ()):
            fetch.expire()
        if self.state is not State.ENDING:
            self.receive_eof()

    # What requests use.

    def refuse(self, refusal: Refusal, count: int = 1) -> None:
        self.writing.flush()
        self.counts.refused(refusal, count)
        self.replies.reply(refusal.line * count)

    def owe(self, ticket: Ticket | None, reply: bytes) -> None:
        """The answer to one request, once `ticket` is done; None: it is."""
        if ticket is None:
            self.replies.reply(reply)
        else:
            self.replies.reply_after(ticket, reply)

    def begin_tail(self, tail: Tail) -> None:
        self.tail = tail
        self._step(Event.TAIL_BEGINS)
        self.replies.slot(tail.start)
        if self.broker.draining:
            self._end(Event.INPUT_ENDS)

    def add_fetch(self, fetch: Fetch) -> None:
        if self._fetches is None:
            self._fetches = {}
        self._fetches[fetch] = None
        self.wake_by(fetch.deadline)

    def reader_ended(self, reader: Tail | Fetch) -> None:
        if isinstance(reader, Fetch):
            if self._fetches is not None:
                self._fetches.pop(reader, None)
            return
        self.tail = None
        if self.state is State.TAIL:
            # The line that would have ended it may have begun: the rest of that is not a request either.
            amid = self._due < math.inf
            self._step(Event.TAIL_REFUSED_IN_LINE if amid else Event.TAIL_REFUSED)

    def quit(self) -> None:
        self._end(Event.QUIT)

    def await_body(self, length: int, done: Callable[[bytes], None]) -> None:
        """So many bytes follow, for `done`."""
        self._body_length, self._body_done = length, done
        self._step(Event.BODY_ANNOUNCED)

    def skip_body(self, length: int, *, too_much: bool) -> None:
        """So many bytes follow for a request that was refused."""
        self._body_length = length
        if too_much:
            self._end(Event.BODY_TOO_LARGE)
        elif length:
            self._step(Event.BODY_REFUSED)

    # Input.

    def _completes(self, data: bytes) -> bool:
        """Whether `data`, the end of `_partial`, makes something of it that can be applied."""
        if self.state is State.BODY:
            return len(self._partial) >= self._body_length
        return b"\n" in data or len(self._partial) > self._line_max

    def _count_partial(self) -> None:
        """What is not all there counts with what waits to be sent."""
        self.connection.hold(len(self._partial))

    def _apply(self, data: bytes, at: int) -> None:
        """Apply everything whole in `data` from `at` on, as far as nothing stops it."""
        self._applying = True
        try:
            while not self._stops and at < len(data):
                before, state = at, self.state
                at = self._advance(data, at)
                if at == before and state is self.state:
                    break
        finally:
            self._applying = False
        if self._stops:
            self._data, self._at = data, at
            self._due = math.inf  # it is not the peer that is late
            self.connection.pause_reading()
            return
        self._data = b""
        if at < len(data):
            self._partial = bytearray(memoryview(data)[at:])
        state, settings = self.state, self.broker.settings
        if self._partial or state is State.BODY:
            self.connection.await_rest()
        if state is State.REQUESTS or state is State.FIRST_LINE:
            if self._partial:
                self._expect_within(settings.line_seconds)
            else:
                self._due = math.inf
        elif self._due == math.inf and state is not State.TAIL and state is not State.ENDING:
            self._expect_within(
                settings.line_seconds if state is State.SKIPPED_LINE else settings.body_seconds
            )

    def _expect_within(self, seconds: float) -> None:
        """The rest of what has begun."""
        self._due = self.connection.now + seconds
        self.wake_by(self._due)

    def _continue(self) -> None:
        if self._applying:
            return
        data, at = self._data, self._at
        if self._late:
            data, at, self._late = data[at:] + self._late, 0, b""
        self._apply(data, at)
        if not self._stops:
            self.connection.resume_reading()
            if self._end_of_input:
                self._end(Event.INPUT_ENDS)

    def _advance(self, data: bytes, at: int) -> int:
        """Apply something of `data`; returns the position behind it."""
        match self.state:
            case State.FIRST_LINE:
                return self._first_line(data, at)
            case State.REQUESTS:
                at = self._lines(data, at)
                self.writing.flush()
                return at
            case State.BODY:
                end = at + self._body_length
                if end > len(data):
                    return at
                done, self._body_done = self._body_done, None
                assert done is not None
                self._step(Event.BODY_COMPLETE)
                done(data[at:end])
                self.writing.flush()
                return end
            case State.SKIPPED_BODY:
                skipped = min(self._body_length, len(data) - at)
                self._body_length -= skipped
                if not self._body_length:
                    self._step(Event.BODY_SKIPPED)
                return at + skipped
            case State.SKIPPED_LINE | State.TAIL:
                end = data.find(b"\n", at)
                if end >= 0:
                    self._line_skipped()
                    return end + 1
                if self._due == math.inf:
                    self._expect_within(self.broker.settings.line_seconds)
                return len(data)
            case State.ENDING:
                return len(data)

    def _first_line(self, data: bytes, at: int) -> int:
        """Look at the first line, which is then read as all are; returns `at`."""
        end = data.find(b"\n", at)
        if data.startswith(TLS_BEGINS, at):
            self._end_tls()
        elif end >= 0 and begins_http(line := _without_cr(data[at:end])):
            self._end_http(line)
        elif end >= 0 or len(data) - at > self._line_max:
            self.connection.spoke()
            self._step(Event.LINE_COMES)
        return at

    def _lines(self, data: bytes, at: int) -> int:
        """Requests, line by line, until the state changes or something stops them."""
        if at == 0:
            at = self._whole_run(data)
            if self._stops:
                return at
        line_max, size_max, known = self._line_max, self._size_max, self.topics.known
        logs, messages = self.writing.logs, self.writing.messages
        for _ in range(LINES_PER_ROUND):
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > line_max:
                    self.refuse(too_large("a line", None, line_max))
                    self._step(Event.LINE_TOO_LONG)
                    return len(data)
                return at
            if data.startswith(b"PRODUCE ", at):
                space = data.find(b" ", at + 8, end)
                if space > 0 and (log := known.get(data[at + 8 : space])) is not None:
                    stop = end - 1 if data[end - 1] == 13 else end
                    if stop - space - 1 <= size_max:
                        logs.append(log)
                        messages.append(data[space + 1 : stop])
                        at = end + 1
                        continue
            elif data.startswith(b"APPEND ", at):
                space = data.find(b" ", at + 7, end)
                if space > 0 and (log := known.get(data[at + 7 : space])) is not None:
                    field = data[space + 1 : end]
                    if field.isdigit() and len(field) < 8 and (length := int(field)) <= size_max:
                        stop = end + 1 + length
                        if stop <= len(data):
                            logs.append(log)
                            messages.append(data[end + 1 : stop])
                            at = stop
                            continue
            if end - at > line_max:
                self.refuse(too_large("a line", end - at, line_max))
                at = end + 1
            else:
                after = self._line(data, at, end)
                if after < 0:
                    return at
                at = after
                if self.state is not State.REQUESTS or self._stops:
                    return at
        if at < len(data):
            self._let_others()
        return at

    def _line(self, data: bytes, at: int, end: int) -> int:
        """One request, the line `data[at:end]`; returns the position behind it, -1 where it has to wait."""
        after = end + 1
        line = _without_cr(data[at:end])
        try:
            if line.startswith(b"PRODUCE "):
                self.writing.line(line)
                return after
            word, fields = split_request(line)
            if word == b"APPEND" or word == b"BATCH":
                return self.writing.announced(word, fields, data, after)
            self.writing.flush()
            handlers[word](self, fields)
        except NotYetError:
            self.stop(STOP_TURN)
            self.replies.when_empty(self._turn_has_come)
            return -1
        except Refusal as refusal:
            if refusal.code is Code.UNKNOWN_COMMAND and looks_like_http(line):
                self._end_http(line)
                return after
            self.refuse(refusal)
        self.stop_if_crowded()
        return after

    def _whole_run(self, data: bytes) -> int:
        """All lines of `data` at once where they are one run; returns how far that went, maybe nowhere."""
        if data is self._mixed:
            self._mixed = b""
            return 0
        if data.startswith(b"CONSUME "):
            return consume_run(self, data)
        writing = self.writing
        if data.startswith(b"APPEND "):
            return writing.append_run(data)
        if data.startswith(writing.word) or (data.startswith(b"PRODUCE ") and writing.learn(data)):
            return writing.run(data)
        return 0

    # How it goes on, and ends.

    def _step(self, event: Event) -> None:
        try:
            self.state = TRANSITIONS[self.state][event]
        except KeyError:
            raise LocalProtocolError(f"{event.name} while {self.state.name}") from None
        self._due = math.inf

    def _line_skipped(self) -> None:
        if self.state is State.SKIPPED_LINE:
            self._step(Event.LINE_END)
            return
        tail, self.tail = self.tail, None
        assert tail is not None
        tail.end()
        self._step(Event.TAIL_STOPPED)

    def _end_http(self, line: bytes) -> None:
        """A web page may have a browser send what it likes to any port: nothing behind this is executed."""
        self.counts.http += 1
        self.broker.log.warning(
            "an HTTP request came to the LogMQ port; it was closed, nothing of the request was executed",
            peer=self.connection.peer,
            line=printable(line),
        )
        self.refuse(Refusal(Code.SYNTAX, "this is LogMQ, HTTP is not spoken here; closing"))
        self._end(Event.HTTP)

    def _end_tls(self) -> None:
        """A handshake holds bytes that others chose, such as a server's ticket: no line in it is executed."""
        self.counts.tls += 1
        self.broker.log.warning(
            "TLS came to the LogMQ port, which has none; it was closed, nothing of it was executed",
            peer=self.connection.peer,
        )
        self.refuse(Refusal(Code.SYNTAX, "this is LogMQ without TLS; closing"))
        self._end(Event.TLS)

    def _too_late(self) -> None:
        """What the peer began it has not finished in time."""
        what = "the line" if self.state is not State.BODY else "the bytes of the message"
        self.counts.too_late += 1
        self.refuse(Refusal(Code.SYNTAX, f"{what} took too long to come; closing"))
        self._end(Event.TOO_LATE)

    def _end(self, event: Event) -> None:
        """Nothing more is taken from the peer; what it is owed is sent, then the connection ends."""
        if self.state is State.ENDING:
            return
        self._partial.clear()
        tail, self.tail = self.tail, None
        if tail is not None:
            tail.end()
        self._step(event)
        self.replies.when_empty(self.connection.finish)

    def _drained(self) -> None:
        if self.tail is not None:
            self.tail.catch_up()
        if self.listing is not None:
            self.listing.go_on()
        self.go(STOP_OUTBOX)

    def _failed(self, error: StoreError) -> bytes:
        refusal = refusal_for(error)
        self.counts.refused(refusal)
        return refusal.line


def _without_cr(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line

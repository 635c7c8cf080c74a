"""One LogMQ connection: input to requests, in order, as fast as the answers can be sent.

Theory of operation. `receive` gets what one read brought: often hundreds of requests. Usually a fast client's
read is all PRODUCE, all APPEND or all CONSUME lines of one topic; that is handled as one run (`logmq.runs`).
Otherwise lines are handled one by one. Neighbouring writes are queued, and appended per topic before anything
else is done. (Figures below: process time of `receive`, store in memory.)

*Order.* Answers leave in the order of their requests (`Replies`). Writes are applied at once, and answered
when their commit is done. A read sees earlier writes of its own connection. So a CONSUME or FETCH at an
offset that the disk has not confirmed begins once the answers before it are sent. So do rarer requests
(OFFSETS, DELETE, ...).

*Stops.* Input is held back (`SessionBase`) while a read is under way, and while a request waits for the
answers before it.

Source: PROTOCOL.md. The states are those of `logmq.states`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from math import inf
from typing import TYPE_CHECKING, Any

import attrs

from logmq import requests, runs
from logmq.readers import Fetch, Tail
from logmq.requests import NotYetError
from logmq.states import TRANSITIONS, Event, State
from logmq.wire import (
    NAME_BYTES_MAX,
    SKIPPED_BODY_BYTES_MAX,
    TLS_BEGINS,
    Code,
    Refusal,
    looks_like_http,
    name_untrusted,
    number_untrusted,
    refusal_for,
    split_request,
    too_large,
    topic_untrusted,
)
from shared.access import READ, WRITE, Guard
from shared.errors import StoreError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.net.stops import STOP_WORDS, Stop
from shared.replies import ReplySlot
from shared.storage.format import split_records

if TYPE_CHECKING:
    from logmq.broker import Broker
    from shared.storage.store import Log, Ticket

BATCH_PIECE_BYTES = 16 * 1024
"""Bytes of a piece of a BATCH, much less than an index entry covers. So the store does not walk the records a
second time, and its entries are hardly longer than they should be."""
# Reasons to hold input back, besides those of `Stop`.
_TURN = Stop.FIRST_OWN  # an earlier answer has to leave first
_READ = Stop.FIRST_OWN << 1  # a read is under way
_STOP_WORDS = STOP_WORDS | {_TURN: "its earlier answers", _READ: "a read of a log"}

# Deadlines.
_SOON, _FETCHES = range(2)

WAITS_SHOWN = 10
"""Readers of one connection."""
_BODIES = (State.BODY, State.SKIPPED_BODY)
_REQUESTS_COME = State.REQUESTS  # a name of its own: to look it up there takes 0.03 us of each read
_NEVER = b"\n\n"  # begins no line
_SAID_NOTHING = Refusal(Code.SYNTAX, "no whole line came in time; closing").line


class Session(SessionBase):
    """The server's side of one connection."""

    __slots__ = (
        "_body_done",
        "_body_length",
        "_known",
        "_line_max",
        "_mixed",
        "_queued_logs",
        "_queued_messages",
        "_run_log",
        "_run_separator",
        "_run_word",
        "_size_max",
        "_soon",
        "broker",
        "counts",
        "fetches",
        "listing",
        "logins_refused",
        "state",
        "tail",
        "topics",
        "written",
    )
    stop_words = _STOP_WORDS

    def __init__(self, connection: Connection, broker: "Broker") -> None:
        super().__init__(connection, broker.settings.line_seconds)
        self.broker = broker
        self.topics = broker.topics
        self.counts = broker.counts
        self.written = 0
        self.state = State.FIRST_LINE
        self._size_max = broker.settings.message_bytes_max
        self._line_max = len("PRODUCE  \r") + NAME_BYTES_MAX + self._size_max
        # Input: what has been found not to be a run, and the body that is coming.
        self._mixed = b""
        self._body_length = 0
        self._body_done: Callable[[bytes], None] | None = None
        # Writes: what the next run may begin with, and what is queued.
        self._run_word = self._run_separator = _NEVER
        self._run_log: Log | None = None
        self._queued_logs: list[Log] = []
        self._queued_messages: list[bytes] = []
        # What waits. Made when first needed: most connections are idle.
        self.logins_refused = 0
        self._soon: list[Callable[[], None]] | None = None
        self.tail: Tail | None = None
        self.fetches: dict[Fetch, None] | None = None
        self.listing: tuple[Iterator[tuple[bytes, bool]], ReplySlot] | None = None
        self.identity.admit(broker.access)
        self._known = self._writable_topics()
        self.identity.await_first_request(_SAID_NOTHING if self.user else requests.log_in_first().line)

    # -- the driver's calls

    def receive(self, data: bytes) -> None:
        """Nearly every read of a producer is PRODUCE lines of one topic: those are one run.

        To try that before anything else makes a read of one line of 100 bytes cost 4.1 us in place of 5.6.
        """
        word = self._run_word
        if data.startswith(word) and not (self.kept or self.stopped or self.state is not _REQUESTS_COME):
            end = len(data) - 1
            size = end - len(word)
            if data.find(b"\n") == end and data[end - 1] != 13 and size <= self._size_max:
                # One line, as from each client that waits for its answer.
                record = size.to_bytes(runs.HEADER_BYTES, "big") + data[len(word) : end]
                self._append(self._run_log, record, 1, ())  # type: ignore[arg-type]
                return
            taken = self._produce_run(data)
            if taken == len(data):
                return
            if taken:  # the rest is the beginning of a line
                data = data[taken:]
            else:
                self._mixed = data
        super().receive(data)

    def input_ended(self) -> None:
        if self.state is not State.ENDING:
            self.end_with(Event.INPUT_ENDS)

    def due(self, what: int, now: float) -> None:
        if what == _SOON:
            callbacks, self._soon = self._soon, None
            for callback in callbacks or ():
                callback()
        else:
            for fetch in tuple(self.fetches or ()):
                if fetch.deadline <= now:
                    fetch.expire()
            self.await_fetches()

    def release(self) -> None:
        self.broker.windows.drop(self)
        for reader in (self.tail, *(self.fetches or ())):
            if reader is not None:
                reader.abandon()
        self._soon = None
        self.listing = None

    def drained(self) -> None:
        if self.tail is not None:
            self.tail.catch_up()
        self.list_more()
        super().drained()

    def drain(self) -> None:
        """The server stops: waits end as if timed out, what was received is answered, and that is all."""
        for fetch in tuple(self.fetches or ()):
            fetch.expire()
        if self.state is not State.ENDING:
            self.receive_eof()

    # -- what readers use

    def soon(self, callback: Callable[[], None]) -> None:
        """Call in the driver's next turn, so that other connections come first."""
        if self._soon is None:
            self._soon = []
        self._soon.append(callback)
        self.deadline(_SOON, self.connection.now)

    def reader_ended(self, reader: Tail | Fetch) -> None:
        """Remove a reader that has answered by itself."""
        if isinstance(reader, Fetch):
            if self.fetches is not None:
                self.fetches.pop(reader, None)
            return
        self.tail = None
        if self.state is State.TAIL:
            # The line that would have ended it may have begun: the rest of that is not a request either.
            self.step(Event.TAIL_REFUSED_IN_LINE if self.amid else Event.TAIL_REFUSED)

    # -- input

    def apply(self, data: bytes, at: int) -> int:
        if at and self.state is State.REQUESTS and data.startswith((self._run_word, b"CONSUME "), at):
            return at + self.apply(data[at:], 0)  # a run goes on that was too long for one turn
        while at < len(data) and not self.stopped:
            before, state = at, self.state
            at = self._advance(data, at)
            if at == before and state is self.state:
                if state is State.BODY:
                    self.need(self._body_length)
                else:
                    self.need(self._line_max + 1, b"\n")
                break
        return at

    def _advance(self, data: bytes, at: int) -> int:
        """Apply the next part of `data`; returns the position behind it."""
        match self.state:
            case State.FIRST_LINE:
                return self._first_line(data, at)
            case State.REQUESTS:
                at = self._lines(data, at)
                self._flush()
                return at
            case State.BODY:
                end = self._body(data, at)
                if end < 0:
                    return at
                self.step(Event.BODY_COMPLETE)
                self._flush()
                return end
            case State.SKIPPED_BODY:
                skipped = min(self._body_length, len(data) - at)
                self._body_length -= skipped
                if not self._body_length:
                    self.step(Event.BODY_SKIPPED)
                return at + skipped
            case State.SKIPPED_LINE | State.TAIL:
                end = data.find(b"\n", at)
                if end >= 0:
                    self._line_skipped()
                    return end + 1
                self.amid = True
                return len(data)
            case State.ENDING:
                return len(data)

    def _first_line(self, data: bytes, at: int) -> int:
        """Look at the first line, which is then read as all are; returns `at`."""
        end = data.find(b"\n", at)
        if data.startswith(TLS_BEGINS, at):
            requests.end_tls(self)
        elif end >= 0 and looks_like_http(line := _without_cr(data[at:end])):
            requests.end_http(self, line)
        elif end >= 0 or len(data) - at > self._line_max:
            if self.user:  # else what is waited for is a login
                self.connection.first_request_done()
            self.step(Event.LINE_COMES)
        return at

    def _lines(self, data: bytes, at: int) -> int:
        """Requests, line by line, until the state changes or something stops them."""
        if at == 0 and self.user:
            at = self._whole_run(data)
            if self.stopped:
                return at
        line_max, size_max = self._line_max, self._size_max
        known, logs, messages = self._known, self._queued_logs, self._queued_messages
        while not self.turn.over():
            end = data.find(b"\n", at)
            if end < 0:
                if len(data) - at > line_max:
                    self.refuse(too_large("a line", None, line_max))
                    self.step(Event.LINE_TOO_LONG)
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
                if self.state is not State.REQUESTS or self.stopped:
                    return at
        if at < len(data):
            self.yield_turn()
        return at

    def _line(self, data: bytes, at: int, end: int) -> int:
        """Handle the request in `data[at:end]`; returns the position behind it, -1 if it has to wait."""
        after = end + 1
        line = _without_cr(data[at:end])
        try:
            if line.startswith(b"AUTH ") and line.count(b" ") > 1:
                self._flush()
                requests.log_in(self, line)
                return after
            if line.startswith(b"PRODUCE "):
                self._produce(line)
                return after
            word, fields = split_request(line)
            if word == b"APPEND" or word == b"BATCH":
                return self._body_announced(word, fields, data, after)
            self._flush()
            if not self.user:
                raise requests.log_in_first()
            requests.REQUESTS[word](self, fields)
        except NotYetError:
            self.pause_input(_TURN)
            self.replies.when_empty(lambda: self.resume_input(_TURN))
            return -1
        except (StoreError, Refusal) as error:
            if looks_like_http(line) and refusal_for(error).code is Code.UNKNOWN_COMMAND:
                requests.end_http(self, line)
                return after
            self.refuse(error if self.user else requests.log_in_first())
        self.stop_if_crowded()
        return after

    def _whole_run(self, data: bytes) -> int:
        """Handle all lines of `data` at once if they are one run; returns where that ended."""
        if data is self._mixed:
            self._mixed = b""
            return 0
        if data.startswith(b"CONSUME "):
            return requests.consume_run(self, data)
        if data.startswith(b"APPEND "):
            return self._append_run(data)
        if data.startswith(self._run_word) or (data.startswith(b"PRODUCE ") and self._learn_run(data)):
            return self._produce_run(data)
        return 0

    # -- writes

    def _produce_run(self, data: bytes) -> int:
        """Handle the lines of `data`, which begins with `_run_word`, if all of them do.

        Returns the end of the last complete line, or 0. A read of 64 lines of 100 bytes takes 36 us so, and
        73 us line by line.
        """
        log, word = self._run_log, self._run_word
        last = data.rfind(b"\n") + 1
        if not last or log is None:
            return 0
        lines = data if last == len(data) else data[:last]
        run = runs.produced(lines, word, self._run_separator, self._size_max)
        if run is None:
            return 0
        self._append(log, *run)
        return last

    def _append_run(self, data: bytes) -> int:
        """Handle the APPEND requests at the front of `data` that have the same line; returns where they end.

        64 requests of 100 bytes cost 42 us so, and 96 us one by one.
        """
        end = data.find(b"\n")
        space = data.find(b" ", len("APPEND "), max(end, 0))
        field = data[space + 1 : end]
        if space < 0 or not field.isdigit() or len(field) > 7:
            return 0
        size = int(field)
        length = end + 1 + size
        if len(data) < runs.SAME_LEAST * length or size > self._size_max:
            return 0
        log = self._known.get(data[len("APPEND ") : space])
        if log is None:
            return 0
        records, count = runs.appended(data, end + 1, length)
        self._append(log, records, count, runs.HEADER_BYTES + size)
        return count * length

    def _learn_run(self, data: bytes) -> bool:
        """Prepare for a run by its first line, a PRODUCE; False if that needs a closer look, or its topic is
        new, or the next line is of another topic.
        """
        end = data.find(b"\n")
        space = data.find(b" ", len("PRODUCE "), end)
        if end < 0 or space < 0 or end - space > self._size_max:
            return False
        word = data[: space + 1]
        if len(data) > end + 1 and not data.startswith(word, end + 1):
            return False
        log = self._known.get(data[len("PRODUCE ") : space])
        if log is None:
            return False
        self._run_log, self._run_word, self._run_separator = log, word, b"\n" + word
        return True

    def _produce(self, line: bytes) -> None:
        """One PRODUCE line. Raises Refusal."""
        space = line.find(b" ", len("PRODUCE "))
        if space < 0:
            raise Refusal(
                Code.SYNTAX, "expected PRODUCE <topic> <message>, also before an empty message a space"
            )
        message = line[space + 1 :]
        if len(message) > self._size_max:
            raise too_large("a message", len(message), self._size_max)
        self._queue(self._writable(line[len("PRODUCE ") : space]), message)

    def _body_announced(self, word: bytes, fields: Sequence[bytes], data: bytes, after: int) -> int:
        """An APPEND or BATCH line; its body begins at `after`. Returns the position behind what was taken."""
        length = number_untrusted(fields[-1], "length")  # an unknown length cannot be skipped
        try:
            # The largest message can also be sent as a batch of one record.
            what, more = ("a message", 0) if word == b"APPEND" else ("a batch", runs.HEADER_BYTES)
            if not self.user:
                raise requests.log_in_first()
            if length > self._size_max + more:
                raise too_large(what, length, self._size_max + more)
            topic = fields[0]
            topic_untrusted(topic)
            if word == b"BATCH":
                writer, seq = name_untrusted(fields[1], "writer"), number_untrusted(fields[2], "seq")
                if not length:
                    raise Refusal(Code.SYNTAX, "a batch holds one record at least")
        except Refusal as refusal:
            self.refuse(refusal)
            self._body_length = length
            if length > SKIPPED_BODY_BYTES_MAX:
                self.end_with(Event.BODY_TOO_LARGE)
            elif length:
                self.step(Event.BODY_REFUSED)
            return after

        self._body_length = length
        if word == b"APPEND":
            self._body_done = lambda body: self._queue(self._writable(topic), body)
        else:
            self._body_done = lambda body: self._batch(topic, writer, seq, body)
        end = self._body(data, after)
        if end >= 0:
            return end
        self.step(Event.BODY_ANNOUNCED)
        return after

    def _body(self, data: bytes, at: int) -> int:
        """Take the announced body, which begins at `at`; returns where it ends, -1 while it is incomplete."""
        end = at + self._body_length
        if end > len(data):
            return -1
        done, self._body_done = self._body_done, None
        assert done is not None
        try:
            done(data[at:end])
        except (StoreError, Refusal) as error:
            self.refuse(error)
        return end

    def _batch(self, topic: bytes, writer: str, seq: int, records: bytes) -> None:
        try:
            parts = split_records(records, BATCH_PIECE_BYTES, 0, len(records))
            pieces = [(records[begins:ends], count) for begins, ends, count in parts]
        except ValueError:
            raise Refusal(Code.SYNTAX, "a batch is whole records: length in 4 bytes, payload") from None
        log = self._writable(topic)
        self._flush()
        first, ticket, written = self.broker.writers.write(log, self.user, writer, seq, pieces)
        if written:
            self._count_written(sum([count for _, count in pieces]), len(records))
        else:
            self.counts.batches_repeated += 1
        requests.answer_after(self, ticket, b"OK %d\n" % first)
        self.turn_over()

    def _writable(self, topic: bytes) -> "Log":
        """The log of a topic, created if missing. Raises Refusal."""
        self.require(WRITE, topic)
        before = len(self.topics)
        log = self.topics.writable_untrusted(topic, self.user)
        if len(self.topics) > before:
            self.turn_over()
        return log

    def _queue(self, log: "Log", message: bytes) -> None:
        """Queue a write; `_flush` appends it with its neighbours."""
        self._queued_logs.append(log)
        self._queued_messages.append(message)

    def _flush(self) -> None:
        """Append what is queued, per topic; answers are in the order of requests."""
        if not self._queued_messages:
            return
        logs, messages = self._queued_logs.copy(), self._queued_messages.copy()
        self._queued_logs.clear()
        self._queued_messages.clear()
        first, count = logs[0], len(logs)
        if logs.count(first) == count:
            records, lengths = runs.encode(messages)
            self._append(first, records, count, lengths)
        else:
            self._append_mixed(logs, messages)

    def _append(self, log: "Log", records: bytes, count: int, lengths: runs.Lengths) -> None:
        """Append a run; its answers wait for the commit."""
        try:
            if log.deleted:
                log = self._alive(log)
            first, ticket = log.append(records, count)
        except (StoreError, Refusal) as error:
            self.refuse(error, count)
            return
        counts = self.counts
        counts.messages_in += count
        self.written += count
        counts.bytes_in += len(records)
        reply = b"OK %d\n" % first if count == 1 else runs.ok_lines(first, count, lengths)
        self.replies.reply_after(ticket, reply, count)
        if log.committer.congested:
            self.stop_if_congested(self.broker.store)

    def _append_mixed(self, logs: "Sequence[Log]", messages: Sequence[bytes]) -> None:
        """Append messages of several topics, with one call for each; answers are in the order of requests."""
        places: dict[Log, list[int]] = {}
        for place, log in enumerate(logs):
            places.setdefault(log, []).append(place)
        offsets = [0] * len(logs)
        outcomes: dict[Log, Ticket | StoreError | Refusal] = {}
        for log, those in places.items():
            records, lengths = runs.encode([messages[place] for place in those])
            try:
                offset, outcomes[log] = self._alive(log).append(records, len(those))
            except (StoreError, Refusal) as error:
                outcomes[log] = error
                continue
            for place, at in zip(those, accumulate(lengths, initial=offset), strict=False):
                offsets[place] = at
            self._count_written(len(those), len(records))
        start = 0
        for outcome, run in groupby(map(outcomes.__getitem__, logs)):
            end = start + sum(1 for _ in run)
            if isinstance(outcome, StoreError | Refusal):
                self.refuse(outcome, end - start)
            else:
                answers = (b"OK %d\n" * (end - start)) % tuple(offsets[start:end])
                self.replies.reply_after(outcome, answers, end - start)
            start = end
        if logs[0].committer.congested:
            self.stop_if_congested(self.broker.store)

    def _count_written(self, messages: int, size: int) -> None:
        self.counts.messages_in += messages
        self.counts.bytes_in += size
        self.written += messages

    def _alive(self, log: "Log") -> "Log":
        """`log`, or its successor if it was deleted since it was looked up."""
        if not log.deleted:
            return log
        self._run_word = self._run_separator = _NEVER
        return self._writable(log.name.encode())

    # -- who it is, and what he may do

    @property
    def waits_for(self) -> list[str]:
        readers = [*(self.fetches or ()), *([self.tail] if self.tail is not None else [])]
        return super().waits_for + [f"records of {reader.topic}" for reader in readers[:WAITS_SHOWN]]

    @property
    def traffic(self) -> Mapping[str, Any]:
        return {"messages_in": self.written}

    def access_changed(self) -> None:
        super().access_changed()
        self._known = self._writable_topics()
        self._run_word = self._run_separator = _NEVER
        guard, tail = self.guard, self.tail
        if guard is None:
            return
        if tail is not None and not guard.may(self.user, READ, tail.topic):
            tail.end()
            self.reader_ended(tail)

    def _writable_topics(self) -> "Mapping[bytes, Log] | _Writable":
        known, guard = self.topics.known, self.guard
        return known if guard is None else _Writable(known, guard, self.user)

    def require(self, action: str, name: bytes) -> None:
        """Raise Refusal if the user may not."""
        if self.guard is not None:
            if not self.user:
                raise requests.log_in_first()
            if not self.identity.may(action, name):
                raise Refusal(Code.DENIED, "not allowed")

    # -- reads

    def await_fetches(self) -> None:
        self.deadline(_FETCHES, min((fetch.deadline for fetch in self.fetches or ()), default=inf))

    def read_log(self, begin: Callable[[Callable[[Any], None]], None], finish: Callable[[Any], None]) -> None:
        """Begin a read. `finish` gets what was read, now or later, and answers the request.

        Until then nothing more is taken from the peer, so this answer is the next. What the peer asks for
        then is probably in what is being read.
        """
        finished = False

        def done(result: Any) -> None:
            nonlocal finished
            finished = True
            if self.lost:
                if isinstance(result, FileRange):
                    result.release()
                return
            if isinstance(result, StoreError):
                self.refuse(result)
            else:
                finish(result)
            self.resume_input(_READ)

        self.turn_over()
        begin(self.connection.guarded(done))
        if not finished:
            self.pause_input(_READ)

    # -- listings

    def list_more(self) -> None:
        """Write the next piece of the listing under way, if any; the others when it is their turn."""
        if self.listing is None:
            return
        pieces, slot = self.listing
        try:
            piece, last = next(pieces)
        except StoreError as error:
            piece, last = self.refused(error), True
        else:
            if last:
                piece += b"END\n"
        if last:
            self.listing = None
            self.turn_over()
            slot.resolve(piece)
            return
        slot.write(piece)
        outbox = self.connection.outbox
        if outbox.size <= outbox.bound:
            self.soon(self.list_more)

    # -- answers

    def refuse(self, error: Refusal | StoreError, count: int = 1) -> None:
        self._flush()
        self.reply(self.refused(error, count))

    def store_failed(self, error: StoreError, reply: bytes, count: int) -> bytes:
        return self.refused(error, count)

    def refused(self, error: Refusal | StoreError, count: int = 1) -> bytes:
        """The ERR lines of `count` requests, which it counts."""
        refusal = refusal_for(error)
        self.counts.count_refused(refusal, count)
        return refusal.line * count

    def turn_over(self) -> bool:
        """Look at the clock, after a request that takes longer than a line: whether others come first now."""
        over = self.turn.over_now()
        if over:
            self.yield_turn()
        return over

    # -- states, and the end

    def step(self, event: Event) -> None:
        state = self.state = TRANSITIONS[self.state][event]
        settings = self.broker.settings
        in_body = state in _BODIES
        self.amid = in_body or state is State.SKIPPED_LINE
        self.begin_input(settings.body_seconds if in_body else settings.line_seconds)

    def _line_skipped(self) -> None:
        if self.state is State.SKIPPED_LINE:
            self.step(Event.LINE_END)
            return
        tail, self.tail = self.tail, None
        assert tail is not None
        tail.end()
        self.step(Event.TAIL_STOPPED)

    def too_late(self) -> None:
        what = "the bytes of the message" if self.state in _BODIES else "the line"
        self.counts.too_late += 1
        self.refuse(Refusal(Code.SYNTAX, f"{what} took too long to come; closing"))
        self.end_with(Event.TOO_LATE)

    def end_with(self, event: Event) -> None:
        """Take no more input; pending answers are sent, then the connection ends."""
        if self.state is State.ENDING:
            return
        self.forget_input()
        tail, self.tail = self.tail, None
        if tail is not None:
            tail.end()
        self.step(event)
        self.finish_when_answered()


@attrs.frozen
class _Writable:
    """`Topics.known` as far as a user may write: a log, or None for a closer look."""

    known: "Mapping[bytes, Log]"
    guard: Guard
    user: str

    def get(self, topic: bytes) -> "Log | None":
        return self.known.get(topic) if self.guard.may(self.user, WRITE, topic) else None


def _without_cr(line: bytes) -> bytes:
    return line[:-1] if line.endswith(b"\r") else line

"""The writing side of a connection: PRODUCE, APPEND and BATCH to records in a log, many at a time.

Messages that stand side by side in the input are queued and appended together, a topic at a time; a read that
is all PRODUCE lines of one topic is not even taken apart into messages one by one. Their answers are owed to
the commit that makes them durable.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from logmq import runs
from logmq.states import STOP_OWED, STOP_STORE
from logmq.wire import (
    SKIPPED_BODY_BYTES_MAX,
    Code,
    Refusal,
    name_untrusted,
    number_untrusted,
    refusal_for,
    too_large,
    topic_untrusted,
)
from shared.errors import StoreError
from shared.storage.store import Log, Ticket

if TYPE_CHECKING:
    from logmq.session import Session

_NEVER = b"\n\n"  # begins no line


class Writing:
    """One session's writes. `word`: `PRODUCE <topic> ` of the newest run, with which the next may begin.

    `logs`, `messages`: what is queued, the topic's log of each message and the message.
    """

    __slots__ = ("_log", "_separator", "_session", "_size_max", "logs", "messages", "word")

    def __init__(self, session: "Session", size_max: int) -> None:
        self._session = session
        self._size_max = size_max
        self.word = self._separator = _NEVER
        self._log: Log | None = None
        self.logs: list[Log] = []
        self.messages: list[bytes] = []

    def run(self, data: bytes) -> int:
        """The lines of `data`, which begins with `word`, if all of them do.

        Returns how far that went: to the end of the last whole line, or nowhere.
        """
        log = self._log
        last = data.rfind(b"\n") + 1
        if not last or log is None:
            return 0
        lines = data if last == len(data) else data[:last]
        run = runs.produced(lines, self.word, self._separator, self._size_max)
        if run is None:
            return 0
        self._append(log, *run)
        return last

    def append_run(self, data: bytes) -> int:
        """The APPEND requests at the front of `data`, if all that is whole are of one topic and one length.

        Returns how far that went, maybe nowhere.
        """
        end = data.find(b"\n")
        space = data.find(b" ", len("APPEND "), max(end, 0))
        log = self._session.topics.known.get(data[len("APPEND ") : space])
        field = data[space + 1 : end]
        if space < 0 or log is None or not field.isdigit() or len(field) > 7 or int(field) > self._size_max:
            return 0
        size = int(field)
        records, count = runs.appended(data, data[: end + 1], size)
        if count:
            self._append(log, records, count, runs.HEADER_BYTES + size)
        return count * (end + 1 + size)

    def learn(self, data: bytes) -> bool:
        """Get ready for a run by its first line, a PRODUCE; False where that needs a closer look."""
        end = data.find(b"\n")
        space = data.find(b" ", len("PRODUCE "), end)
        if end < 0 or space < 0 or end - space > self._size_max:
            return False
        try:
            self._log = self._writable(data[len("PRODUCE ") : space])
        except Refusal:
            return False
        self.word = data[: space + 1]
        self._separator = b"\n" + self.word
        return True

    def line(self, line: bytes) -> None:
        """One PRODUCE line. Raises Refusal."""
        space = line.find(b" ", len("PRODUCE "))
        if space < 0:
            raise Refusal(
                Code.SYNTAX, "expected PRODUCE <topic> <message>, also before an empty message a space"
            )
        message = line[space + 1 :]
        if len(message) > self._size_max:
            raise too_large("a message", len(message), self._size_max)
        self.queue(self._writable(line[len("PRODUCE ") : space]), message)

    def announced(self, word: bytes, fields: Sequence[bytes], data: bytes, after: int) -> int:
        """An APPEND or BATCH line; its bytes begin at `after`. Returns the position behind what was taken."""
        length = number_untrusted(fields[-1], "length")  # where that is not said, nothing can be skipped
        try:
            # The largest message can be sent as a batch of one record, too.
            what, more = ("a message", 0) if word == b"APPEND" else ("a batch", runs.HEADER_BYTES)
            if length > self._size_max + more:
                raise too_large(what, length, self._size_max + more)
            done = self._append_done(fields) if word == b"APPEND" else self._batch_done(fields, length)
        except Refusal as refusal:
            self._session.refuse(refusal)
            self._session.skip_body(length, too_much=length > SKIPPED_BODY_BYTES_MAX)
            return after
        if len(data) - after >= length:
            done(data[after : after + length])
            return after + length
        self._session.await_body(length, done)
        return after

    def _writable(self, topic: bytes) -> Log:
        """The log of a topic, made if it is not there, which counts as a read does. Raises Refusal."""
        topics = self._session.topics
        before = len(topics)
        log = topics.writable_untrusted(topic)
        if len(topics) > before:
            self._session.has_read()
        return log

    def _append_done(self, fields: Sequence[bytes]) -> Callable[[bytes], None]:
        topic = fields[0]
        topic_untrusted(topic)

        def done(body: bytes) -> None:
            try:
                self.queue(self._writable(topic), body)
            except Refusal as refusal:
                self._session.refuse(refusal)

        return done

    def _batch_done(self, fields: Sequence[bytes], length: int) -> Callable[[bytes], None]:
        topic = fields[0]
        topic_untrusted(topic)
        writer = name_untrusted(fields[1], "writer")
        seq = number_untrusted(fields[2], "seq")
        if not length:
            raise Refusal(Code.SYNTAX, "a batch holds one record at least")

        def done(body: bytes) -> None:
            try:
                self._batch(topic, writer, seq, body)
            except Refusal as refusal:
                self._session.refuse(refusal)

        return done

    def _batch(self, topic: bytes, writer: str, seq: int, records: bytes) -> None:
        count = runs.record_count(records, self._size_max)
        if count is None:
            raise Refusal(Code.SYNTAX, "a batch is whole records: length in 4 bytes, payload")
        log = self._writable(topic)
        self.flush()
        try:
            first, ticket, written = self._session.broker.writers.write(log, writer, seq, records, count)
        except StoreError as error:
            raise refusal_for(error) from None
        if written:
            self._session.counts.messages_in += count
            self._session.counts.bytes_in += len(records)
        else:
            self._session.counts.batches_repeated += 1
        self._session.owe(ticket, b"OK %d\n" % first)

    def queue(self, log: Log, message: bytes) -> None:
        """A write that is appended with its neighbours, by `flush`."""
        self.logs.append(log)
        self.messages.append(message)

    def flush(self) -> None:
        """Append what is queued, a topic at a time, and owe the answers in the order of the requests."""
        if not self.messages:
            return
        logs, messages = self.logs.copy(), self.messages.copy()
        self.logs.clear()
        self.messages.clear()
        first, count = logs[0], len(logs)
        if logs.count(first) == count:
            records, lengths = runs.encode(messages)
            self._append(first, records, count, lengths)
        else:
            self._append_by_topic(logs, messages)

    def _append_by_topic(self, logs: Sequence[Log], messages: Sequence[bytes]) -> None:
        """Of several topics: one append for each, and the answers in the order of the requests."""
        places: dict[Log, list[int]] = {}
        for place, log in enumerate(logs):
            if log in places:
                places[log].append(place)
            else:
                places[log] = [place]
        offsets = [0] * len(logs)
        outcomes: dict[Log, Ticket | Refusal] = {}
        for log, those in places.items():
            records, lengths = runs.encode([messages[place] for place in those])
            try:
                offset, outcomes[log] = self._alive(log).append(records, len(those))
            except (StoreError, Refusal) as error:
                outcomes[log] = error if isinstance(error, Refusal) else refusal_for(error)
                continue
            for place, at in zip(those, accumulate(lengths, initial=offset), strict=False):
                offsets[place] = at
            self._session.counts.messages_in += len(those)
            self._session.counts.bytes_in += len(records)
        start = 0
        for outcome, run in groupby(map(outcomes.__getitem__, logs)):
            end = start + sum(1 for _ in run)
            if isinstance(outcome, Refusal):
                self._session.refuse(outcome, end - start)
            else:
                answers = (b"OK %d\n" * (end - start)) % tuple(offsets[start:end])
                self._session.replies.reply_after(outcome, answers, end - start)
            start = end
        self._after_write()

    def _append(self, log: Log, records: bytes, count: int, lengths: runs.Lengths) -> None:
        """Append a run and owe its answers."""
        try:
            if log.deleted:
                log = self._alive(log)
            first, ticket = log.append(records, count)
        except (StoreError, Refusal) as error:
            self._session.refuse(error if isinstance(error, Refusal) else refusal_for(error), count)
            return
        counts = self._session.counts
        counts.messages_in += count
        counts.bytes_in += len(records)
        self._session.replies.reply_after(ticket, runs.ok_lines(first, count, lengths), count)
        if self._session.replies.full or self._session.broker.store.congested:
            self._after_write()

    def _alive(self, log: Log) -> Log:
        """`log`, or the one that takes its place if it was deleted since it was looked up."""
        if not log.deleted:
            return log
        self.word = self._separator = _NEVER
        return self._writable(log.name.encode())

    def _after_write(self) -> None:
        session = self._session
        if session.replies.full:
            session.stop(STOP_OWED)
        store = session.broker.store
        if store.congested:
            session.stop(STOP_STORE)
            store.when_uncongested(session.replies.guarded(lambda: session.go(STOP_STORE)))

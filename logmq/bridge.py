"""LogMQ as an end of bridges: topics that match a glob as sources, topics as targets.

A source keeps its position in each topic; it is in the journal entry with the carried messages. Topics
created while the bridge runs are carried from their first record on.
"""

import re
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from logmq.runs import HEADER_BYTES, encode, same_length
from logmq.wire import Refusal, topic_untrusted
from shared.access import READ, WRITE
from shared.addresses import MessageOrigin, NameTemplate, unescaped
from shared.bridging import (
    BridgeContext,
    BridgeRefusal,
    BridgeSource,
    BridgeTarget,
    MessageRun,
    Positions,
    may_name,
)
from shared.errors import CorruptRecord, NotARecord, OutOfRange, StoreError
from shared.globs import matcher

if TYPE_CHECKING:
    from logmq.broker import Broker
    from logmq.listener import LogmqService
    from shared.storage.store import Log

READ_BYTES = 256 << 10
"""Bytes read from one topic at a time: about a millisecond of work."""
READ_AHEAD_BYTES = 1 << 20
"""Above so many bytes in the inbox, reading pauses."""
TOPICS_AT_ONCE = 8
"""Topics added, and read ahead, per call for a run; a step of a bridge has a hundred calls."""
LAG_TOPICS_MAX = 4096
"""With more topics the lag of a paused bridge is not computed: it would hold the loop too long."""
_WILD = re.compile(r"[*?]")
_PLACE = struct.Struct(">QQ")
"""A position: the log's id, so that a topic created again is another one, and the offset."""


class _Topic:
    """A topic being read. `next`: the offset of the next read; `carried`: everything below is carried."""

    __slots__ = ("carried", "log", "name", "next", "queued", "reading")

    def __init__(self, name: bytes, log: "Log", offset: int) -> None:
        self.name = name
        self.log = log
        self.next = self.carried = offset
        self.reading = self.queued = False


class LogmqSource:
    """A `BridgeSource`. Topics with unread records wait in line; after one read it is the next one's turn."""

    durable = gives_back = True

    def __init__(self, broker: "Broker", pattern: str, context: BridgeContext) -> None:
        self._broker = broker
        self._matches = matcher([pattern])
        self._context = context
        self._topics: dict[bytes, _Topic] = {}
        self._line: deque[_Topic] = deque()
        self._closed = False
        self._unread: StoreError | None = None
        """Why a topic could not be read: the bridge restarts from its positions."""
        self._start = context.start if context.positions.first_run else "first"
        found = (log for log in broker.topics.all() if self._matches(log.name))
        self._unseen: list[Log] | None = list(found)
        """Topics that existed before and are not added yet; None: all are added."""
        broker.topics.on_made.add(self._made)

    def take(self, count: int) -> MessageRun | None:
        if self._unseen is not None:
            self._add_some(self._unseen)
            self._read()
        run = self._context.inbox.take(count)
        if run is None and self._unread is not None:
            raise self._unread.with_traceback(None)
        self._read()
        return run

    def confirm(self, run: MessageRun) -> None:
        assert run.positions is not None
        topic: _Topic = run.handles[-1]
        if topic.log.deleted:  # one that was made again by its name begins with its own first record
            return
        offset = run.positions[-1] + HEADER_BYTES + len(run.bodies[-1])
        self._context.positions.put(topic.name, _PLACE.pack(topic.log.id, offset))
        topic.carried = offset

    def seal(self) -> None:
        """Nothing to do: each confirmation is noted at once."""

    def refill(self) -> None:
        self._read()

    def lag(self) -> int:
        topics = self._topics.values()
        return sum(max(0, topic.log.visible - max(topic.carried, topic.log.first)) for topic in topics)

    def close(self) -> None:
        self._closed = True
        self._broker.topics.on_made.discard(self._made)
        for topic in self._topics.values():
            topic.log.watchers.discard(self._moved)

    def _add_some(self, unseen: "list[Log]") -> None:
        for _ in range(min(TOPICS_AT_ONCE, len(unseen))):
            log = unseen.pop()
            if not log.deleted and log.name.encode() not in self._topics:
                self._add(log, self._start)
        if unseen:
            self._context.wake()
        else:
            self._unseen = None
            if self._context.positions.first_run:
                self._context.positions.started()

    def _made(self, log: "Log") -> None:
        if self._matches(log.name):
            self._add(log, "first")

    def _add(self, log: "Log", start: str) -> None:
        name = log.name.encode()
        if not self._context.may(READ, name):
            self._context.warn(
                "a bridge may not read a topic that it matches, and leaves it out; allow it in the users "
                "file, or narrow the pattern",
                topic=log.name,
            )
            return
        offset = self._place(name, log, start)
        before = self._topics.get(name)
        if before is not None:
            before.log.watchers.discard(self._moved)
        topic = self._topics[name] = _Topic(name, log, offset)
        log.watchers.add(self._moved)
        self._queue(topic)

    def _place(self, name: bytes, log: "Log", start: str) -> int:
        """Where to begin. On the first run this is stored, so that the next start begins there too."""
        kept = self._context.positions.get(name)
        if kept is not None:
            log_id, offset = _PLACE.unpack(kept)
            if log_id == log.id:
                if offset < log.first:
                    self._tell_passed(log, offset, log.first, str(OutOfRange(log.first)))
                return min(max(int(offset), log.first), log.end)
            start = "first"
        offset = _offset_of(log, start)
        with suppress(StoreError):  # it is stored with the first carried messages
            self._context.positions.begin(name, _PLACE.pack(log.id, offset))
        return offset

    def _moved(self, log: "Log") -> None:
        name = log.name.encode()
        topic = self._topics.get(name)
        if topic is None or topic.log is not log:
            return
        if log.deleted:
            log.watchers.discard(self._moved)
            del self._topics[name]
            with suppress(StoreError):
                self._context.positions.delete(name)
            return
        self._queue(topic)
        self._read()

    def _queue(self, topic: _Topic) -> None:
        if not topic.queued and not topic.reading and topic.next < topic.log.visible:
            topic.queued = True
            self._line.append(topic)

    def _read(self) -> None:
        """Read ahead one stretch of each topic in line, as far as there is room."""
        inbox = self._context.inbox
        for _ in range(TOPICS_AT_ONCE):
            if not self._line or self._closed or inbox.bytes >= READ_AHEAD_BYTES:
                return
            topic = self._line.popleft()
            topic.queued = False
            topic.reading = True
            topic.log.read(topic.next, READ_BYTES, lambda found, topic=topic: self._found(topic, found))  # type: ignore[misc]
            if topic.reading:
                return  # it is pending; the others need not wait behind it
        if self._line:
            self._context.wake()

    def _found(self, topic: _Topic, records: bytes | StoreError) -> None:
        topic.reading = False
        if self._closed or self._topics.get(topic.name) is not topic:
            return
        try:
            if isinstance(records, OutOfRange | CorruptRecord | NotARecord):
                self._pass_over(topic, records)
            elif isinstance(records, StoreError):
                raise records
            elif records:
                run = _run(topic, records)
                topic.next += len(records)
                self._context.inbox.hold(run)
        except StoreError as error:
            self._unread = error
            self._context.wake()
            return
        self._queue(topic)
        if self._line and self._context.inbox.bytes < READ_AHEAD_BYTES:
            self._context.wake()  # it calls for the next read

    def _pass_over(self, topic: _Topic, error: OutOfRange | CorruptRecord | NotARecord) -> None:
        """Continue behind what cannot be read or has been dropped; inside a record, at its beginning."""
        if isinstance(error, NotARecord):  # after a reset, or by `start`
            following = error.below
        else:
            following = (
                topic.log.first if isinstance(error, OutOfRange) else topic.log.lost_at(topic.next).end
            )
            self._tell_passed(topic.log, topic.next, following, str(error))
        topic.next = topic.carried = following

    def _tell_passed(self, log: "Log", offset: int, following: int, reason: str) -> None:
        self._context.warn(
            "records of a topic cannot be read, and the bridge goes on behind them; look at the disk, or "
            "keep records for longer",
            topic=log.name,
            offset=offset,
            following=following,
            reason=reason,
        )


class LogmqTarget:
    """A `BridgeTarget`: writing creates topics."""

    durable = True

    def __init__(self, broker: "Broker", context: BridgeContext) -> None:
        self._broker = broker
        self._context = context

    def check(self, name: bytes, body: bytes) -> None:
        self._context.require(WRITE, name)
        bytes_max = self._broker.settings.message_bytes_max
        if len(body) > bytes_max:
            text = f"a message of {len(body)} bytes; message_bytes_max is {bytes_max}"
            raise BridgeRefusal("too_large", text, lasting=True)
        try:
            topic_untrusted(name)
        except Refusal as refusal:
            raise BridgeRefusal("bad_name", str(refusal), lasting=True) from None

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        self.check(name, bodies[0])
        bytes_max = self._broker.settings.message_bytes_max
        count = next((at for at, body in enumerate(bodies) if len(body) > bytes_max), len(bodies))
        try:
            log = self._broker.topics.writable_untrusted(name)
        except Refusal as refusal:  # too many topics, or the store refuses
            raise BridgeRefusal("full", str(refusal)) from None
        records, _ = encode(bodies if count == len(bodies) else bodies[:count])
        log.append(records, count)
        counts = self._broker.counts
        counts.messages_in += count
        counts.bytes_in += len(records)
        return count

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


class LogmqBridgeEnds:
    """See `shared.bridging.BridgeEnds`."""

    keeps_position = True

    def check_source(self, place: str) -> None:
        if not place:
            raise ValueError("a topic or a glob of topics is missing: logmq:jobs, logmq:*")
        if "[" in _pattern(place):
            raise ValueError("no topic has [ in its name: * is any run of characters, ? is one")

    def target_name(self, place: str) -> NameTemplate:
        template = NameTemplate.parse(place)
        if not template.fields:
            try:
                topic_untrusted(template.name_for(MessageOrigin("", b"")))
            except Refusal as refusal:
                raise ValueError(str(refusal)) from None
        return template

    def gives_back(self, source: str) -> bool:
        return False

    def may_feed(self, target: str, source: str) -> bool:
        return may_name(NameTemplate.parse(target), unescaped(source).decode("latin-1"))

    def open_source(self, service: "LogmqService", place: str, context: BridgeContext) -> BridgeSource:
        pattern = _pattern(place)
        if not _WILD.search(pattern):
            context.require(READ, pattern.encode())
        return LogmqSource(service.broker, pattern, context)

    def open_target(self, service: "LogmqService", place: str, context: BridgeContext) -> BridgeTarget:
        return LogmqTarget(service.broker, context)

    def lag_of(self, service: "LogmqService", place: str, positions: Positions) -> int | None:
        matches, topics = matcher([_pattern(place)]), service.broker.topics.all()
        if positions.first_run or len(topics) > LAG_TOPICS_MAX:
            return None
        lag = 0
        for log in topics:
            if matches(log.name):
                kept = positions.get(log.name.encode())
                log_id, offset = (log.id, 0) if kept is None else _PLACE.unpack(kept)
                lag += max(0, log.visible - max(log.first, offset if log_id == log.id else 0))
        return lag


ENDS = LogmqBridgeEnds()


def _pattern(place: str) -> str:
    return unescaped(place).decode(errors="replace")


def _run(topic: _Topic, records: bytes) -> MessageRun:
    start, length = topic.next, same_length(records)
    positions: Sequence[int]
    if length:
        end = len(records)
        bodies = [records[at + HEADER_BYTES : at + length] for at in range(0, end, length)]
        positions = range(start, start + end, length)
    else:
        bodies, at = [], 0
        while at < len(records):
            head = at + HEADER_BYTES
            at = head + int.from_bytes(records[at:head], "big")
            bodies.append(records[head:at])
        positions = list(accumulate((HEADER_BYTES + len(body) for body in bodies[:-1]), initial=start))
    origin = MessageOrigin("logmq", topic.name, time=topic.log.last_ms / 1000)
    return MessageRun(origin, bodies, (topic,) * len(bodies), positions)


def _offset_of(log: "Log", start: str) -> int:
    """Where `start` is in a topic. A time finds the first index entry that ends then or later."""
    if start == "first":
        return log.first
    if start == "end":
        return log.end
    if start.startswith("@"):
        return log.seek(int(start[1:]))
    return min(max(int(start), log.first), log.end)

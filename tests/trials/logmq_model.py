"""What was sent to LogMQ, what was answered, what was read; and whether all of it can be true at once.

The simulation and the trials of the real server judge by it. Nothing here knows what the server does inside:
the model has only what clients know. Every message has its own payload, so a record read anywhere names the
request that it came from. Each request is an interval: from the tick at which it was sent (`begun`) to the
tick of its answer (`ended`); without an answer to the tick at which the server was through with that
connection. Whatever lies within intervals that overlap may have happened in any order; what does not overlap
has an order, and that is what is checked.

Topics are deleted and made again under clients' hands, so most promises are checked for the messages that are
*certainly there*: no deletion of their topic can have come after them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from tests.support.dms_model import Surroundings
from tests.support.promises import BrokenPromiseError

LENGTH_BYTES = 4


@attrs.define(eq=False)
class Message:
    """One payload that a client sent, perhaps several times (BATCH).

    `first_begun`: when it was first sent; `begun`: when that was sent which was answered, or was sent last.
    `offset`: where the server said it is, or where somebody read it. `known_seconds`: virtual time of that.
    `placed`: when the first sending began that put it there. It may be deleted, and sent again, and refused.
    """

    topic: str
    payload: bytes
    wire: int
    first_begun: int
    begun: int
    ended: float = math.inf
    over: float = math.inf
    offset: int | None = None
    acked: bool = False
    known_seconds: float = math.inf
    placed: float = math.inf
    refused: bool = False
    doubtful: bool = False
    """It was refused, and may have been written all the same."""
    lost: bool = False
    """It is not there any more, and that is right: retention, or a power cut in a mode that may lose it."""
    missed: bool = False
    """It was not there after a power cut that may have taken it; its answer may still be under way."""
    retried: bool = False
    batch: Sequence["Message"] = ()
    """All of the BATCH that it is part of: they are there together, or none is."""

    @property
    def there_since(self) -> float:
        """A deletion that ended later may have taken it."""
        return min(self.begun, self.placed)

    def __str__(self) -> str:
        return f"{self.payload[:24]!r} in {self.topic}"


@attrs.define(eq=False)
class Deletion:
    """A DELETE of a topic; `over`: it cannot take effect later."""

    begun: int
    over: float = math.inf
    acked: bool = False
    refused: bool = False
    known_seconds: float = math.inf


@attrs.define(eq=False)
class Commitment:
    """A COMMIT. `ended`: it had taken effect by then (it was answered, or somebody read it)."""

    offset: int
    begun: int
    ended: float = math.inf
    over: float = math.inf
    refused: bool = False
    known_seconds: float = math.inf


@attrs.define(eq=False)
class Topic:
    """All that clients know of one topic's name. `kept_bytes`: retention leaves so many; None: all."""

    name: str
    mode: str
    kept_bytes: int | None = None
    first: int = 0
    """Where it began when all of it was seen last,"""
    end: int = 0
    """and ended."""
    messages: dict[bytes, Message] = attrs.Factory(dict)
    there: set[bytes] = attrs.Factory(set)
    """What was there when all of it was seen last."""
    gone: set[bytes] = attrs.Factory(set)
    """What will never be there again (`settle`)."""
    deletions: list[Deletion] = attrs.Factory(list)
    commitments: dict[str, list[Commitment]] = attrs.Factory(dict)


Record = tuple[int, bytes]


class Model:
    """The clients' knowledge, all of it."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.topics: dict[str, Topic] = {}
        self.sent = 0
        self.acknowledged = 0
        self.records_checked = 0
        self.lost: list[Message] = []
        """Acknowledged messages that a power cut was allowed to take."""
        self._safe: dict[str, float] = {}
        self._doubted_last = -1
        """When the last answer came after which a request was done or not."""

    def topic(self, name: str) -> Topic:
        """Its mode is told by how its name begins."""
        topic = self.topics.get(name)
        if topic is None:
            mode = {"i": "interval", "n": "none"}.get(name[0], "always")
            topic = self.topics[name] = Topic(name, mode)
        return topic

    def is_safe(self, topic: Topic, known_seconds: float = math.inf) -> bool:
        """Whether no power cut took what was known by then to have happened."""
        return known_seconds <= self._safe.get(topic.mode, math.inf)

    # -- writing

    def send(self, name: str, payload: bytes, wire: int) -> Message:
        topic = self.topic(name)
        self.sent += 1
        now = self._world.tick()
        message = topic.messages[payload] = Message(name, payload, wire, now, now)
        return message

    def send_batch(self, name: str, payloads: Iterable[bytes], wire: int) -> list[Message]:
        messages = [self.send(name, payload, wire) for payload in payloads]
        for message in messages:
            message.batch = messages
        return messages

    def send_again(self, message: Message, wire: int) -> None:
        message.begun = self._world.tick()
        message.wire = wire
        message.over = math.inf
        message.retried = True
        message.missed = False

    def acked(self, message: Message, offset: int) -> None:
        now = self._world.tick()
        if message.offset is not None and message.offset != offset:
            self._check_moved(message, offset, now)
        self.acknowledged += 1
        message.lost = message.missed
        message.offset = offset
        message.placed = min(message.placed, message.begun)
        message.acked = True
        message.known_seconds = min(message.known_seconds, self._world.now())
        message.ended = message.over = now
        self._world.on_answer()

    def _check_moved(self, message: Message, offset: int, now: int) -> None:
        """A message has two offsets only if it was written again after its topic was deleted."""
        if not self._maybe_deleted_since(message.topic, message.first_begun, now) and not message.lost:
            raise BrokenPromiseError(f"{message} was at {message.offset}, and is said to be at {offset}")

    def refused(self, message: Message) -> None:
        """An answer after which the message was certainly not written (by this attempt)."""
        if not message.retried:
            message.refused = True
        message.over = self._world.tick()

    def forgotten(self, unanswered: Iterable[Message | Deletion | Commitment]) -> None:
        """The server is through with the connection on which these were sent and not answered."""
        now = self._world.tick()
        for request in unanswered:
            request.over = min(request.over, now)

    def doubted(self, request: Message | Deletion | Commitment) -> None:
        """An answer after which it was done or not."""
        self.forgotten([request])
        self._doubted_last = self._world.tick()
        if isinstance(request, Message):
            request.doubtful = True

    # -- deleting

    def delete(self, name: str) -> Deletion:
        deletion = Deletion(self._world.tick())
        self.topic(name).deletions.append(deletion)
        return deletion

    def deleted(self, deletion: Deletion) -> None:
        deletion.acked = True
        deletion.known_seconds = self._world.now()
        deletion.over = self._world.tick()
        self._world.on_answer()

    def nothing_to_delete(self, name: str, deletion: Deletion) -> None:
        """DELETE was answered with NO_TOPIC."""
        deletion.refused = True
        deletion.over = self._world.tick()
        self.saw_end(name, 0, deletion.begun)

    def _maybe_deleted_since(self, name: str, begun: float, until: float) -> bool:
        """Whether a deletion may have taken effect after a request that began at `begun`, by `until`."""
        deletions = self.topic(name).deletions
        return any(d.over > begun and d.begun < until and not d.refused for d in deletions)

    def _certainly_deleted(self, message: Message, before: float) -> bool:
        """Whether a deletion came after the message could last be written, and was answered by `before`."""
        topic = self.topic(message.topic)
        safe = self._safe.get("always", math.inf)  # a deletion is synced in every mode
        return any(
            d.acked and d.begun > message.over and d.over < before and d.known_seconds <= safe
            for d in topic.deletions
        )

    def certainly_there(self, message: Message, begun: float) -> bool:
        """Whether a read that began at `begun` must find it."""
        if message.offset is None or message.ended >= begun or message.lost:
            return False
        return not self._maybe_deleted_since(message.topic, message.there_since, math.inf)

    # -- reading

    def read(self) -> int:
        """A read begins; give what is returned to what it saw."""
        return self._world.tick()

    def saw(self, name: str, record: Record, begun: int) -> Message:
        """Somebody read this record: it is somebody's message, and will be there for ever."""
        offset, payload = record
        topic = self.topic(name)
        message = topic.messages.get(payload)
        self.records_checked += 1
        if message is None:
            what = "what was gone" if payload in topic.gone else "what nobody sent"
            raise BrokenPromiseError(f"{name} holds at {offset} {what}: {payload[:64]!r}")
        if message.refused:
            raise BrokenPromiseError(f"{message} was refused, and is at {offset}")
        if message.lost and message.over < begun:
            raise BrokenPromiseError(f"{message} was lost, and is back at {offset}")
        if self._certainly_deleted(message, begun):
            raise BrokenPromiseError(f"{message} was deleted with its topic, and is at {offset}")
        now = self._world.tick()
        if message.offset != offset:
            if message.offset is not None:
                self._check_moved(message, offset, now)
            message.offset = offset
        message.placed = min(message.placed, message.begun)
        unknown = message.ended == math.inf
        message.ended = min(message.ended, now)
        message.known_seconds = min(message.known_seconds, self._world.now())
        if unknown:
            self._world.on_sight()
        return message

    def saw_end(self, name: str, offset: int, begun: int) -> None:
        """A read at `offset` found nothing there or behind it."""
        for message in self.topic(name).messages.values():
            at = message.offset
            if at is not None and at >= offset and self.certainly_there(message, begun):
                raise BrokenPromiseError(
                    f"{message} is at {at}, and the end was said to be at {offset} or below"
                )

    # -- group offsets

    def commit(self, group: str, name: str, offset: int) -> Commitment:
        commitment = Commitment(offset, self._world.tick())
        self.topic(name).commitments.setdefault(group, []).append(commitment)
        return commitment

    def committed(self, commitment: Commitment) -> None:
        commitment.known_seconds = self._world.now()
        commitment.ended = commitment.over = self._world.tick()
        self._world.on_answer()

    def saw_committed(self, group: str, name: str, offset: int | None, begun: int) -> None:
        """COMMITTED was answered; None: NO_COMMIT (or NO_TOPIC)."""
        now = self._world.tick()
        topic = self.topic(name)
        commitments = topic.commitments.get(group, [])
        # What certainly happened before this read, and what it may have seen must not lie wholly before it.
        certain = [c.begun for c in commitments if c.ended < begun and self.is_safe(topic, c.known_seconds)]
        safe = self._safe.get("always", math.inf)
        certain += [
            d.begun for d in topic.deletions if d.acked and d.over < begun and d.known_seconds <= safe
        ]
        last = max(certain, default=-1)
        if offset is None:
            possible = last == -1 or any(
                d.begun < now and d.over >= last and not d.refused for d in topic.deletions
            )
        else:
            seen = [
                c
                for c in commitments
                if c.offset == offset and c.begun < now and c.over >= last and not c.refused
            ]
            possible = bool(seen)
            if len(seen) == 1:
                seen[0].ended = min(seen[0].ended, now)
        if not possible:
            raise BrokenPromiseError(f"group {group} of {name} is at {offset}, which a later commit replaced")

    # -- after a restart, when nothing else is under way

    def machine_ended(self, safe: Mapping[str, float]) -> None:
        """By mode until when what was known is safe from this end. There may be several before a start."""
        for mode, seconds in safe.items():
            self._safe[mode] = min(self._safe.get(mode, math.inf), seconds)

    def saw_all(self, name: str, records: Sequence[Record], begun: int, first: int = 0) -> None:
        """All that a topic holds, from `first` on."""
        topic = self.topic(name)
        found: dict[bytes, int] = {}
        expected = first
        for offset, payload in records:
            if offset != expected:
                raise BrokenPromiseError(f"{name} has a hole: {expected} to {offset}")
            expected += LENGTH_BYTES + len(payload)
            if payload in found:
                raise BrokenPromiseError(
                    f"{payload[:24]!r} is in {name} twice: {found[payload]} and {offset}"
                )
            found[payload] = offset
        self._check_first(topic, found, first, expected - first)
        if not self.is_safe(topic):
            self._take_losses(topic, found, expected)
        topic.there, topic.end = set(found), expected
        messages = [self.saw(name, record, begun) for record in records]
        self._check_order(messages)
        self._check_whole(topic, messages, found)
        self._check_deletions(topic, messages, found)
        for message in topic.messages.values():
            if message.payload not in found and self.certainly_there(message, begun):
                how = "acknowledged" if message.acked else "read"
                raise BrokenPromiseError(f"{message} was {how} at {message.offset}, and is gone")

    def _check_first(self, topic: Topic, found: Mapping[bytes, int], first: int, size: int) -> None:
        """Retention drops the oldest, so long as enough is left."""
        if first and (topic.kept_bytes is None or first < topic.first or size < topic.kept_bytes):
            raise BrokenPromiseError(f"{topic.name} begins at {first}, with {size} bytes left")
        topic.first = first
        for message in topic.messages.values() if first else ():
            if message.offset is not None and message.offset < first and message.payload not in found:
                message.lost = True

    def _check_whole(self, topic: Topic, there: Sequence[Message], found: Mapping[bytes, int]) -> None:
        """A BATCH is there whole or not at all, and of what one connection sent nothing is left out."""
        last: dict[int, Message] = {}
        for message in there:
            missing = [one for one in message.batch if one.payload not in found]
            if missing and not all(one.lost for one in missing) and not topic.first:
                raise BrokenPromiseError(f"{message} is a part of a BATCH that is not there: {missing[0]}")
            if not message.retried:
                last[message.wire] = message
        for message in topic.messages.values():
            behind = last.get(message.wire)
            if (
                behind is not None
                and message.payload not in found
                and message.begun < behind.begun
                and not (message.retried or message.refused or message.doubtful or message.lost)
                and (behind.acked or message.begun > self._doubted_last)  # such an answer may be under way
                and not topic.first
                and not self._maybe_deleted_since(topic.name, message.first_begun, math.inf)
            ):
                raise BrokenPromiseError(f"{message} is not there, and {behind}, sent behind it, is")

    def _check_deletions(self, topic: Topic, there: Sequence[Message], found: Mapping[bytes, int]) -> None:
        """A deletion takes all that was written before it, or nothing."""
        first = min((message.ended for message in there if not message.retried), default=math.inf)
        for message in topic.messages.values():
            if message.payload in found or message.lost or message.missed or message.ended == math.inf:
                continue
            since = message.first_begun
            if not any(d.over > since and d.begun < first and not d.refused for d in topic.deletions):
                raise BrokenPromiseError(
                    f"{message} was at {message.offset}: no deletion took it and left the rest"
                )

    def restarted(self) -> None:
        """Every topic was seen. What a power cut may have taken was answered, and is not certain for that."""
        deletions_safe = self._safe.get("always", math.inf)
        for topic in self.topics.values():
            for commitments in topic.commitments.values():
                for commitment in commitments:
                    if not self.is_safe(topic, commitment.known_seconds):
                        commitment.ended = math.inf
            for deletion in topic.deletions:
                deletion.acked &= deletion.known_seconds <= deletions_safe
        self._safe.clear()

    def settle(self, commits: Mapping[str, Mapping[str, int]]) -> None:
        """Begin a new page: every topic was seen, nothing is under way, and nothing will be sent again.

        `commits`: the offsets of all groups, by topic.
        """
        now = self._world.tick()
        for name, topic in self.topics.items():
            topic.gone |= topic.messages.keys() - topic.there
            topic.messages = {payload: topic.messages[payload] for payload in topic.there}
            topic.deletions.clear()
            topic.commitments = {
                group: [Commitment(offset, now, now, now, known_seconds=-math.inf)]
                for group, offset in commits.get(name, {}).items()
            }

    def _take_losses(self, topic: Topic, found: dict[bytes, int], end: int) -> None:
        """A power cut may have taken a suffix: what was not known by the time that is safe."""
        for message in topic.messages.values():
            if message.payload in found or message.lost:
                continue
            message.missed = True
            if message.offset is None:
                continue
            if self._maybe_deleted_since(topic.name, message.there_since, math.inf):
                continue
            if message.offset < end and not self._maybe_undone_before(topic, message):
                raise BrokenPromiseError(f"{message} was at {message.offset}, below the end, and is gone")
            if self.is_safe(topic, message.known_seconds):
                raise BrokenPromiseError(f"{message} was written long before the power cut, and is gone")
            message.lost = True
            if message.acked:
                self.lost.append(message)
            message.over = min(message.over, self._world.tick())

    def _maybe_undone_before(self, topic: Topic, message: Message) -> bool:
        """Whether a deletion before the message may be undone: then the end is that of an earlier life."""
        safe = self._safe.get("always", math.inf)  # a deletion is synced in every mode
        return any(
            d.begun < message.ended and not d.refused and not (d.acked and d.known_seconds <= safe)
            for d in topic.deletions
        )

    def _maybe_again(self, message: Message, begun: int) -> bool:
        """Whether it may have been deleted, and written anew after `begun`: it was sent again."""
        return (
            message.retried
            and message.over > begun
            and self._maybe_deleted_since(message.topic, message.first_begun, message.over)
        )

    def _check_order(self, messages: Sequence[Message]) -> None:
        """Requests on one connection, and requests of which one ended before the other began, keep their
        order."""
        last_begun = -1
        last: Message | None = None
        by_wire: dict[int, Message] = {}
        for message in messages:
            if message.ended < last_begun and not self._maybe_again(message, last_begun):
                raise BrokenPromiseError(f"{message} was there before {last} was sent, and stands behind it")
            if message.first_begun > last_begun:
                last_begun, last = message.first_begun, message
            if message.retried:
                continue
            before = by_wire.get(message.wire)
            if before is not None and before.begun > message.begun:
                raise BrokenPromiseError(f"{message} was sent before {before}, and stands behind it")
            by_wire[message.wire] = message


def split(data: bytes, offset: int) -> list[Record] | None:
    """The records in raw log bytes that begin at `offset`; None where they are not whole."""
    records = []
    at = 0
    while at < len(data):
        end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        if end > len(data):
            return None
        records.append((offset + at, data[at + LENGTH_BYTES : end]))
        at = end
    return records


def joined(payloads: Sequence[bytes]) -> bytes:
    """Raw log bytes of these payloads."""
    return b"".join(len(payload).to_bytes(LENGTH_BYTES, "big") + payload for payload in payloads)

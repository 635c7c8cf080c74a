"""The producing side of a connection: PRODUCE frames to messages of a queue, many at a time."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dms import runs
from dms.queue import Queue
from dms.runs import WORDS, word
from dms.wire import (
    HEADER_BYTES,
    ID_AT,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    TYPE_AT,
    Refusal,
    Status,
    Type,
    name_untrusted,
    split_name,
)

if TYPE_CHECKING:
    from dms.session import Session
    from shared.storage.store import Ticket

_PRODUCE = word(Type.PRODUCE)
_TYPE_AND_VERSION = 0xFFFF0000  # a request's status is not looked at
_NOBODY = b"\xff\xff\xff"  # begins no payload that may be one


class Producing:
    """One session's PRODUCEs. `_name`: what the newest payloads began with, and the next may begin with.

    `looked`: up to where in the input there is no run.
    """

    __slots__ = ("_name", "_queue", "_session", "looked")

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._queue: Queue | None = None
        self._name = _NOBODY
        self.looked = 0

    def frames(self, data: bytes, at: int, length: int) -> int:
        """The whole PRODUCE at `at`, and those to the same queue behind it; returns where they end."""
        name = self._name
        payload = at + HEADER_BYTES
        queue = self._queue
        if queue is None or queue.deleted or length < len(name) or not data.startswith(name, payload):
            try:
                self._learn(data[payload : payload + length])
            except Refusal as refusal:
                self._session.refuse(int.from_bytes(data[at + ID_AT : payload]), refusal)
                return payload + length
            name, queue = self._name, self._queue
            assert queue is not None
        step = HEADER_BYTES + length
        if at >= self.looked and runs.begins(data, at, step):
            if (run := runs.produced(data, at, length, len(name))) is not None:
                ids, names, bodies = run
                if names.count(name) == len(names):
                    self._add(queue, bodies, len(ids) * (length - len(name)), ids)
                    return at + len(ids) * step
                if self._by_queue_alike(ids, names, bodies):
                    return at + len(ids) * step
            self.looked = at + runs.RUN_MOST * step
        if self._turns(data, payload + length, name) and (end := self._by_queue(data, at)) > at:
            return end
        return self._one_by_one(data, at, queue, name)

    def _turns(self, data: bytes, at: int, name: bytes) -> bool:
        """Whether there is another PRODUCE at `at`, to another queue."""
        return (
            len(data) - at > HEADER_BYTES
            and data[at + TYPE_AT] == Type.PRODUCE
            and not data.startswith(name, at + HEADER_BYTES)
        )

    def _by_queue_alike(self, ids: Sequence[bytes], names: Sequence[bytes], bodies: Sequence[bytes]) -> bool:
        """PRODUCEs of one length to several queues by turns, for all of which there is room: each queue gets
        its own in one go. False where they are not all such; nothing has been done then.
        """
        queues = self._session.broker.queues
        parts: dict[bytes, _Part] = {}
        for name in dict.fromkeys(names):
            queue = queues.get(name[2:]) if int.from_bytes(name[:2]) == len(name) - 2 else None
            if queue is None:
                return False
            parts[name] = _Part(queue)
        for name, body in zip(names, bodies, strict=True):
            parts[name].bodies.append(body)
        for part in parts.values():
            if len(part.bodies) > part.room:
                return False
            part.size = len(part.bodies) * len(bodies[0])
        for part in parts.values():
            part.add()
        self._answer_turns(parts, names, ids)
        return True

    def _by_queue(self, data: bytes, at: int) -> int:
        """PRODUCEs to several queues by turns, as far as none is odd: each queue gets its own in one go.

        Returns where they end: at the first, if there is no room for it.
        """
        end = len(data)
        queues = self._session.broker.queues
        parts: dict[bytes, _Part] = {}
        names: list[bytes] = []
        ids: list[bytes] = []
        while end - at >= HEADER_BYTES and len(ids) < runs.RUN_MOST:
            magic, length, what, _ = WORDS.unpack_from(data, at)
            payload = at + HEADER_BYTES
            stop = payload + length
            if what & _TYPE_AND_VERSION != _PRODUCE or magic != MAGIC or stop > end or length < 2:
                break
            body = payload + 2 + (data[payload] << 8 | data[payload + 1])
            if body > stop or length > PAYLOAD_BYTES_MAX:
                break
            name = data[payload:body]
            part = parts.get(name)
            if part is None:
                queue = queues.get(name[2:])
                if queue is None:
                    break
                part = parts[name] = _Part(queue)
            if len(part.bodies) >= part.room:
                break
            part.bodies.append(data[body:stop])
            part.size += stop - body
            names.append(name)
            ids.append(data[at + ID_AT : payload])
            at = stop
        for part in parts.values():
            part.add()
        if ids:
            self._answer_turns(parts, names, ids)
        return at

    def _answer_turns(
        self, parts: "Mapping[bytes, _Part]", names: Sequence[bytes], ids: Sequence[bytes]
    ) -> None:
        """In the order of the requests; nearly always all wait for the same."""
        if len({part.outcome for part in parts.values()}) == 1:
            self._answer(parts[names[0]].outcome, ids)
            return
        at = 0
        for outcome, those in groupby(names, key=lambda name: parts[name].outcome):
            stop = at + sum(1 for _ in those)
            self._answer(outcome, ids[at:stop])
            at = stop

    def _one_by_one(self, data: bytes, at: int, queue: Queue, name: bytes) -> int:
        end, begin = len(data), HEADER_BYTES + len(name)
        bodies: list[bytes] = []
        ids: list[bytes] = []
        size = 0
        while end - at >= HEADER_BYTES:
            magic, length, what, _ = WORDS.unpack_from(data, at)
            stop = at + HEADER_BYTES + length
            if (
                what & _TYPE_AND_VERSION != _PRODUCE
                or magic != MAGIC
                or stop > end
                or length > PAYLOAD_BYTES_MAX
                or at + begin > stop
                or not data.startswith(name, at + HEADER_BYTES)
            ):
                break
            bodies.append(data[at + begin : stop])
            ids.append(data[at + ID_AT : at + HEADER_BYTES])
            size += stop - at - begin
            at = stop
        self._add(queue, bodies, size, ids)
        return at

    def _learn(self, payload: bytes) -> None:
        """Which queue it is. Raises Refusal."""
        name, end = split_name(payload)
        queue = self._session.broker.queues.get(name)
        if queue is None:
            raise Refusal(Status.QUEUE_NOT_FOUND, f"{name_untrusted(name)} does not exist")
        self._queue, self._name = queue, payload[:end]

    def _add(self, queue: Queue, bodies: Sequence[bytes], size: int, ids: Sequence[bytes]) -> None:
        """Add messages, as many as there is room for, and owe the answers."""
        room = queue.options.depth - queue.depth
        if room < len(bodies):
            room = max(room, 0)
            size = sum(map(len, bodies[:room]))
        if room:
            self._answer(_produced(queue, bodies[:room], size), ids[:room])
        if room < len(bodies):
            full = Refusal(Status.QUEUE_FULL, f"{queue.text} holds its {queue.options.depth} messages")
            self._session.refuse_all(ids[room:], full)

    def _answer(self, outcome: "Ticket | Refusal | None", ids: Sequence[bytes]) -> None:
        if isinstance(outcome, Refusal):
            self._session.refuse_all(ids, outcome)
            return
        reply = runs.answers(runs.PRODUCE_OK, ids)
        if outcome is None:
            self._session.say(reply)
        else:
            self._session.owe(outcome, reply, len(ids))


class _Part:
    """What one queue gets of PRODUCEs to several. `outcome`: what its answers wait for, or say."""

    __slots__ = ("bodies", "outcome", "queue", "room", "size")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.room = queue.room
        self.bodies: list[bytes] = []
        self.size = 0
        self.outcome: Ticket | Refusal | None = None

    def add(self) -> None:
        if self.bodies:
            self.outcome = _produced(self.queue, self.bodies, self.size)


def _produced(queue: Queue, bodies: Sequence[bytes], size: int) -> "Ticket | Refusal | None":
    try:
        return queue.produce(bodies, size)
    except Refusal as refusal:
        return refusal

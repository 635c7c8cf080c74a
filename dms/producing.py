"""The producing side of a connection: PRODUCE frames to messages of a queue, many at a time."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dms import runs
from dms.queue import Queue
from dms.runs import WORDS, word
from dms.wire import HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX, Refusal, Status, Type, name_untrusted, split_name

if TYPE_CHECKING:
    from dms.session import Session
    from shared.storage.store import Ticket

TURNS_MAX = 256
"""PRODUCEs to several queues that are taken together: some hundred microseconds."""

_PRODUCE = word(Type.PRODUCE)
_TYPE_AND_VERSION = 0xFFFF0000  # a request's status is not looked at
_TYPE_AT = 8
_ID_AT = 12
_NOBODY = b"\xff\xff\xff"  # begins no payload that may be one


class Producing:
    """One session's PRODUCEs. `_name`: what the newest payloads began with, and the next may begin with."""

    __slots__ = ("_mixed", "_name", "_queue", "_session")

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._queue: Queue | None = None
        self._name = _NOBODY
        self._mixed = b""  # input that has been found not to be a run

    def frames(self, data: bytes, at: int, length: int) -> int:
        """The whole PRODUCE at `at`, and those to the same queue behind it; returns where they end."""
        name = self._name
        payload = at + HEADER_BYTES
        queue = self._queue
        if queue is None or queue.deleted or length < len(name) or not data.startswith(name, payload):
            try:
                self._learn(data[payload : payload + length])
            except Refusal as refusal:
                self._session.refuse(int.from_bytes(data[at + 12 : payload], "big"), refusal)
                return payload + length
            name, queue = self._name, self._queue
            assert queue is not None
        if self._turns(data, payload + length, name):
            end = self._by_queue_alike(data, at, length, len(name)) or self._by_queue(data, at)
            if end > at:
                return end
        begin = HEADER_BYTES + len(name)
        if data is not self._mixed and (count := runs.produced(data, at, length, name)):
            step = HEADER_BYTES + length
            end = at + count * step
            bodies = [data[start + begin : start + step] for start in range(at, end, step)]
            self._add(queue, bodies, count * (step - begin), runs.packed_ids(data, at, step, count))
            return end
        return self._one_by_one(data, at, queue, name)

    def _turns(self, data: bytes, at: int, name: bytes) -> bool:
        """Whether there is another PRODUCE at `at`, to another queue."""
        return (
            len(data) - at > HEADER_BYTES
            and data[at + _TYPE_AT] == Type.PRODUCE
            and not data.startswith(name, at + HEADER_BYTES)
        )

    def _by_queue_alike(self, data: bytes, at: int, length: int, width: int) -> int:
        """PRODUCEs of one length to several queues by turns, whose names are `width` bytes in a payload, for
        all of which there is room: each queue gets its own in one go.

        Returns where they end; 0 where they are not all such.
        """
        count = min(runs.produced(data, at, length, b""), TURNS_MAX)
        if not count:
            return 0
        step = HEADER_BYTES + length
        starts = range(at + HEADER_BYTES, at + count * step, step)
        names = [data[start : start + width] for start in starts]
        queues = self._session.broker.queues
        parts: dict[bytes, _Part] = {}
        for name in dict.fromkeys(names):
            queue = queues.get(name[2:]) if int.from_bytes(name[:2], "big") == width - 2 else None
            if queue is None:
                return 0
            parts[name] = _Part(queue)
        for name, start in zip(names, starts, strict=True):
            parts[name].bodies.append(data[start + width : start + length])
        for part in parts.values():
            if len(part.bodies) > part.room:
                return 0
            part.size = len(part.bodies) * (length - width)
        for part in parts.values():
            part.add()
        turns = list(map(parts.__getitem__, names))
        self._answer_turns(parts.values(), turns, runs.packed_ids(data, at, step, count))
        return at + count * step

    def _by_queue(self, data: bytes, at: int) -> int:
        """PRODUCEs to several queues by turns, as far as none is odd: each queue gets its own in one go.

        Returns where they end: at the first, if there is no room for it.
        """
        end = len(data)
        queues = self._session.broker.queues
        parts: dict[bytes, _Part] = {}
        turns: list[_Part] = []
        ids = bytearray()
        while end - at >= HEADER_BYTES and len(turns) < TURNS_MAX:
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
            turns.append(part)
            ids += data[at + _ID_AT : payload]
            at = stop
        for part in parts.values():
            part.add()
        if turns:
            self._answer_turns(parts.values(), turns, ids)
        return at

    def _answer_turns(self, parts: "Iterable[_Part]", turns: "list[_Part]", ids: bytearray) -> None:
        """In the order of the requests; nearly always all wait for the same."""
        if len({part.outcome for part in parts}) == 1:
            self._answer(turns[0].outcome, ids)
            return
        at = 0
        for outcome, those in groupby(turns, key=_outcome):
            stop = at + 4 * sum(1 for _ in those)
            self._answer(outcome, ids[at:stop])
            at = stop

    def _one_by_one(self, data: bytes, at: int, queue: Queue, name: bytes) -> int:
        end, begin = len(data), HEADER_BYTES + len(name)
        bodies: list[bytes] = []
        ids = bytearray()
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
            ids += data[at + 12 : at + 16]
            size += stop - at - begin
            at = stop
        if len(bodies) > 1:
            self._mixed = data
        self._add(queue, bodies, size, ids)
        return at

    def _learn(self, payload: bytes) -> None:
        """Which queue it is. Raises Refusal."""
        name, end = split_name(payload)
        queue = self._session.broker.queues.get(name)
        if queue is None:
            raise Refusal(Status.QUEUE_NOT_FOUND, f"{name_untrusted(name)} does not exist")
        self._queue, self._name = queue, payload[:end]

    def _add(self, queue: Queue, bodies: list[bytes], size: int, ids: bytes | bytearray) -> None:
        """Add messages, as many as there is room for, and owe the answers."""
        room = queue.options.depth - queue.depth
        if room < len(bodies):
            room = max(room, 0)
            size = sum(map(len, bodies[:room]))
        if room:
            self._add_all(queue, bodies[:room] if room < len(bodies) else bodies, size, ids[: 4 * room])
        if room < len(bodies):
            full = Refusal(Status.QUEUE_FULL, f"{queue.text} holds its {queue.options.depth} messages")
            self._refuse(ids[4 * room :], full)

    def _add_all(self, queue: Queue, bodies: Sequence[bytes], size: int, ids: bytes | bytearray) -> None:
        self._answer(_produced(queue, bodies, size), ids)

    def _answer(self, outcome: "Ticket | Refusal | None", ids: bytes | bytearray) -> None:
        if isinstance(outcome, Refusal):
            self._refuse(ids, outcome)
            return
        reply = runs.answers(Type.PRODUCE_OK, ids)
        if outcome is None:
            self._session.say(reply)
        else:
            self._session.owe(outcome, reply, len(ids) // 4)

    def _refuse(self, ids: bytes | bytearray, refusal: Refusal) -> None:
        self._session.refuse_all([int.from_bytes(ids[at : at + 4]) for at in range(0, len(ids), 4)], refusal)


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


def _outcome(part: _Part) -> "Ticket | Refusal | None":
    return part.outcome


def _produced(queue: Queue, bodies: Sequence[bytes], size: int) -> "Ticket | Refusal | None":
    try:
        return queue.produce(bodies, size)
    except Refusal as refusal:
        return refusal

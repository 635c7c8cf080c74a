"""The producing side of a connection: PRODUCE frames to messages of a queue, many at a time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dms import runs
from dms.queue import Queue
from dms.runs import WORDS, word
from dms.wire import HEADER_BYTES, MAGIC, PAYLOAD_BYTES_MAX, Refusal, Status, Type, name_untrusted, split_name

if TYPE_CHECKING:
    from dms.session import Session

_PRODUCE = word(Type.PRODUCE)
_TYPE_AND_VERSION = 0xFFFF0000  # a request's status is not looked at
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
        begin = HEADER_BYTES + len(name)
        if data is not self._mixed and (count := runs.produced(data, at, length, name)):
            step = HEADER_BYTES + length
            end = at + count * step
            bodies = [data[start + begin : start + step] for start in range(at, end, step)]
            self._add(queue, bodies, count * (step - begin), runs.packed_ids(data, at, step, count))
            return end
        return self._one_by_one(data, at, queue, name)

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
        try:
            ticket = queue.produce(bodies, size)
        except Refusal as refusal:
            self._refuse(ids, refusal)
            return
        reply = runs.answers(Type.PRODUCE_OK, ids)
        if ticket is None:
            self._session.say(reply)
        else:
            self._session.owe(ticket, reply, len(bodies))

    def _refuse(self, ids: bytes | bytearray, refusal: Refusal) -> None:
        for at in range(0, len(ids), 4):
            self._session.refuse(int.from_bytes(ids[at : at + 4], "big"), refusal)

"""KqueueMsgQ as an end of bridges: a queue's consumer as a source, its producer as a target."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kqmsgq.fanout import Producer
from kqmsgq.wire import ALL, ALL_IS_NO_TARGET, LENGTH_BYTES, NAME_AT, RECORDED_MESSAGES, message
from shared.access import READ, WRITE
from shared.addresses import MessageOrigin, NameTemplate, unescaped
from shared.bridging import (
    BridgeContext,
    BridgeRefusal,
    BridgeSource,
    BridgeTarget,
    MessageRun,
    VolatileEnds,
    VolatileSource,
    may_be,
)
from shared.tracing import Observer

if TYPE_CHECKING:
    from kqmsgq.listener import KqmsgqService
    from kqmsgq.queues import Queues

WRITTEN_AT_ONCE = 256
"""Messages that are handled between two checkpoints."""


class KqmsgqSource(VolatileSource):
    """A source: the messages of a queue as they arrive."""

    def __init__(self, queues: "Queues", name: bytes, context: BridgeContext) -> None:
        self._queues = queues
        super().__init__(context.inbox, queues.observe(Observer(self._taken), name))

    def _taken(self, data: bytes) -> None:
        """Make runs of whole messages. Neighbours mostly belong to one queue, so runs are long."""
        head = b""
        bodies: list[bytes] = []
        at = 0
        while at < len(data):
            if not (head and data.startswith(head, at)):
                if bodies:
                    self._put(head, bodies)
                    bodies = []
                head = data[at : at + NAME_AT + int.from_bytes(data[at + 1 : at + NAME_AT], "big")]
            start = at + len(head) + LENGTH_BYTES
            at = start + int.from_bytes(data[start - LENGTH_BYTES : start], "big")
            bodies.append(data[start:at])
        if bodies:
            self._put(head, bodies)

    def _put(self, head: bytes, bodies: list[bytes]) -> None:
        origin = MessageOrigin("kqmsgq", head[NAME_AT:])
        self.inbox.put(MessageRun(origin, bodies, trail=self._queues.trail))


class KqmsgqTarget:
    durable = False

    def __init__(self, queues: "Queues", context: BridgeContext) -> None:
        self._queues = queues
        self._context = context
        track = None
        if queues.recorder is not None:
            track = queues.recorder.track(RECORDED_MESSAGES, source=context.user.encode())
        self._producer = Producer(queues, track)

    def check(self, name: bytes, body: bytes) -> None:
        settings = self._queues.settings
        if not 1 <= len(name) <= settings.name_bytes_max:
            text = f"a queue's name is 1 to name_bytes_max = {settings.name_bytes_max} bytes"
            raise BridgeRefusal("bad_name", text, lasting=True)
        self._context.require(WRITE, name)
        if len(body) > settings.message_bytes_max:
            text = f"a message of {len(body)} bytes; message_bytes_max is {settings.message_bytes_max}"
            raise BridgeRefusal("too_large", text, lasting=True)

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        self.check(name, bodies[0])
        some = bodies[:WRITTEN_AT_ONCE]
        bytes_max = self._queues.settings.message_bytes_max
        count = next((at for at, body in enumerate(some) if len(body) > bytes_max), len(some))
        data = b"".join([message(name, body) for body in some[:count]])
        self._queues.trail = trail
        try:
            at = self._producer.publish(data)
            while at < len(data):  # so many consumers that one pass does not suffice
                at = self._producer.publish(data, at)
        finally:
            self._queues.trail = ()
        return count

    def flush(self) -> bool:
        return True

    def close(self) -> None:
        self._producer.end()


class KqmsgqBridgeEnds(VolatileEnds):
    """See `shared.bridging.BridgeEnds`."""

    def check_source(self, place: str) -> None:
        if not place:
            raise ValueError("a queue is missing, or * for all: kqmsgq:orders, kqmsgq:*")

    def target_name(self, place: str) -> NameTemplate:
        if place == ALL:
            raise ValueError(ALL_IS_NO_TARGET)
        return NameTemplate.parse(place)

    def may_feed(self, target: str, source: str) -> bool:
        return source == ALL or may_be(NameTemplate.parse(target), source)

    def open_source(self, service: "KqmsgqService", place: str, context: BridgeContext) -> BridgeSource:
        name = b"" if place == ALL else unescaped(place)
        context.require(READ, name or b"*")
        return KqmsgqSource(service.queues, name, context)

    def open_target(self, service: "KqmsgqService", place: str, context: BridgeContext) -> BridgeTarget:
        return KqmsgqTarget(service.queues, context)


ENDS = KqmsgqBridgeEnds()

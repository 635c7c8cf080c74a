"""Pub/sub as an end of bridges: a pattern's subscriber as a source, a topic's publisher as a target.

A source is a receiver of the fan-out. It gets whole frames and makes runs of them. Messages for which the
bridge has no room are lost and counted, as for any slow subscriber.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MIN,
    FRAME_BYTES,
    NOBODY,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    TOPIC_BYTES_MAX,
    TYPE_AT,
    WILDCARDS,
    Kind,
    Message,
    frame,
    frame_sender,
    frame_topic,
    line,
    value_text,
)
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
    globs_meet,
    target_template,
)
from shared.routing.index import RoutingIndex
from shared.tracing import Observer

if TYPE_CHECKING:
    from pubsub.fanout import Fanout
    from pubsub.listener import PubsubService
    from pubsub.sessions import Sessions

WRITTEN_AT_ONCE = 64
"""Messages between two checkpoints: 100 KB of frames."""


class PubsubSource(VolatileSource):
    """A source: the messages of a pattern as they arrive."""

    def __init__(
        self, sessions: "Sessions", fanout: "Fanout", pattern: bytes, context: BridgeContext
    ) -> None:
        self._fanout = fanout
        super().__init__(context.inbox, sessions.observe(Observer(self._taken), pattern))

    def _taken(self, frames: bytes) -> None:
        """Make runs of frames. Neighbours mostly have the same head, so runs are long."""
        head = b""
        bodies: list[bytes] = []
        for at in range(0, len(frames), FRAME_BYTES):
            if not (head and frames.startswith(head, at)):
                if bodies:
                    self._put(head, bodies)
                    bodies = []
                head = frames[at : at + DATA_AT]
            kind = head[TYPE_AT]
            start = at + DATA_AT
            if kind == Kind.STRING:
                bodies.append(frames[start : at + FRAME_BYTES].partition(b"\0")[0])
            else:
                bodies.append(frames[start : start + PAYLOAD_BYTES_MIN[kind]])
        if bodies:
            self._put(head, bodies)

    def _put(self, head: bytes, bodies: list[bytes]) -> None:
        sender, topic = frame_sender(head), frame_topic(head)
        kind = Kind(head[TYPE_AT])
        shown = sender.decode("ascii", "backslashreplace")
        self.inbox.put(
            MessageRun(
                MessageOrigin("pubsub", topic, sender=sender),
                bodies,
                kind=kind.name,
                value=None if kind is Kind.STRING else lambda body: _number(kind, body),
                text=lambda body: line(Message(shown, topic, kind, body)),
                trail=self._fanout.trail,
            )
        )


class PubsubTarget:
    durable = False

    def __init__(self, fanout: "Fanout", context: BridgeContext) -> None:
        self._fanout = fanout
        self._context = context

    def check(self, name: bytes, body: bytes) -> None:
        if len(name) > TOPIC_BYTES_MAX or b"\0" in name:
            raise BridgeRefusal(
                "bad_name", f"a topic has at most {TOPIC_BYTES_MAX} bytes, and no NUL", lasting=True
            )
        self._context.require(WRITE, name)
        if len(body) > PAYLOAD_BYTES_MAX:
            text = f"a payload of {len(body)} bytes; pub/sub has at most {PAYLOAD_BYTES_MAX}"
            raise BridgeRefusal("too_large", text, lasting=True)
        if not _fits(body):
            raise BridgeRefusal(
                "bad_payload", "a STRING ends at its first NUL, and this one holds one", lasting=True
            )

    def write(self, name: bytes, bodies: Sequence[bytes], trail: tuple[str, ...], job_key: str = "") -> int:
        self.check(name, bodies[0])
        some = bodies[:WRITTEN_AT_ONCE]
        count = next((at for at, body in enumerate(some) if not _fits(body)), len(some))
        some = some[:count]
        frames = b"".join([frame(NOBODY, name, Kind.STRING, body) for body in some])
        lengths = [DATAGRAM_BYTES_MIN + len(body) for body in some]
        if not self._fanout.publish(name, frames, lengths, trail):
            raise BridgeRefusal("busy", "earlier messages are still being written to subscribers")
        return count

    def flush(self) -> bool:
        return self._fanout.flush()

    def close(self) -> None:
        """Nothing to close: a target holds no resources."""


class PubsubBridgeEnds(VolatileEnds):
    """See `shared.bridging.BridgeEnds`."""

    def check_source(self, place: str) -> None:
        pattern = unescaped(place)
        if not pattern or len(pattern) > TOPIC_BYTES_MAX or b"\0" in pattern:
            raise ValueError(f"a pattern is 1 to {TOPIC_BYTES_MAX} bytes: pubsub:home/+/temperature")

    def target_name(self, place: str) -> NameTemplate:
        return target_template(place, self.check_source)

    def may_feed(self, target: str, source: str) -> bool:
        template, pattern = NameTemplate.parse(target), unescaped(source)
        if not template.fields:
            index: RoutingIndex[int] = RoutingIndex(WILDCARDS)
            index.subscribe(1, pattern)
            return bool(index.match(template.name_for(MessageOrigin("", b""))))
        glob = "/".join(
            "*" if level in ("+", "*") else level for level in pattern.decode("latin-1").split("/")
        )
        return globs_meet(template.as_glob(), glob.replace("/*", "*"))

    def open_source(self, service: "PubsubService", place: str, context: BridgeContext) -> BridgeSource:
        pattern = unescaped(place)
        context.require(READ, pattern)
        return PubsubSource(service.sessions, service.fanout, pattern, context)

    def open_target(self, service: "PubsubService", place: str, context: BridgeContext) -> BridgeTarget:
        return PubsubTarget(service.fanout, context)


ENDS = PubsubBridgeEnds()


def _fits(body: bytes) -> bool:
    return len(body) <= PAYLOAD_BYTES_MAX and b"\0" not in body


def _number(kind: Kind, body: bytes) -> Any:
    text = value_text(kind, body)
    return int(text) if kind is Kind.INT else float(text)

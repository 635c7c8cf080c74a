"""The sessions, subscriptions and retained messages that the API shows."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from pubsub.fanout import Fanout
from pubsub.retained import row_frame, row_ms
from pubsub.sessions import ClientSession, Sessions
from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MIN,
    NOBODY,
    PAYLOAD_BYTES_MIN,
    TOPIC_BYTES_MAX,
    TYPE_AT,
    WILDCARDS,
    Kind,
    frame,
    frame_sender,
    payload_of,
)
from shared.actions import END_RETAINED, END_SESSION, changing
from shared.errors import BrokerError
from shared.objects import (
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    Argument,
    BadValue,
    Objects,
    a_text,
    key_of,
    time_text,
)
from shared.routing.index import RoutingIndex

Subscription = tuple[ClientSession, bytes]


class Busy(BrokerError):
    """Nothing can be published now."""


class SessionInUse(BrokerError):
    """The session's client is connected, so the session cannot be ended."""


class Admin:
    """The objects of all sessions. `end`: ends the session of a client that is away. Raises StoreError."""

    def __init__(
        self,
        sessions: Sessions,
        fanout: Fanout,
        end: Callable[[ClientSession], Awaitable[None]],
        end_retained: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._all = sessions
        self._fanout = fanout
        self._end = end
        self._end_retained = end_retained
        self.objects: Sequence[Objects] = (
            Objects(
                SESSIONS,
                lambda: list(sessions.clients.values()),
                lambda client: key_of(client.name),
                lambda parts: sessions.clients.get(parts[0].encode()),
                self.session,
                (self._delete,),
                begin="brokers pubsub subscriber A",
                values={
                    "kept_percent": lambda client: sessions.kept.full_percent(*sessions.kept.held(client.id))
                },
            ),
            Objects(
                SUBSCRIPTIONS,
                lambda: [(each, pattern) for each in sessions.clients.values() for pattern in each.topics],
                lambda found: key_of(found[0].name, _text(found[1])),
                self._find_subscription,
                self._subscription,
                (),
                (self._publish,),
                narrow={"topic": self._receivers},
            ),
            Objects(
                RETAINED,
                lambda: [topic for topic, _ in sessions.retained.items()] if sessions.retained else [],
                lambda topic: key_of(_text(topic)),
                self._find_retained,
                self._retained,
                (self._delete_retained,),
                begin='[pubsub]\nretain = ["home/*"]',
            ),
        )

    def session(self, client: ClientSession) -> dict[str, Any] | None:
        """A session as a row; None if it has ended."""
        if self._all.clients.get(client.id) is not client:
            return None
        connection = client.connection
        messages, size = self._all.kept.held(client.id)
        return {
            "name": client.name,
            "user": client.owner,
            "peer": connection.peer if connection is not None else None,
            "subscriptions": len(client.topics),
            "waiting_bytes": connection.outbox.size if connection is not None else 0,
            "dropped": client.dropped,
            "kept": messages,
            "kept_bytes": size,
            "kept_percent": self._all.kept.full_percent(messages, size),
        }

    @END_SESSION
    async def _delete(self, client: ClientSession, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if client.connection is not None:
            raise SessionInUse(f"{client.name} is connected: close its connection first")
        subscriptions = len(client.topics)
        if not dry_run:
            await self._end(client)
        return {"deleted": 1, "subscriptions": subscriptions}

    def _find_retained(self, parts: Sequence[str]) -> bytes | None:
        retained = self._all.retained
        topics = [topic for topic, _ in retained.items()] if retained else []
        return next((topic for topic in topics if _text(topic) == parts[0]), None)

    def _retained(self, topic: bytes) -> dict[str, Any] | None:
        row = self._all.retained.get(topic) if self._all.retained else None
        if row is None:
            return None
        message = row_frame(row).ljust(DATA_AT, b"\0")
        kind = Kind(message[TYPE_AT])
        return {
            "topic": _text(topic),
            "type": kind.name,
            "bytes": max(len(message) - DATA_AT, PAYLOAD_BYTES_MIN[kind]),
            "time": time_text(row_ms(row)),
            "sender": _text(frame_sender(message)),
        }

    @END_RETAINED
    async def _delete_retained(self, topic: bytes, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        if not dry_run:
            await self._end_retained(topic)
        return {"deleted": 1}

    def _receivers(self, topic: str) -> list[Subscription]:
        """The subscriptions that match `topic`: their clients get its messages, or have them kept."""
        name = topic.encode()
        subscriptions: list[Subscription] = []
        for client in chain(self._all.live.match(name), self._all.away.match(name)):
            patterns: RoutingIndex[bytes] = RoutingIndex(WILDCARDS)
            for pattern, keeps in client.topics.items():
                if keeps or client.connection is not None:
                    patterns.subscribe(pattern, pattern)
            subscriptions += [(client, pattern) for pattern in patterns.match(name)]
        return subscriptions

    @changing(
        "publish",
        "Send a message to who has subscribed to its topic, as a datagram does.",
        takes={
            "topic": Argument("up to 50 bytes", required=True),
            "type": Argument("of its value", choices=tuple(kind.name for kind in Kind), usual="STRING"),
            "value": Argument("its value", "lines", required=True),
        },
        answers=("published", "receivers"),
        named_by=("topic",),
    )
    async def _publish(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        topic = a_text(arguments, "topic").encode()
        if not 1 <= len(topic) <= TOPIC_BYTES_MAX or b"\0" in topic:
            raise BadValue(f"topic has 1 to {TOPIC_BYTES_MAX} bytes, none of them NUL")
        name = a_text(arguments, "type", "STRING")
        if name not in Kind.__members__:
            raise BadValue(f"type is one of {', '.join(Kind.__members__)}")
        try:
            payload = payload_of(Kind[name], a_text(arguments, "value"))
        except ValueError as error:
            raise BadValue(f"value: {error}") from None
        receivers = len({client for client, _ in self._receivers(topic.decode())})
        if not dry_run:
            frames = frame(NOBODY, topic, Kind[name], payload)
            if not self._fanout.publish(topic, frames, [DATAGRAM_BYTES_MIN + len(payload)], ()):
                raise Busy("earlier messages are still being written to subscribers: try again")
        return {"published": 1, "receivers": receivers}

    def _find_subscription(self, parts: Sequence[str]) -> Subscription | None:
        client = self._all.clients.get(parts[0].encode())
        if client is None:
            return None
        pattern = parts[1].encode()
        if pattern not in client.topics:  # it may be none of UTF-8, which has the name that the list shows
            named = (each for each in client.topics if _text(each) == parts[1])
            return next(((client, each) for each in named), None)
        return client, pattern

    def _subscription(self, found: Subscription) -> dict[str, Any] | None:
        client, pattern = found
        if pattern not in client.topics:
            return None
        return {
            "client": client.name,
            "pattern": _text(pattern),
            "kept": client.topics[pattern],
            "connected": client.connection is not None,
        }


def _text(pattern: bytes) -> str:
    return pattern.decode(errors="backslashreplace")

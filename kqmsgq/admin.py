"""What the API shows of KqueueMsgQ: consumers, their subscriptions, and the queues that these name."""

from collections.abc import Mapping, Sequence
from typing import Any

from kqmsgq.fanout import Producer
from kqmsgq.queues import Consumer, Queues
from kqmsgq.wire import ALL, RECORDED_MESSAGES, message
from shared.actions import putting
from shared.objects import QUEUES, SESSIONS, SUBSCRIPTIONS, BadArgument, Objects, a_body, key_of

Subscription = tuple[Consumer, bytes]


class Admin:
    """The objects of one service."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self.objects: Sequence[Objects] = (
            Objects(
                QUEUES,
                lambda: [name for name in queues.subscribed if name],
                lambda name: key_of(_text(name)),
                self._find_queue,
                self._queue,
                (self._put,),
                values={"name": _text, "consumers": lambda name: queues.subscribed[name]},
            ),
            Objects(
                SESSIONS,
                lambda: list(queues.consumers),
                lambda consumer: key_of(consumer.connection.peer),
                self._find,
                self._consumer,
            ),
            Objects(
                SUBSCRIPTIONS,
                lambda: [(each, name) for each in queues.consumers for name in queues.subscriptions(each)],
                lambda found: key_of(found[0].connection.peer, _text(found[1])),
                self._find_subscription,
                self._subscription,
                narrow={"topic": self._receivers},
            ),
        )

    def _find_queue(self, parts: Sequence[str]) -> bytes | None:
        return next((name for name in self._queues.subscribed if name and _text(name) == parts[0]), None)

    def _queue(self, name: bytes) -> Mapping[str, Any] | None:
        if name not in self._queues.subscribed:
            return None
        return {"name": _text(name), "consumers": self._queues.subscribed[name], "durable": False}

    @putting("an empty table: messages of KqueueMsgQ have none")
    async def _put(self, name: bytes, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        body, queues = a_body(arguments), self._queues
        if arguments.get("properties", {}) != {}:
            raise BadArgument("properties: messages of KqueueMsgQ have none")
        if len(body) > (most := queues.settings.message_bytes_max):
            raise BadArgument(f"a message has at most message_bytes_max = {most}")
        if not dry_run:
            recorder = queues.recorder
            track = None if recorder is None else recorder.track(RECORDED_MESSAGES, source=b"api")
            producer = Producer(queues, track)
            try:
                data = message(name, body)
                at = producer.publish(data)
                while at < len(data):  # so many consumers that one pass does not suffice
                    at = producer.publish(data, at)
            finally:
                producer.end()
        return {"published": 1}

    def _find(self, parts: Sequence[str]) -> Consumer | None:
        return next((each for each in self._queues.consumers if each.connection.peer == parts[0]), None)

    def _consumer(self, consumer: Consumer) -> Mapping[str, Any] | None:
        """A consumer as a session, which ends with its connection."""
        if consumer not in self._queues.consumers:
            return None
        return {
            "name": consumer.connection.peer,
            "user": consumer.user,
            "peer": consumer.connection.peer,
            "subscriptions": consumer.subscriptions,
            "waiting_bytes": consumer.connection.outbox.size,
            "dropped": consumer.dropped,
            "kept": 0,
            "kept_bytes": 0,
        }

    def _receivers(self, topic: str) -> list[Subscription]:
        """The subscriptions by which messages of this queue are sent."""
        return [
            (consumer, name)
            for consumer in self._queues.consumers
            for name in self._queues.subscriptions(consumer)
            if name in (b"", topic.encode())
        ]

    def _find_subscription(self, parts: Sequence[str]) -> Subscription | None:
        consumer = self._find(parts)
        names = () if consumer is None else self._queues.subscriptions(consumer)
        return next(((consumer, name) for name in names if consumer and _text(name) == parts[1]), None)

    def _subscription(self, found: Subscription) -> Mapping[str, Any] | None:
        consumer, name = found
        if consumer not in self._queues.consumers:
            return None
        return {
            "client": consumer.connection.peer,
            "pattern": _text(name),
            "kept": False,
            "connected": True,
        }


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace") or ALL

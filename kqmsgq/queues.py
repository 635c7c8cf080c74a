"""Queues are names: the subscriptions of consumers, and the routes of messages.

Messages with known first bytes need no check. The bytes up to the upper half of the length field prove that
the message is well-formed, and give its route (`shared.fanout.Routes.known`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kqmsgq.metrics import Counts
from kqmsgq.repeats import Repeats, count_messages, repeats_for_counting
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import (
    LENGTH_BYTES,
    MESSAGE,
    NAME_AT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    message_end,
    name_end,
)
from shared.budget import Account, CacheBytes, Caches, OverBudget, unbounded
from shared.errors import RemoteProtocolError, printable
from shared.fanout import Route, Routes, limit_slow_receiver
from shared.net.connection import Connection
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME

if TYPE_CHECKING:
    import structlog

    from shared.recording.recorder import Recorder

COUNTED_MAX = 16
"""Counts of dropped writes that are remembered: many consumers lose the same few."""
KNOWN_BYTES = 2
"""The upper half of a message's length, always zero: only messages below 64 KiB have known first bytes."""
SUBSCRIPTION_BYTES = 128
"""Memory of a subscription beside its name, in the index and here."""


class Consumer:
    """A subscriber. `messages`: written to it; `dropped`: those of them lost because it did not read.

    `subscriptions`, `subscriptions_bytes`: their number, and the memory charged for them.
    """

    __slots__ = ("connection", "dropped", "messages", "subscriptions", "subscriptions_bytes", "user", "write")

    def __init__(self, connection: Connection, user: str = "") -> None:
        self.connection = connection
        self.user = user
        self.write = connection.write
        self.messages = self.dropped = 0
        self.subscriptions = 0
        self.subscriptions_bytes = 0


class Queues:
    """All subscriptions, and the routes from producers to consumers."""

    def __init__(
        self,
        settings: KqmsgqSettings,
        counts: Counts,
        log: "structlog.stdlib.BoundLogger",
        recorder: "Recorder | None" = None,
        budget: Account | None = None,
    ) -> None:
        budget = budget or unbounded()
        self._memory = budget.account("names")
        self._of_users, self._bytes_of_users = budget.new_shares(), budget.new_shares()
        caches = budget.account("caches", budget.limit_bytes // 4)
        self.caches = Caches(caches)
        """The memory of what producers remember about their messages, and of counts of dropped writes."""
        self.settings = settings
        self.recorder = recorder
        self.counts = counts
        self.consumers: dict[Consumer, None] = {}
        routes = Caches(caches)
        self.routes: Routes[Consumer] = Routes(routes)
        self.trail: tuple[str, ...] = ()
        """The bridges that have carried the messages that are being written now."""
        self.subscriptions_bytes = 0
        """The memory charged for all subscriptions."""
        self.subscribed: Counter[bytes] = Counter()
        """How many consumers have subscribed to a queue, by its name; b"": to all of them."""
        self._log = log
        self._index: RoutingIndex[Consumer] = RoutingIndex(None, cache_books=CacheBytes(routes, math.inf))
        self._counting: Repeats[None] = repeats_for_counting()
        self._counted: dict[int, tuple[bytes | memoryview, int]] = {}
        """A chunk's id to the chunk and its count."""

    def take_settings(self, settings: KqmsgqSettings) -> None:
        """Hold to these limits from now on. What may wait for a consumer stays as it was when it came."""
        self.settings = settings
        self.routes.forget()  # known first bytes were checked by the last limits

    # Subscriptions.

    def join(self, connection: Connection, user: str = "") -> Consumer:
        consumer = Consumer(connection, user)
        settings = self.settings
        limit_slow_receiver(
            connection,
            settings.consumer_bytes_max,
            settings.slow_consumer,
            lambda chunk: self.count_dropped(consumer, chunk),
        )
        self.consumers[consumer] = None
        self.counts.consumers += 1
        return consumer

    def leave(self, consumer: Consumer) -> None:
        """End all subscriptions of `consumer`."""
        del self.consumers[consumer]
        self.counts.consumers -= 1
        self.unsubscribe_all(consumer)
        if consumer.dropped:
            self._log.info(
                "a slow consumer has left: messages for it were dropped; have it read faster, or raise "
                "kqmsgq.consumer_bytes_max",
                peer=consumer.connection.peer,
                messages=consumer.dropped,
            )

    def subscribe(self, consumer: Consumer, name: bytes) -> None:
        """Subscribe to the queue `name`; without a name, to all queues, present and future. Raises
        RemoteProtocolError."""
        if self._index.subscribe(consumer, name or EVERY_NAME):
            self.routes.forget()
            self._charge(consumer, 1, name)
            settings = self.settings
            try:
                self._memory.check(0, consumer.user)
            except OverBudget as error:
                raise RemoteProtocolError(str(error), fault=Fault.SUBSCRIPTIONS) from None
            for limit, got in (
                ("subscriptions_max", consumer.subscriptions),
                ("subscriptions_bytes_max", consumer.subscriptions_bytes),
                ("subscriptions_total_max", len(self._index)),
                ("subscriptions_bytes_total_max", self.subscriptions_bytes),
            ):
                if got > getattr(settings, limit):
                    raise RemoteProtocolError(
                        f"above {limit} = {getattr(settings, limit)}", fault=Fault.SUBSCRIPTIONS
                    )
            for limit, shares in (
                ("subscriptions_total_max", self._of_users),
                ("subscriptions_bytes_total_max", self._bytes_of_users),
            ):
                if not shares.fits(consumer.user, getattr(settings, limit), 0):
                    raise RemoteProtocolError(
                        f"above {consumer.user}'s share of {limit}", fault=Fault.SUBSCRIPTIONS
                    )

    def unsubscribe(self, consumer: Consumer, name: bytes) -> None:
        """End the subscription to `name`; one to all queues stays. Without a name: end every subscription."""
        if name:
            self.end_subscription(consumer, name)
        else:
            self.unsubscribe_all(consumer)

    def subscriptions(self, consumer: Consumer) -> list[bytes]:
        """The names of the consumer's queues; an empty name stands for all queues."""
        return [name if isinstance(name, bytes) else b"" for name in self._index.patterns(consumer)]

    def end_subscription(self, consumer: Consumer, name: bytes) -> None:
        """End the subscription to `name` alone; without a name, the one to all queues."""
        if self._index.unsubscribe(consumer, name or EVERY_NAME):
            self.routes.forget()
            self._charge(consumer, -1, name)

    def unsubscribe_all(self, consumer: Consumer) -> None:
        self._uncount(self.subscriptions(consumer))
        if self._index.drop(consumer):
            self.routes.forget()
        self.subscriptions_bytes -= consumer.subscriptions_bytes
        self._memory.give(consumer.subscriptions_bytes, consumer.user)
        self._of_users.add(consumer.user, -consumer.subscriptions)
        self._bytes_of_users.add(consumer.user, -consumer.subscriptions_bytes)
        consumer.subscriptions = consumer.subscriptions_bytes = 0

    def statistics(self) -> tuple[int, int]:
        """The numbers of subscriptions and of subscribed consumers."""
        return len(self._index), self._index.subscribers

    def _charge(self, consumer: Consumer, count: int, name: bytes) -> None:
        """Charge `consumer` for `count` subscriptions to `name`; negative: give back."""
        if count > 0:
            self.subscribed[name] += count
        else:
            self._uncount([name])
        size = count * (SUBSCRIPTION_BYTES + len(name))
        consumer.subscriptions += count
        consumer.subscriptions_bytes += size
        self.subscriptions_bytes += size
        self._memory.charge(size, consumer.user)
        self._of_users.add(consumer.user, count)
        self._bytes_of_users.add(consumer.user, size)

    def _uncount(self, names: Iterable[bytes]) -> None:
        for name in names:
            self.subscribed[name] -= 1
            if not self.subscribed[name]:
                del self.subscribed[name]

    def observe(self, observer: Connection, name: bytes) -> Callable[[], None]:
        """Write the queue's messages to `observer`, too; without a name, those of all queues.

        Call the returned function to end it. An observer does not count as a consumer."""
        consumer = Consumer(observer)
        self._index.subscribe(consumer, name or EVERY_NAME)
        self.routes.forget()

        def end() -> None:
            self._index.drop(consumer)
            self.routes.forget()

        return end

    # -- losses of slow consumers

    def count_dropped(self, consumer: Consumer, chunk: bytes | memoryview) -> None:
        """Count the messages in `chunk`, which was dropped because `consumer` does not read."""
        messages = self._count(chunk)
        counts = self.counts
        if not consumer.dropped:
            counts.consumers_dropped_from += 1
            self._log.warning(
                "a consumer does not read what it is sent: its oldest messages are dropped; have it read "
                "faster, or raise kqmsgq.consumer_bytes_max",
                peer=consumer.connection.peer,
            )
        consumer.dropped += messages
        counts.messages_dropped += messages
        counts.bytes_dropped += len(chunk)

    def _count(self, chunk: bytes | memoryview) -> int:
        """The number of messages in `chunk`. It is remembered: slow consumers mostly lose the same writes."""
        counted = self._counted
        found = counted.get(id(chunk))
        if found is not None and found[0] is chunk:
            return found[1]
        messages = count_messages(bytes(chunk), self._counting)
        if len(counted) == COUNTED_MAX:
            counted.clear()
        counted[id(chunk)] = chunk, messages
        return messages

    # Messages.

    def look(self, data: bytes, at: int) -> tuple[Route[Consumer], int, int] | None:
        """The route of the message at `at`, and where its body begins and ends.

        None if its header is not complete yet. Raises RemoteProtocolError.
        """
        if data[at] != MESSAGE:
            raise no_message(data, at)
        settings = self.settings
        after_name = name_end(data, at, settings.name_bytes_max)
        if after_name is None:
            return None
        after = message_end(data, after_name, settings.message_bytes_max)
        if after is None:
            return None
        name = data[at + NAME_AT : after_name]
        route = self.routes.of(self._index.match(name))
        begins = after_name + LENGTH_BYTES
        if len(name) < 256 and after - begins < 1 << 16 <= settings.message_bytes_max:
            self.routes.remember(data[at : after_name + KNOWN_BYTES], route)
        return route, begins, after


def no_message(data: bytes, at: int) -> RemoteProtocolError:
    event = data[at]
    if event in (SUBSCRIBE, UNSUBSCRIBE):
        return RemoteProtocolError(f"a producer sent the event {chr(event)}", fault=Fault.SIDE)
    return RemoteProtocolError(f"{printable(data[at : at + 1])} is no event", fault=Fault.EVENT)

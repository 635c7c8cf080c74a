"""Queues are names: who is subscribed to which, and the routes that follow from it.

A *route* says where a queue's messages go: into bundles (`shared.bundles`), each of which gathers what one
read of a producer brought for the same consumers.

Routes are remembered by the first bytes of messages as they stand in the input, up to and with the upper half
of the message's length: a hit says at once that they are well-formed and whom the message is for. They hold
until any subscription changes.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

from kqmsgq.metrics import Counts
from kqmsgq.runs import count_messages, rounds_for_counting
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import (
    LENGTH_BYTES,
    MESSAGE,
    NAME_AT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    WireError,
    message_end,
    name_end,
)
from shared.bundles import Bundle, Bundles
from shared.errors import printable
from shared.net.connection import Connection
from shared.recording.recorder import Recorder
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME

if TYPE_CHECKING:
    import structlog

ROUTES_MAX = 8192
"""First bytes remembered, at most 262 each; when there are more, all are learnt anew."""
ROUTES_MEMBERS_MAX = 500_000
"""Consumers in all routes remembered: each takes some 100 bytes. Above it, too, all are learnt anew."""
COUNTED_BYTES_MAX = 16 << 20
"""Of dropped chunks whose messages have been counted, with `COUNTED_ENTRY_BYTES` for each: more than a
consumer may lose at once by default."""
COUNTED_ENTRY_BYTES = 256
"""A chunk's header, a tuple, a number and a place in the dict."""
LOOKED_UP_BYTES = 2
"""Of a message's length; a message that is looked up has less than 64 KiB, so these are zero."""


SUBSCRIPTION_BYTES = 128
"""What a subscription takes beside its name, in the index and here."""


class Consumer:
    """Someone who subscribes. `dropped`: messages lost because it did not read.

    `subscriptions`, `subscriptions_bytes`: how many it has, and the memory that is charged for them.
    """

    __slots__ = ("connection", "dropped", "subscriptions", "subscriptions_bytes", "write")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.write = connection.write
        self.dropped = 0
        self.subscriptions = 0
        self.subscriptions_bytes = 0


class Route:
    """Where a queue's messages go: into these bundles, and so to `fan` consumers."""

    __slots__ = ("bundles", "fan")

    def __init__(self, bundles: tuple[Bundle[Consumer], ...], fan: int) -> None:
        self.bundles = bundles
        self.fan = fan


NOWHERE = Route((), 0)


class Queues:
    """Who is subscribed to what, and the way from producers to them."""

    def __init__(
        self,
        settings: KqmsgqSettings,
        counts: Counts,
        log: "structlog.stdlib.BoundLogger",
        recorder: Recorder | None = None,
    ) -> None:
        self.settings = settings
        self.recorder = recorder
        self.counts = counts
        self._log = log
        self._index: RoutingIndex[Consumer] = RoutingIndex(None)
        self.consumers: dict[Consumer, None] = {}
        self.subscriptions_bytes = 0
        """The memory that is charged for all subscriptions."""
        self.routes: dict[bytes, Route] = {}
        self._by_set: dict[frozenset[Consumer], Route] = {}
        self._members = 0  # of all that is in there
        self._bundles: Bundles[Consumer] = Bundles()
        self.epoch = 0
        """Rises whenever routes that were given out are not to be used any more."""
        self._counting = rounds_for_counting()
        # By identity, which it keeps; oldest first (a dict would look for that behind all that have left).
        self._counted: OrderedDict[int, tuple[bytes | memoryview, int]] = OrderedDict()
        self._counted_bytes = 0

    # Subscriptions.

    def join(self, consumer: Consumer) -> None:
        self.consumers[consumer] = None

    def leave(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more; harmless if it has left."""
        if consumer in self.consumers:
            del self.consumers[consumer]
            self.unsubscribe_all(consumer)
            if consumer.dropped:
                self._log.info(
                    "kqmsgq had dropped messages of a consumer that leaves",
                    peer=consumer.connection.peer,
                    messages=consumer.dropped,
                )

    def subscribe(self, consumer: Consumer, name: bytes) -> None:
        """To the queue of that name; without one, to all that there are and will be. Raises WireError."""
        if self._index.subscribe(consumer, name or EVERY_NAME):
            self._forget_routes()
            self._charge(consumer, 1, name)
            settings = self.settings
            for limit, got in (
                ("subscriptions_max", consumer.subscriptions),
                ("subscriptions_bytes_max", consumer.subscriptions_bytes),
                ("subscriptions_total_max", len(self._index)),
                ("subscriptions_bytes_total_max", self.subscriptions_bytes),
            ):
                if got > getattr(settings, limit):
                    raise WireError(f"above {limit} = {getattr(settings, limit)}", fault=Fault.SUBSCRIPTIONS)

    def unsubscribe(self, consumer: Consumer, name: bytes) -> None:
        """From that queue; an all-subscription stays. Without a name: from everything."""
        if not name:
            self.unsubscribe_all(consumer)
        elif self._index.unsubscribe(consumer, name):
            self._forget_routes()
            self._charge(consumer, -1, name)

    def unsubscribe_all(self, consumer: Consumer) -> None:
        if self._index.drop(consumer):
            self._forget_routes()
        self.subscriptions_bytes -= consumer.subscriptions_bytes
        consumer.subscriptions = consumer.subscriptions_bytes = 0

    def statistics(self) -> tuple[int, int]:
        """How many subscriptions there are, and how many of their consumers."""
        found = self._index.statistics()
        return found.subscriptions, found.subscribers

    def _charge(self, consumer: Consumer, count: int, name: bytes) -> None:
        """`consumer` has `count` more, or fewer, subscriptions to queues of that name."""
        size = count * (SUBSCRIPTION_BYTES + len(name))
        consumer.subscriptions += count
        consumer.subscriptions_bytes += size
        self.subscriptions_bytes += size

    def dropped(self, consumer: Consumer, chunk: bytes | memoryview) -> None:
        """`chunk`, whole messages, was thrown away because `consumer` does not read."""
        messages = self._count(chunk)
        counts = self.counts
        if not consumer.dropped:
            counts.consumers_dropped_from += 1
            self._log.warning("kqmsgq drops messages of a slow consumer", peer=consumer.connection.peer)
        consumer.dropped += messages
        counts.messages_dropped += messages
        counts.bytes_dropped += len(chunk)

    def _count(self, chunk: bytes | memoryview) -> int:
        """How many messages it is. Slow consumers mostly lose the same things, one after the other."""
        counted = self._counted
        found = counted.get(id(chunk))
        if found is not None and found[0] is chunk:
            return found[1]
        messages = count_messages(bytes(chunk), self._counting)
        counted[id(chunk)] = chunk, messages
        self._counted_bytes += COUNTED_ENTRY_BYTES + len(chunk)
        while self._counted_bytes > COUNTED_BYTES_MAX:
            _, (oldest, _) = counted.popitem(last=False)
            self._counted_bytes -= COUNTED_ENTRY_BYTES + len(oldest)
        return messages

    def look(self, data: bytes, at: int) -> tuple[Route, int, int] | None:
        """The route of the message at `at`, where its body begins and where it ends.

        None where not even that is there. Raises WireError.
        """
        if data[at] != MESSAGE:
            raise no_message(data, at)
        settings = self.settings
        after_name = name_end(data, at, settings.name_bytes_max)
        if after_name is None:
            return None
        after = message_end(data, at, after_name, settings.message_bytes_max)
        if after is None:
            return None
        name = data[at + NAME_AT : after_name]
        route = self._route(self._index.match(name))
        begins = after_name + LENGTH_BYTES
        if len(name) < 256 and after - begins < 1 << 16 <= settings.message_bytes_max:
            if len(self.routes) >= ROUTES_MAX:
                self.routes.clear()
            self.routes[data[at : after_name + LOOKED_UP_BYTES]] = route
        return route, begins, after

    def _route(self, consumers: tuple[Consumer, ...]) -> Route:
        if not consumers:
            return NOWHERE
        those = frozenset(consumers)
        route = self._by_set.get(those)
        if route is not None:
            return route
        if self._members > ROUTES_MEMBERS_MAX:
            self._forget_routes()
        if self._bundles.clash(those):
            self._forget_routes()  # what is in their bundles is still delivered first: it was touched first
            self._bundles.divide()
        route = self._by_set[those] = Route(self._bundles.of(consumers), len(consumers))
        self._members += len(consumers)
        return route

    def _forget_routes(self) -> None:
        """Who gets what has changed."""
        self.epoch += 1
        self.routes.clear()
        self._by_set.clear()
        self._members = 0
        self._bundles.forget()


def no_message(data: bytes, at: int) -> WireError:
    event = data[at]
    if event in (SUBSCRIBE, UNSUBSCRIBE):
        return WireError(f"a producer sent the event {chr(event)}", fault=Fault.SIDE)
    return WireError(f"{printable(data[at : at + 1])} is no event", fault=Fault.EVENT)

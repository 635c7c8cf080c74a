"""Queues are names, and what is sent to them goes at once to who is subscribed: the fan-out.

A producer's bytes are not taken apart. One pass over what a read brought finds only where messages end and
whom each is for. A run of whole messages for the same consumers is one slice of that read, and at the end
each consumer gets what is for it in one write, joined once for all who get the same. They receive the
producer's own bytes.

How the pass is made cheap:

- The first bytes of a message, up to and with the upper half of its length, are looked up as they stand
  (`_routes`). A hit says at once that they are well-formed and whom the message is for, so a message costs
  one lookup and no parsing. A miss is read with care (`_look`) and, where it may come again, remembered.
  Names above 255 bytes and messages from 64 KiB on always go that way.
- Where several messages of one queue follow each other, those of the same size are found by comparing
  columns of their headers (`_uniform`), with no step for each.

Each set of consumers has a `Bundle` that gathers what is for it. So long as no consumer is in two sets, that
keeps each producer's order at each consumer over all queues. As soon as one is, every consumer gets a bundle
of its own and a message is put in several of them; the order stays.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kqmsgq.counts import Counts
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import (
    HEADER_BYTES,
    LENGTH_BYTES,
    MESSAGE,
    NAME_AT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    WireError,
    count_messages,
    message_end,
    name_end,
    printable,
)
from shared.net.connection import Connection
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME

if TYPE_CHECKING:
    import structlog

ROUTES_MAX = 8192
"""First bytes remembered, at most 262 each; when there are more, all are learnt anew."""
LOOKED_UP_BYTES = 2
"""Of a message's length; a message that is looked up has less than 64 KiB, so these are zero."""
FOLLOWING = 4
"""Messages of one queue in a row before equal sizes are looked for."""
LOOK_AGAIN = 64
"""A power of two: so many messages later it is tried again."""
FEW = 8
"""Looked at first, so that a vain try is cheap."""


class Consumer:
    """Someone who subscribes. `dropped`: messages lost because it did not read."""

    __slots__ = ("connection", "dropped", "write")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.write = connection.write
        self.dropped = 0


class Bundle(list[bytes]):
    """What one pass found for `consumers`: slices of the read, in order."""

    __slots__ = ("consumers",)

    def __init__(self, consumers: tuple[Consumer, ...]) -> None:
        super().__init__()
        self.consumers = consumers


class Route:
    """Where a queue's messages go: into these bundles, and so to `fan` consumers."""

    __slots__ = ("bundles", "fan")

    def __init__(self, bundles: tuple[Bundle, ...], fan: int) -> None:
        self.bundles = bundles
        self.fan = fan


NOWHERE = Route((), 0)


class Queues:
    """Who is subscribed to what, and the way from producers to them."""

    def __init__(self, settings: KqmsgqSettings, counts: Counts, log: "structlog.stdlib.BoundLogger") -> None:
        self.settings = settings
        self.counts = counts
        self._log = log
        self._index: RoutingIndex[Consumer] = RoutingIndex(None)
        self._subscriptions: dict[Consumer, int] = {}
        self._routes: dict[bytes, Route] = {}
        self._by_set: dict[frozenset[Consumer], Route] = {}
        self._by_consumer: dict[Consumer, Bundle] = {}
        self._shared = False  # a consumer is in two sets
        self._counted: tuple[bytes | memoryview, int] = (b"", 0)

    # Subscriptions.

    def join(self, consumer: Consumer) -> None:
        self._subscriptions[consumer] = 0

    def leave(self, consumer: Consumer) -> None:
        """`consumer` gets nothing more; harmless if it has left."""
        if self._subscriptions.pop(consumer, None) is not None:
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
            held = self._subscriptions[consumer] = self._subscriptions[consumer] + 1
            if held > self.settings.subscriptions_max:
                raise WireError(
                    f"{held} subscriptions, {self.settings.subscriptions_max} at most",
                    fault=Fault.SUBSCRIPTIONS,
                )

    def unsubscribe(self, consumer: Consumer, name: bytes) -> None:
        """From that queue; an all-subscription stays. Without a name: from everything."""
        if not name:
            self.unsubscribe_all(consumer)
        elif self._index.unsubscribe(consumer, name):
            self._forget_routes()
            self._subscriptions[consumer] -= 1

    def unsubscribe_all(self, consumer: Consumer) -> None:
        if self._index.drop(consumer):
            self._forget_routes()
        if consumer in self._subscriptions:
            self._subscriptions[consumer] = 0

    def subscriptions(self) -> Iterable[tuple[Consumer, int]]:
        return self._subscriptions.items()

    def statistics(self) -> tuple[int, int]:
        """How many subscriptions there are, and how many of their consumers."""
        found = self._index.statistics()
        return found.subscriptions, found.subscribers

    # Messages.

    def publish(self, data: bytes) -> int:
        """Hand on the whole messages at the front of `data`; returns where they end.

        Raises WireError at what is no message; those before it are handed on.
        """
        routes = self._routes
        last = NOWHERE
        touched: list[Bundle] = []
        error: WireError | None = None
        at = start = following = count = delivered = unrouted = 0
        size = len(data)
        latest = size - HEADER_BYTES  # where the last message may begin
        while at <= latest:
            fixed = at + data[at + 4] + NAME_AT + LOOKED_UP_BYTES
            route = routes.get(data[at:fixed])
            if route is None:
                try:
                    found = self._look(data, at)
                except WireError as refused:
                    error = refused
                    break
                if found is None:
                    break
                route, after = found
            else:
                if fixed + 2 > size:
                    break
                after = fixed + 2 + (data[fixed] << 8 | data[fixed + 1])
            if after > size:
                break
            if route is not last:
                if following:
                    count += following
                    if last is NOWHERE:
                        unrouted += following
                    else:
                        delivered += following * last.fan
                        piece = data[start:at]
                        for bundle in last.bundles:
                            if not bundle:
                                touched.append(bundle)
                            bundle.append(piece)
                last = route
                start = at
                following = 1
                at = after
                continue
            following += 1
            if following & (LOOK_AGAIN - 1) == FOLLOWING:
                same = _uniform(data, at, after - at, fixed + 2 - at)
                following += same - 1
                at += same * (after - at)
            else:
                at = after
        else:
            # What is left is shorter than any message; but it may be wrong already.
            if at < size and data[at] != MESSAGE:
                error = _no_message(data, at)
        if following:
            count += following
            delivered += following * last.fan
            if not last.fan:
                unrouted += following
            piece = data[start:at]
            for bundle in last.bundles:
                if not bundle:
                    touched.append(bundle)
                bundle.append(piece)
        for bundle in touched:
            joined = bundle[0] if len(bundle) == 1 else b"".join(bundle)
            bundle.clear()
            for consumer in bundle.consumers:
                consumer.write(joined)
        counts = self.counts
        counts.messages_in += count
        counts.bytes_in += at
        counts.messages_delivered += delivered
        counts.messages_unrouted += unrouted
        if error is not None:
            raise error
        return at

    def dropped(self, consumer: Consumer, chunk: bytes | memoryview) -> None:
        """`chunk`, whole messages, was thrown away because `consumer` does not read."""
        last, messages = self._counted
        if last is not chunk:  # slow consumers mostly lose the same things one after the other
            messages = count_messages(chunk)
            self._counted = (chunk, messages)
        counts = self.counts
        if not consumer.dropped:
            counts.consumers_dropped_from += 1
            self._log.warning("kqmsgq drops messages of a slow consumer", peer=consumer.connection.peer)
        consumer.dropped += messages
        counts.messages_dropped += messages
        counts.bytes_dropped += len(chunk)

    def _look(self, data: bytes, at: int) -> tuple[Route, int] | None:
        """The route of the message at `at`, and where it ends; None where not even that is there."""
        if data[at] != MESSAGE:
            raise _no_message(data, at)
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
            if len(self._routes) >= ROUTES_MAX:
                self._routes.clear()
            self._routes[data[at : after_name + LOOKED_UP_BYTES]] = route
        return route, after

    def _route(self, consumers: tuple[Consumer, ...]) -> Route:
        if not consumers:
            return NOWHERE
        those = frozenset(consumers)
        route = self._by_set.get(those)
        if route is not None:
            return route
        if not self._shared and not self._by_consumer.keys().isdisjoint(those):
            self._forget_routes()  # what is in their bundles is still delivered first: it was touched first
            self._shared = True
        if self._shared:
            bundles = []
            for consumer in consumers:
                bundle = self._by_consumer.get(consumer)
                if bundle is None:
                    bundle = self._by_consumer[consumer] = Bundle((consumer,))
                bundles.append(bundle)
        else:
            bundles = [Bundle(consumers)]
            self._by_consumer.update(dict.fromkeys(consumers, bundles[0]))
        route = self._by_set[those] = Route(tuple(bundles), len(consumers))
        return route

    def _forget_routes(self) -> None:
        """Who gets what has changed."""
        self._routes.clear()
        self._by_set.clear()
        self._by_consumer.clear()
        self._shared = False


def _no_message(data: bytes, at: int) -> WireError:
    event = data[at]
    if event in (SUBSCRIBE, UNSUBSCRIBE):
        return WireError(f"a producer sent the event {chr(event)}", fault=Fault.SIDE)
    return WireError(f"{printable(data[at : at + 1])} is no event", fault=Fault.EVENT)


def _uniform(data: bytes, at: int, stride: int, header_bytes: int) -> int:
    """How many whole messages from `at` on have the same header as the one there, and so its size `stride`.

    The headers are compared a column at a time, each a slice with a step: all first bytes, all second ones.
    """
    most = (len(data) - at) // stride
    for same in (min(most, FEW), most):
        end = at + same * stride
        for column in range(at + header_bytes - 1, at - 1, -1):  # lengths and ends of names differ first
            byte = data[column : column + 1]
            bytes_ = data[column:end:stride]
            if bytes_ != byte * same:
                same = same - len(bytes_.lstrip(byte))
                end = at + same * stride
        if same < FEW:
            break
    return same

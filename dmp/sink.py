"""The writing end of a DMP connection: messages for one exchange, read in bulk.

A read brings thousands of messages. The bytes of names and flags, as they stand, are looked up in `_routes`,
so that they are decoded once only. Messages that follow with the same envelope are compared in one call
(`uniform`), and a stretch of messages for the same queues is one slice of what was read. A queue whose feed
stands ready gets that slice as it is. Other queues get the bodies, a run with one envelope at a time.

A bundle gathers what goes to the same queues (`shared.fanout`). Where two bundles would share a queue its
order would suffer: then each queue has a bundle of its own.

What is rare is taken message by message, in `_odd`. That is null messages, properties, options of the later
revision, names seen for the first time, and everything that is malformed.

Input is held back, as for AMQP's publishers, while memory is full or the disk is behind, and when others
should have a turn.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from dmp.exchanges import Exchange
from dmp.leases import SendReturn
from dmp.memory import BudgetedCache, UserMemory
from dmp.message import Head
from dmp.pacing import STOP_MEMORY
from dmp.queues import Application, Queue
from dmp.refusals import Code, Refusal, said_of
from dmp.takers import FeedTaker, room_of
from dmp.wire import (
    LENGTH_BYTES,
    PROPERTIES_BYTES_MAX,
    RECORDED_MESSAGES,
    SIZE_BYTES,
    MessageLayout,
    MessageOptions,
    Reply,
    end_of,
    envelope,
    layout_untrusted,
    read_envelope,
    read_u32,
    runs,
    size_max_of,
    uniform,
    wire_error,
)
from shared.errors import RemoteProtocolError, StoreError
from shared.fanout import Route, Routes, piece_of
from shared.net.session import SessionBase
from shared.turns import ITEMS

if TYPE_CHECKING:
    from dmp.broker import Broker
    from shared.recording.recorder import Track

_ROUTES_MAX = 4096  # names and properties that one connection's routes are kept for
_HEADS_MAX = 1024  # envelopes whose parsed form one connection keeps
# What these take beside their bytes, measured or rounded up: a head has its bytes up to three times.
_ROUTE_BYTES, _HEAD_BYTES = 400, 800
PUTS_MAX = 4096
"""Messages put into queues in one stretch, counted once for each queue; slices for feeds do not count."""


def _ready_feed(queue: Queue) -> FeedTaker | None:
    """The feed, if what came now would be given to it at once."""
    feed = queue.takers.feed
    at_once = feed is not None and queue.empty and queue.throttle is None and queue.once is None
    return feed if feed is not None and at_once and room_of(feed)[0] else None


@attrs.define(eq=False)
class Sink:
    """What a sink's session passes its input to."""

    _session: SessionBase
    _broker: Broker
    _exchange: Exchange
    _owner: Application | None
    _send_return: SendReturn
    sunk: int = attrs.field(default=0, init=False)  # messages that came
    _size_max: int = attrs.field(init=False)
    _generation: int = attrs.field(init=False)
    _track: Track | None = attrs.field(default=None, init=False)
    _payer: UserMemory | None = attrs.field(init=False)
    _fanout: Routes[Queue] = attrs.field(init=False)
    _routes: BudgetedCache[bytes, Route[Queue]] = attrs.field(init=False)
    """Where messages go, by their names and properties."""
    _heads: BudgetedCache[bytes, Head] = attrs.field(init=False)
    _slow: dict[Route[Queue], int] = attrs.field(factory=dict, init=False)
    """How many queues of a route have no feed that stands ready, of the stretch under way."""
    _puts: int = attrs.field(default=0, init=False)
    _taken: int = attrs.field(default=0, init=False)  # of what is scanned, up to the last good message

    def __attrs_post_init__(self) -> None:
        broker = self._broker
        self._size_max = size_max_of(broker.settings.message_bytes_max)
        self._generation = broker.generation
        caches = broker.accounts.caches
        self._payer = broker.memory.of(self._session.user)
        self._fanout = Routes(caches)
        self._routes = BudgetedCache(caches, _ROUTES_MAX)
        self._heads = BudgetedCache(caches, _HEADS_MAX)
        recorder, source = broker.recorder, self._session.connection.peer.encode()
        if recorder is not None:
            self._track = recorder.track(RECORDED_MESSAGES, name=self._exchange.name, source=source)
        if self._owner is not None and not self._owner.alive:
            self._owner = None
        if self._owner is not None:
            self._owner.hold()
        broker.counts.sinks += 1

    def release(self) -> None:
        self._broker.counts.sinks -= 1
        self._broker.memory.forget(self)
        self._forget_routes()
        self._heads.forget()
        if self._owner is not None:
            self._owner.release()

    def access_changed(self) -> None:
        """Shares may be others now: what comes from now on counts in the user's."""
        self._payer = self._broker.memory.of(self._session.user)
        self._heads.forget()

    # A stretch of input.

    def apply(self, data: bytes, at: int) -> int:
        """Apply everything whole. Raises RemoteProtocolError; messages before what is wrong stand."""
        broker, session = self._broker, self._session
        if broker.generation != self._generation:
            self._rewire()
        self._puts = 0
        self._slow.clear()
        self._taken = start = at
        sunk = broker.counts.sunk
        try:
            at = self._taken = self._scan(data, at)
        finally:
            self.sunk += broker.counts.sunk - sunk
            if self._track is not None and broker.counts.sunk > sunk:
                self._track.record(broker.counts.sunk - sunk, memoryview(data)[start : self._taken])
            self._deliver()
            broker.flush()
        if self._puts >= PUTS_MAX:
            session.yield_turn()
        memory = self._payer or broker.memory
        if memory.full and not session.stopped & STOP_MEMORY:
            broker.counts.memory_waits += 1
            session.pause_input(STOP_MEMORY)
            free = session.connection.guarded(partial(session.resume_next_turn, STOP_MEMORY))
            broker.memory.when_free(self, free, payer=self._payer)
        session.stop_if_congested(broker.store)
        if at < len(data) and not session.stopped:
            end = end_of(data, at, self._size_max)
            session.need(SIZE_BYTES if end is None else end - at)
        return at

    def _scan(self, data: bytes, at: int) -> int:
        """Find what goes where; where it stopped. Raises RemoteProtocolError."""
        find_route = self._routes.get
        body_bytes_max = self._broker.settings.message_bytes_max
        end, start = len(data), at
        current: Route[Queue] | None = None  # of the messages since `start`
        count = body_bytes = slow = 0
        last = b""  # names and properties
        while at + SIZE_BYTES <= end and self._puts < PUTS_MAX:
            after = at + SIZE_BYTES + read_u32(data, at)[0]
            if after > end:
                break
            try:
                key_at = at + 6 + data[at + 4]
                body_at = key_at + 6 + data[key_at - 1]
                names = data[at + SIZE_BYTES : body_at - LENGTH_BYTES]
                route = find_route(names)
                (length,) = read_u32(data, body_at - LENGTH_BYTES)
            except (IndexError, struct.error):  # it lies about its names, and would end beyond the data
                route, length, body_at, names = None, 0, 0, b""
            if length != after - body_at or length > body_bytes_max:
                route = None
            if route is None or route is not current:
                self._add(current, piece_of(data, start, at), count, body_bytes)
                current, start, count, body_bytes = route, at, 0, 0
                if route is None:
                    self._taken = at
                    at = start = self._odd(data, at, after)
                    if self._session.turn.over(ITEMS):  # a key seen for the first time may take milliseconds
                        self._session.yield_turn()
                        break
                    continue
                slow = self._slow_of(route)
            same = 1 if names != last else self._alike(slow, data, at, after, body_at)
            last = names
            count += same
            body_bytes += same * length
            self._puts += same * slow
            at += same * (after - at)
        self._add(current, piece_of(data, start, at), count, body_bytes)
        return at

    def _slow_of(self, route: Route[Queue]) -> int:
        """How many of its queues have no feed that stands ready."""
        slow = self._slow.get(route)
        if slow is None:
            slow = self._slow[route] = sum([_ready_feed(queue) is None for queue in _members(route)])
        return slow

    def _alike(self, slow: int, data: bytes, at: int, after: int, body_at: int) -> int:
        """How many messages, of the one in [at, after) and those that follow, have its envelope: as many as
        may be put into so many queues before others should have a turn."""
        same = uniform(data, at, after - at, body_at - at)
        return min(same, max(PUTS_MAX - self._puts, 0) // slow + 1) if slow else same

    def _add(
        self, route: Route[Queue] | None, piece: bytes | memoryview, count: int, body_bytes: int
    ) -> None:
        """Add a piece of `count` messages, of which `body_bytes` are their bodies."""
        if route is None:
            return
        if self._broker.observers:
            self._show(_members(route), bytes(piece))
        counts = self._broker.counts
        counts.published += count
        counts.published_bytes += body_bytes
        counts.sunk += count
        if not route.fan:
            counts.unroutable += count
        self._fanout.put(route, piece, count)

    def _show(self, queues: Sequence[Queue], piece: bytes) -> None:
        """Show messages to those who trace."""
        for before, bodies in runs(piece):
            for observe in self._broker.observers:
                observe(self._exchange.name, self._head(before), queues, bodies)

    def _odd(self, data: bytes, at: int, after: int) -> int:
        """Take the message in [at, after), and those that follow with its envelope.

        Raises RemoteProtocolError.
        """
        end_of(data, at, self._size_max)
        if after == at + SIZE_BYTES:
            return after  # a null message
        parts = layout_untrusted(data, at, after, self._broker.settings.message_bytes_max)
        names = data[at + SIZE_BYTES : parts.properties_end]
        route = self._routes.get(names) or self._route(names, parts)
        stride, body_bytes = after - at, after - parts.body_at
        count = self._alike(route.fan or 1, data, at, after, parts.body_at)
        self._puts += count * (route.fan or 1)
        stop = at + count * stride
        if names in self._routes and not parts.options:
            self._add(route, piece_of(data, at, stop), count, count * body_bytes)
            return stop
        self._deliver()
        self._taken = stop  # counted, and so recorded, whatever the store says
        bodies = [data[end - body_bytes : end] for end in range(after, stop + 1, stride)]
        self._publish_optional(route, data[at : parts.body_at], parts, bodies)
        return stop

    def _deliver(self) -> None:
        """Hand on what was gathered. Raises RemoteProtocolError if the store takes no writes."""
        failed: StoreError | None = None
        for queues, chunk, count in self._fanout.gathered():
            others: list[Queue] = []
            for queue in queues:
                feed = _ready_feed(queue)
                if feed is None:
                    others.append(queue)
                    continue
                # 100 bytes take 0.19 us of the server's processor so, and 0.71 by `Queue.publish`.
                queue.numbered += count
                self._broker.counts.delivered += count
                try:
                    feed.deliver_whole(chunk, count)
                except Exception as error:
                    feed.fail(error)
            if others:
                try:
                    for before, bodies in runs(bytes(chunk)):
                        self._broker.publish(self._head(before), others, bodies)
                except StoreError as error:
                    failed = error
        if failed is not None:
            raise self._store_refuses(failed) from failed

    def _publish_optional(
        self, route: Route[Queue], before: bytes, parts: MessageLayout, bodies: Sequence[bytes]
    ) -> None:
        """A run whose client wants to hear of what cannot be routed, or not delivered at once."""
        broker, counts = self._broker, self._broker.counts
        head, queues = self._head(before), _members(route)
        count = len(bodies)
        counts.published += count
        counts.published_bytes += count * head.body_bytes
        counts.sunk += count
        for observe in broker.observers:
            observe(self._exchange.name, head, queues, bodies)
        try:
            if not queues:
                counts.unroutable += count
                code = Code.NO_ROUTE if parts.options & MessageOptions.MANDATORY else Code.NO_CONSUMERS
                for body in bodies:
                    self._send_return(code, head, body)
            else:
                send_return = self._send_return if parts.options & MessageOptions.IMMEDIATE else None
                broker.publish(head, queues, bodies, send_return)
        except StoreError as error:
            raise self._store_refuses(error) from error

    def _store_refuses(self, error: StoreError) -> RemoteProtocolError:
        self._broker.counts.refused_publishes += 1
        return wire_error(Reply.INTERNAL_ERROR, said_of(error))

    # What names and envelopes mean.

    def _route(self, names: bytes, parts: MessageLayout) -> Route[Queue]:
        """Raises RemoteProtocolError."""
        sink, broker = self._exchange.name, self._broker
        if parts.exchange not in (b"", sink):
            raise wire_error(Reply.SYNTAX_ERROR, "the exchange of a message is not the sink's")
        properties = names[2 + len(parts.exchange) + len(parts.key) :]
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise wire_error(Reply.SYNTAX_ERROR, f"{len(properties)} bytes of properties")
        try:
            head = Head(sink, parts.key, 0, properties)
            queues = broker.route(sink, head)
        except Refusal as error:
            known = Reply.NOT_FOUND if error.code is Code.NOT_FOUND else Reply.SYNTAX_ERROR
            raise wire_error(known, error.text) from error
        user = head.noted.user_id
        if user is not None and (self._owner is None or user != self._owner.user.encode()):
            raise wire_error(Reply.NO_ACCESS, "user_id is set to another than the login's user")
        if head.noted.headers is not None and any(queue.later.in_time(head).due_ms for queue in queues):
            return self._fanout.of(queues)  # not kept: what waits for its time goes by `publish`
        size = _ROUTE_BYTES + len(names)
        if not self._routes.has_room(size):
            self._forget_routes()
        epoch = self._fanout.epoch
        route = self._fanout.of(queues)
        if self._fanout.epoch != epoch:  # a queue is in two sets: from now on each is for itself
            self._routes.forget()
        self._routes.keep(names, route, size)
        return route

    def _head(self, before: bytes) -> Head:
        """The head of messages with this envelope."""
        head = self._heads.get(before)
        if head is None:
            exchange, key, properties, body_bytes = read_envelope(before)
            head = Head(self._exchange.name, key, body_bytes, properties)
            head.payer = self._payer
            head.envelope = envelope(exchange, key, properties, body_bytes)  # without options
            self._heads.keep(before, head, _HEAD_BYTES + 3 * len(before))
        return head

    def _rewire(self) -> None:
        """Exchanges, queues or bindings have changed. Raises RemoteProtocolError where the sink is gone."""
        broker = self._broker
        if broker.exchanges.get(self._exchange.name) is not self._exchange:
            raise wire_error(Reply.NOT_FOUND, "the exchange is gone")
        self._forget_routes()
        self._generation = broker.generation

    def _forget_routes(self) -> None:
        """What was gathered is still delivered: in the order in which it came."""
        self._routes.forget()
        self._slow.clear()
        self._fanout.forget()


def _members(route: Route[Queue]) -> list[Queue]:
    return [queue for bundle in route.bundles for queue in bundle.members]

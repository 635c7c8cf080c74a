"""The port's connections: the header says which protocol they speak; DMP's are served here.

DMP greets at once. The lease is one short string; what follows it, in the same read or later, goes to a sink
or a feed. Every refusal is a short string with a code, and then the connection closes.

Source: PROTOCOL.md, "DMP".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from dmp.amqp.session import AmqpSession
from dmp.data_types import take_short
from dmp.exchanges import DEFAULT_IN_RULES, Exchange
from dmp.feed import Feed
from dmp.leases import Lease
from dmp.pacing import OWN_STOP_WORDS
from dmp.queues import Queue
from dmp.sink import Sink
from dmp.wire import AMQP_HEADER, DMP_HEADER, GREETING, Reply, ready, reply, wire_error
from shared.access import READ, WRITE
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection
from shared.net.session import SessionBase

if TYPE_CHECKING:
    from dmp.broker import Broker


class State(Enum):
    LEASE = "the greeting is sent, a lease is expected"
    SINK = "messages are read"
    FEED = "messages are written"
    ENDED = "pending answers are sent, then the connection closes"


class Event(Enum):
    SINK_LEASE = "lease of a sink"
    FEED_LEASE = "lease of a feed"
    REFUSED = "no lease, no target, malformed, deadline"
    GONE = "the queue is gone"
    END = "end of input, connection lost"


TRANSITIONS: Mapping[State, Mapping[Event, State]] = {
    State.LEASE: {
        Event.SINK_LEASE: State.SINK,
        Event.FEED_LEASE: State.FEED,
        Event.REFUSED: State.ENDED,
        Event.END: State.ENDED,
    },
    State.SINK: {Event.REFUSED: State.ENDED, Event.END: State.ENDED},
    State.FEED: {Event.REFUSED: State.ENDED, Event.GONE: State.ENDED, Event.END: State.ENDED},
    State.ENDED: {},
}


_LEASE = 0  # the deadline for a lease; beside it there is a feed's `IDLE`


class Session(SessionBase):
    """A connection of DMP, behind its header."""

    __slots__ = ("__weakref__", "_broker", "_right", "_role", "state")
    stop_words = OWN_STOP_WORDS

    def __init__(self, connection: Connection, broker: Broker, lease_until: float) -> None:
        """`lease_until`: when its lease must be there."""
        super().__init__(connection)
        self._broker = broker
        self._role: Sink | Feed | None = None
        self._right = "", b""  # what its user must be allowed: an action, and a name
        self.state = State.LEASE
        connection.write(reply(Reply.OK, GREETING))
        self.deadline(_LEASE, lease_until)

    def apply(self, data: bytes, at: int) -> int:
        role = self._role
        if role is None:
            word = take_short(data, at)
            if word is None:
                return at
            role = self._role = self._open(word)
            at += 1 + len(word)
            if at == len(data):
                return at
        return role.apply(data, at)

    @property
    def traffic(self) -> Mapping[str, Any]:
        role = self._role
        if isinstance(role, Sink):
            return {"messages_in": role.sunk, "messages_out": 0}
        return {} if role is None else {"messages_in": 0, "messages_out": role.delivered}

    def input_ended(self) -> None:
        """The peer has sent all. Messages are not owed to a feed, beyond what is in its outbox."""
        self._end(Event.END)
        self.connection.finish()

    def too_late(self) -> None:
        self._broker.counts.too_late += 1
        raise wire_error(Reply.SYNTAX_ERROR, f"a message was not complete after {self.input_seconds:g} s")

    def due(self, what: int, now: float) -> None:
        if isinstance(self._role, Feed):
            self._role.idle(now)
        else:
            self._broker.counts.too_late += 1
            error = wire_error(Reply.INVALID, "no lease came in time")
            self.on_wire_error(error)
            self.end()
            raise error

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        self._broker.counts.refusals[error.fault] += 1
        self.state = TRANSITIONS[self.state][Event.REFUSED]

    def release(self) -> None:
        if self.state is not State.ENDED:
            self.state = TRANSITIONS[self.state][Event.END]
        if self._role is not None:
            self._role.release()

    def connection_lost(self) -> None:
        super().connection_lost()
        if isinstance(self._role, Feed):
            self._role.connection_lost()
        self._broker.flush()

    def access_changed(self) -> None:
        """A sink that lost its right is refused, and a feed ends as if its queue were gone."""
        super().access_changed()
        if isinstance(self._role, Sink):
            self._role.access_changed()
        if self.ended or self._role is None or self.identity.may(*self._right):
            return
        if isinstance(self._role, Feed):
            self._role.cancelled()
        else:
            error = _no_access()
            self.connection.write(error.reply)
            self.on_wire_error(error)
            self.end()
            self.connection.finish()

    def _open(self, word: bytes) -> Sink | Feed:
        """Raises RemoteProtocolError: BAD_LEASE, NO_ACCESS, NOT_FOUND."""
        broker = self._broker
        lease = broker.leases.take(word)
        if lease is None or lease.owner.revoked:
            raise wire_error(Reply.BAD_LEASE, "not valid for this client")
        self.deadline(_LEASE, math.inf)
        target = lease.target
        self.identity.admit(broker.access, lease.owner.account)
        self._right = WRITE if isinstance(target, Exchange) else READ, target.name or DEFAULT_IN_RULES
        if not self.identity.may(*self._right):
            if isinstance(target, Queue):
                target.feed_lease = None
            raise _no_access()
        if isinstance(target, Exchange):
            return self._open_sink(lease, target)
        return self._open_feed(lease, target)

    def _open_sink(self, lease: Lease, exchange: Exchange) -> Sink:
        broker = self._broker
        if broker.exchanges.get(exchange.name) is not exchange:
            raise wire_error(Reply.NOT_FOUND, "the exchange is gone")
        self.state = TRANSITIONS[self.state][Event.SINK_LEASE]
        self.connection.write(ready(True, exchange.name))
        self.begin_input(broker.settings.frame_seconds)
        assert lease.send_return is not None
        return Sink(self, broker, exchange, lease.owner, lease.send_return)

    def _open_feed(self, lease: Lease, queue: Queue) -> Feed:
        if queue.deleted or not lease.owner.alive:  # of very many it goes a moment later
            raise wire_error(Reply.NOT_FOUND, "the queue is gone")
        self.state = TRANSITIONS[self.state][Event.FEED_LEASE]
        self.connection.write(ready(False, queue.name))
        return Feed(self, self._broker, queue, lease.owner, partial(self._end, Event.GONE))

    def _end(self, event: Event) -> None:
        if self.state is not State.ENDED:
            self.state = TRANSITIONS[self.state][event]
        self.end()


def _no_access() -> RemoteProtocolError:
    return wire_error(Reply.NO_ACCESS, "not allowed")


PROTOCOLS: Mapping[bytes, Callable[[Connection, Broker, float], SessionBase]] = {
    AMQP_HEADER: AmqpSession,
    DMP_HEADER: Session,
}
HEADER_BYTES = len(AMQP_HEADER)


class ProtocolHeader:
    """Reads the first eight bytes of a connection, which then goes on with a session of their protocol.

    Anything else is answered with AMQP 0-9-1's header, as that specification wants it, and the connection
    closes.
    """

    __slots__ = ("_broker", "_connection", "_header", "_until")

    def __init__(self, connection: Connection, broker: Broker) -> None:
        self._connection = connection
        self._broker = broker
        self._header = b""
        # From the connection on: for connection.open, or for the lease.
        self._until = connection.now + min(connection.first_request_seconds, broker.login_seconds_max)
        connection.wake_at(self._until)

    def receive(self, data: bytes) -> None:
        missing = HEADER_BYTES - len(self._header)
        self._header += data[:missing]
        if not any(header.startswith(self._header) for header in PROTOCOLS):
            self._broker.counts.refusals["not AMQP"] += 1
            raise RemoteProtocolError("the first bytes are no header of AMQP 0-9-1 or DMP", AMQP_HEADER)
        if len(self._header) < HEADER_BYTES:
            self._connection.await_rest()
            return
        session = PROTOCOLS[self._header](self._connection, self._broker, self._until)
        self._connection.hand_over(session)
        if len(data) > missing:
            session.receive(data[missing:])

    def receive_eof(self) -> None:
        self._connection.finish()

    def on_deadline(self, now: float) -> None:
        self._broker.closed_late(self._connection.peer, "the header")
        self._connection.finish()

    def drain(self) -> None:
        """There is no wait to end."""

    def connection_lost(self) -> None:
        """There is nothing to release."""

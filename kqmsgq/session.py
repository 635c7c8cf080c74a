"""One connection: its role, the events that it may send, and the rest of an incomplete event.

Source: PROTOCOL.md, "Connections". There are no replies: an error is counted and logged, and closes the
connection.
"""

from collections.abc import Mapping

from kqmsgq.fanout import Producer
from kqmsgq.queues import Consumer, Queues
from kqmsgq.states import TRANSITIONS, Event, State
from kqmsgq.wire import (
    ACCOUNT,
    CONSUME,
    LENGTH_BYTES,
    MESSAGE,
    NAME_AT,
    PRODUCE,
    RECORDED_MESSAGES,
    ROLE_BYTES,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    message_end,
    name_end,
    take_account,
)
from shared.access import READ, Guard
from shared.errors import RemoteProtocolError, printable
from shared.net.connection import Connection
from shared.net.session import SessionBase


class Session(SessionBase):
    """The server's side of one connection."""

    __slots__ = ("_consumer", "_producer", "_queues", "state")

    def __init__(self, connection: Connection, queues: Queues, gate: Guard | None = None) -> None:
        super().__init__(connection, queues.settings.event_seconds)
        self._queues = queues
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self.state = State.ROLE
        self.identity.admit(gate)
        self.identity.await_first_request()

    def receive(self, data: bytes) -> None:
        """Fast path above `apply`, for reads of few messages: one takes 0.8 us in memory, 1.4 by `apply`."""
        producer = self._producer
        if producer is None or self.kept or self.stopped or not producer.publish_alike(data):
            super().receive(data)

    def apply(self, data: bytes, at: int) -> int:
        while self.state is State.ROLE:
            before, at = at, self._take_role(data, at)
            if self.stopped or self.ended or at == before:
                return at
        if self._producer is not None:
            return self._publish(self._producer, data, at)
        if self._consumer is not None:
            return self._subscribe(self._consumer, data, at)
        return at

    def _take_role(self, data: bytes, at: int) -> int:
        role = data[at : at + ROLE_BYTES]
        if role == ACCOUNT:
            return self._take_account(data, at)
        if not (PRODUCE.startswith(role) or CONSUME.startswith(role) or ACCOUNT.startswith(role)):
            raise RemoteProtocolError(f"{printable(role)} is neither produce nor consume", fault=Fault.ROLE)
        if len(role) < ROLE_BYTES:
            return at
        if not self.user:
            self._refuse()
            return at
        self.connection.first_request_done()
        queues = self._queues
        if role == PRODUCE:
            self.state = TRANSITIONS[self.state][Event.PRODUCE]
            queues.counts.producers += 1
            track = None
            if queues.recorder is not None:
                track = queues.recorder.track(RECORDED_MESSAGES, source=self.connection.peer.encode())
            self._producer = Producer(queues, track, self.turn)
            self._producer.restrict(self.user, self.guard, self.connection.peer)
        else:
            self.state = TRANSITIONS[self.state][Event.CONSUME]
            self._consumer = queues.join(self.connection, self.user)
        return at + ROLE_BYTES

    def _take_account(self, data: bytes, at: int) -> int:
        """Check a login, which comes before the role. A refused login closes the connection."""
        found = take_account(data, at)
        if found is None:
            return at
        user, password, end = found

        def done(fits: bool) -> None:
            if fits:
                self.state = TRANSITIONS[self.state][Event.ACCOUNT]
                return
            self._refuse()

        self.identity.log_in(user.decode("utf-8", "replace"), password, done)
        return end

    def _refuse(self) -> None:
        """Close an unauthenticated connection by a reset: an orderly end would tell a producer that all was
        read."""
        self._queues.counts.faults[Fault.LOGIN] += 1
        self.state = TRANSITIONS[self.state][Event.FAULT]
        self.end()
        self.connection.abort("login refused", reset=True)

    def access_changed(self) -> None:
        super().access_changed()
        if self._producer is not None:
            self._producer.restrict(self.user, self.guard, self.connection.peer)
        elif self._consumer is not None and self.guard is not None:
            for name in self._queues.subscriptions(self._consumer):
                if not self._may_read(self.guard, name):
                    self._queues.end_subscription(self._consumer, name)

    def _may_read(self, guard: Guard, name: bytes) -> bool:
        return guard.may(self.user, READ, name) if name else guard.may_all(self.user, READ)

    def take_first(self, request: bytes) -> bool:
        return self._producer is not None and self._producer.publish_first(request)

    def _publish(self, producer: Producer, data: bytes, at: int) -> int:
        """Take a producer's messages."""
        at = producer.publish(data, at)
        if producer.more:
            self.yield_turn()
        elif at < len(data):
            settings = self._queues.settings
            named = name_end(data, at, settings.name_bytes_max)
            end = None if named is None else message_end(data, named, settings.message_bytes_max)
            if named is None or end is None:
                self.need((at + NAME_AT if named is None else named + LENGTH_BYTES) - at)
            else:
                self.need(end - at, whole=True)
        return at

    def _subscribe(self, consumer: Consumer, data: bytes, at: int) -> int:
        """Take a consumer's events."""
        queues = self._queues
        while at < len(data):
            if self.turn.over():
                self.yield_turn()
                break
            event = data[at]
            if event not in (SUBSCRIBE, UNSUBSCRIBE):
                if event == MESSAGE:
                    raise RemoteProtocolError("a consumer sent the event *", fault=Fault.SIDE)
                raise RemoteProtocolError(f"{printable(data[at : at + 1])} is no event", fault=Fault.EVENT)
            end = name_end(data, at, queues.settings.name_bytes_max)
            if end is None or end > len(data):
                self.need((end or at + NAME_AT) - at)
                break
            name = data[at + NAME_AT : end]
            if event == SUBSCRIBE:
                if self.guard is None or self._may_read(self.guard, name):
                    queues.subscribe(consumer, name)
                else:
                    self.guard.refuse(self.user, READ, name or b"*", self.connection.peer)
            else:
                queues.unsubscribe(consumer, name)
            at = end
        return at

    @property
    def traffic(self) -> Mapping[str, int]:
        producer, consumer = self._producer, self._consumer
        return {
            "messages_in": 0 if producer is None else producer.messages,
            "messages_out": 0 if consumer is None else consumer.messages - consumer.dropped,
        }

    def input_ended(self) -> None:
        self.state = TRANSITIONS[self.state][Event.INPUT_ENDS]
        denied = self._producer is not None and self._producer.denied
        self.end()
        if denied:  # an orderly end would tell the producer that all was taken
            self.connection.abort("messages denied", reset=True)
        else:
            self.connection.finish()

    def too_late(self) -> None:
        raise RemoteProtocolError(
            f"an event was not complete after {self.input_seconds:g} s", fault=Fault.TOO_LATE
        )

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        self._queues.counts.faults[error.fault] += 1
        self.state = TRANSITIONS[self.state][Event.FAULT]

    def release(self) -> None:
        if self._producer is not None:
            self._queues.counts.producers -= 1
            self._producer.end()
            self._producer = None
        elif self._consumer is not None:
            self._queues.leave(self._consumer)
            self._consumer = None

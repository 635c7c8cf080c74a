"""One connection: which side it is, what it may send, and what is kept of an event that is not all there.

Source: PROTOCOL.md, "Connections". There are no replies: what is wrong is counted and logged, and closes the
connection.
"""

from kqmsgq.producing import Producing
from kqmsgq.queues import Consumer, Queues
from kqmsgq.states import TRANSITIONS, Event, State
from kqmsgq.wire import (
    CONSUME,
    MESSAGE,
    NAME_AT,
    PRODUCE,
    RECORDED_MESSAGES,
    ROLE_BYTES,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Fault,
    WireError,
    message_end,
    name_end,
)
from shared.net.begun import Begun
from shared.net.connection import Connection
from shared.net.outbox import Policy
from shared.net.turns import Turns
from shared.printable import printable
from shared.recording.recorder import Track

LARGE_BYTES = 64 * 1024
"""A message of more is gathered in place, and looked at again once it is whole."""
EVENTS_PER_TURN = 1024
"""Of a consumer; then others have theirs."""


class Session:
    """What the driver serves (`shared.net.connection.Session`)."""

    __slots__ = (
        "_begun",
        "_connection",
        "_consumer",
        "_large",
        "_large_bytes",
        "_more",
        "_producing",
        "_queues",
        "_rest",
        "_turns",
        "state",
    )

    def __init__(self, connection: Connection, queues: Queues) -> None:
        self._connection = connection
        self._queues = queues
        self._producing: Producing | None = None
        self._consumer: Consumer | None = None
        self._rest = b""  # the beginning of an event
        self._large: bytearray | None = None  # that of a large message, whose end is at `_large_bytes`
        self._large_bytes = 0
        self._begun = Begun(connection, queues.settings.event_seconds)
        self._turns = Turns(connection, self._begun, self.receive)
        self._more = False  # the turn is over, and there is more that is whole
        self.state = State.ROLE
        connection.await_first()

    def receive(self, data: bytes) -> None:
        if self._turns.keeps(data):
            return
        try:
            if self._large is not None:
                missing = self._large_bytes - len(self._large)
                self._large += data[:missing]
                if len(data) < missing:
                    self._connection.await_rest()
                    self._connection.hold(len(self._large))
                    return
                assert self._producing is not None
                self._producing.publish(bytes(self._large))
                self._large = None
                self._begun.end()
                data = data[missing:]
            elif self._rest:
                data = self._rest + data
                self._rest = b""
            taken = self._take(data)
            left = len(data) - taken
            if self._more:
                self._more = False
                self._turns.put_off(data[taken:])
            elif left:
                self._keep(data[taken:], begins=taken > 0)
            else:
                self._begun.end()
            self._connection.hold(left)
        except WireError as error:
            self._refuse(error)
            raise

    def receive_eof(self) -> None:
        """What has begun and did not end was nothing."""
        self._end(Event.INPUT_ENDS)
        self._connection.finish()

    def on_deadline(self, now: float) -> None:
        if self._begun.is_late(now):
            seconds = self._queues.settings.event_seconds
            error = WireError(f"an event was not complete after {seconds:g} s", fault=Fault.TOO_LATE)
            self._refuse(error)
            raise error
        self._turns.on_deadline()

    def connection_lost(self) -> None:
        if self.state is not State.ENDING:
            self._end(Event.INPUT_ENDS)

    def _take(self, data: bytes) -> int:
        """Apply what is whole, as far as this turn goes; returns where that ends. Raises WireError."""
        if self._producing is not None:
            return self._publish(self._producing, data)
        if self.state is State.CONSUMER:
            return self._subscribe(data, 0)
        role = data[:ROLE_BYTES]
        if not (PRODUCE.startswith(role) or CONSUME.startswith(role)):
            raise WireError(f"{printable(role)} is neither produce nor consume", fault=Fault.ROLE)
        if len(role) < ROLE_BYTES:
            return 0
        self._connection.spoke()
        if role == PRODUCE:
            self.state = TRANSITIONS[self.state][Event.PRODUCE]
            self._queues.counts.producers += 1
            self._producing = Producing(self._queues, self._track())
            return ROLE_BYTES + self._publish(self._producing, data[ROLE_BYTES:])
        self.state = TRANSITIONS[self.state][Event.CONSUME]
        self._become_consumer()
        return self._subscribe(data, ROLE_BYTES)

    def _publish(self, producing: Producing, data: bytes) -> int:
        taken = producing.publish(data)
        self._more = producing.more
        return taken

    def _track(self) -> Track | None:
        recorder = self._queues.recorder
        if recorder is None:
            return None
        return recorder.track(RECORDED_MESSAGES, source=self._connection.peer.encode())

    def _become_consumer(self) -> None:
        queues, outbox = self._queues, self._connection.outbox
        consumer = self._consumer = Consumer(self._connection)
        outbox.bound = queues.settings.consumer_bytes_max
        outbox.policy = Policy(queues.settings.slow_consumer)
        outbox.on_drop = lambda chunk: queues.dropped(consumer, chunk)
        queues.counts.consumers += 1
        queues.join(consumer)

    def _subscribe(self, data: bytes, at: int) -> int:
        """A consumer's events from `at` on. Raises WireError."""
        consumer = self._consumer
        assert consumer is not None
        queues = self._queues
        left = EVENTS_PER_TURN
        while at < len(data):
            if not left:
                self._more = True
                break
            left -= 1
            event = data[at]
            if event not in (SUBSCRIBE, UNSUBSCRIBE):
                if event == MESSAGE:
                    raise WireError("a consumer sent the event *", fault=Fault.SIDE)
                raise WireError(f"{printable(data[at : at + 1])} is no event", fault=Fault.EVENT)
            end = name_end(data, at, queues.settings.name_bytes_max)
            if end is None or end > len(data):
                break
            name = data[at + NAME_AT : end]
            if event == SUBSCRIBE:
                queues.subscribe(consumer, name)
            else:
                queues.unsubscribe(consumer, name)
            at = end
        return at

    def _keep(self, rest: bytes, *, begins: bool) -> None:
        """The beginning of an event, whose first byte came just now or, not `begins`, maybe before."""
        self._connection.await_rest()
        if begins or not self._begun:
            self._begun.begin()
        if self.state is State.PRODUCER:
            settings = self._queues.settings
            after_name = name_end(rest, 0, settings.name_bytes_max)
            if after_name is not None:
                end = message_end(rest, 0, after_name, settings.message_bytes_max)
                if end is not None and end > LARGE_BYTES:
                    self._large, self._large_bytes = bytearray(rest), end
                    return
        self._rest = rest

    def _refuse(self, error: WireError) -> None:
        self._queues.counts.fault(error.fault)
        self._end(Event.FAULT)

    def _end(self, event: Event) -> None:
        """Nothing more is taken from the peer, nor sent to it beside what is in its outbox."""
        counts = self._queues.counts
        if self._producing is not None:
            counts.producers -= 1
            self._producing = None
        elif self._consumer is not None:
            counts.consumers -= 1
            self._queues.leave(self._consumer)
            self._consumer = None
        self._rest, self._large = b"", None
        self._begun.end()
        self._turns.forget()
        self.state = TRANSITIONS[self.state][event]

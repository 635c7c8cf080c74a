"""One connection of a subscriber: its id first, then its commands.

Source: PROTOCOL.md, "Subscribers". There are no replies: what is wrong is counted and logged, and closes the
connection.
"""

from pubsub.sessions import Client, Sessions
from pubsub.states import TRANSITIONS, Event, State
from pubsub.wire import (
    COMMAND_BYTES,
    FRAME_BYTES,
    ID_BYTES,
    Command,
    Fault,
    WireError,
    decode_commands,
    decode_id,
)
from shared.net.begun import Begun
from shared.net.connection import Connection
from shared.net.outbox import Policy
from shared.net.turns import Turns

COMMANDS_PER_TURN = 256
"""Then others have theirs: each may be a record in a log, and a pattern in the index."""

_EVENTS = {
    Command.SUBSCRIBE: Event.SUBSCRIBE,
    Command.KEEP: Event.SUBSCRIBE,
    Command.UNSUBSCRIBE: Event.UNSUBSCRIBE,
    Command.DISCONNECT: Event.DISCONNECT,
}


class Session:
    """What the driver serves (`shared.net.connection.Session`)."""

    __slots__ = ("_begun", "_client", "_connection", "_rest", "_sessions", "_turns", "state")

    def __init__(self, connection: Connection, sessions: Sessions) -> None:
        self._connection = connection
        self._sessions = sessions
        self._client: Client | None = None
        self._rest = b""  # the beginning of an id or a command
        self._begun = Begun(connection, sessions.settings.command_seconds)
        self._turns = Turns(connection, self._begun, self.receive)
        self.state = State.ID
        connection.await_first()

    def receive(self, data: bytes) -> None:
        if self._turns.keeps(data):
            return
        if self._rest:
            data = self._rest + data
        begins = not self._rest
        try:
            taken = self._take(data)
        except WireError as error:
            self._refuse(error)
            raise
        self._rest = data[taken:] if self.state is not State.ENDING else b""
        if self._rest:
            self._connection.await_rest()
        if self.state is State.SUBSCRIBER:
            if self._rest and taken >= COMMANDS_PER_TURN * COMMAND_BYTES:
                left, self._rest = self._rest, b""
                self._turns.put_off(left)
            elif not self._rest:
                self._begun.end()
            elif taken or begins:
                self._begun.begin()

    def receive_eof(self) -> None:
        """A command that has begun and did not end was nothing."""
        self._end(Event.INPUT_ENDS)
        self._connection.finish()

    def on_deadline(self, now: float) -> None:
        if self._begun.is_late(now):
            seconds = self._sessions.settings.command_seconds
            error = WireError(f"a command was not complete after {seconds:g} s", fault=Fault.TOO_LATE)
            self._refuse(error)
            raise error
        self._turns.on_deadline()

    def connection_lost(self) -> None:
        if self.state is not State.ENDING:
            self._end(Event.INPUT_ENDS)

    def _take(self, data: bytes) -> int:
        """Apply what is whole, as far as this turn goes; returns where that ends. Raises WireError."""
        at = 0
        if self.state is State.ID:
            if len(data) < ID_BYTES:
                return 0
            self._join(decode_id(data[:ID_BYTES]))
            at = ID_BYTES
        commands, at, error = decode_commands(data[: at + COMMANDS_PER_TURN * COMMAND_BYTES], at)
        sessions, client = self._sessions, self._client
        assert client is not None
        for command, topic in commands:
            event = _EVENTS[Command(command)]
            if event is Event.SUBSCRIBE:
                sessions.subscribe(client, topic, keeps=command == Command.KEEP)
            elif event is Event.UNSUBSCRIBE:
                sessions.unsubscribe(client, topic)
            else:
                self._end(event)
                self._connection.finish()
                return at
        if error is not None:
            raise error
        return at

    def _join(self, client_id: bytes) -> None:
        sessions, outbox = self._sessions, self._connection.outbox
        outbox.bound = sessions.settings.subscriber_bytes_max
        outbox.policy = Policy(sessions.settings.slow_subscriber)
        self._connection.spoke()
        client = self._client = sessions.join(client_id, self._connection)
        # It is dropped in chunks, which are whole frames.
        outbox.on_drop = lambda chunk: sessions.dropped(client, len(chunk) // FRAME_BYTES)
        self.state = TRANSITIONS[self.state][Event.JOIN]

    def _refuse(self, error: WireError) -> None:
        self._sessions.counts.fault(error.fault)
        self._end(Event.FAULT)

    def _end(self, event: Event) -> None:
        """Nothing more is taken from the peer, nor sent to it beside what is in its outbox."""
        if self._client is not None:
            self._sessions.leave(self._client)
            self._client = None
        self._rest = b""
        self._begun.end()
        self._turns.forget()
        self.state = TRANSITIONS[self.state][event]

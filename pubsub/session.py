"""One connection of a subscriber: its id first, then its commands.

Source: PROTOCOL.md, "Subscribers". There are no replies: what is wrong is counted and logged, and closes the
connection.
"""

from pubsub.sessions import ClientSession, Sessions
from pubsub.states import TRANSITIONS, Event, State
from pubsub.wire import (
    COMMAND_BYTES,
    ID_BYTES,
    Command,
    Fault,
    WireError,
    decode_commands,
    decode_id,
)
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection
from shared.net.session import SessionBase

COMMANDS_PER_TURN = 256
"""Then others have theirs: each may be a record in a log, and a pattern in the index."""

_EVENTS = {
    Command.SUBSCRIBE: Event.SUBSCRIBE,
    Command.KEEP: Event.SUBSCRIBE,
    Command.UNSUBSCRIBE: Event.UNSUBSCRIBE,
    Command.DISCONNECT: Event.DISCONNECT,
}


class Session(SessionBase):
    """The server's side of one connection."""

    __slots__ = ("_client", "_sessions", "state")

    def __init__(self, connection: Connection, sessions: Sessions) -> None:
        super().__init__(connection)
        self._sessions = sessions
        self._client: ClientSession | None = None
        self.state = State.ID
        connection.await_first()

    def apply(self, data: bytes, at: int) -> int:
        if self.state is State.ID:
            if len(data) - at < ID_BYTES:
                self.need(ID_BYTES)
                return at
            self._join(decode_id(data[at : at + ID_BYTES]))
            at += ID_BYTES
        turn_ends = at + COMMANDS_PER_TURN * COMMAND_BYTES
        commands, at, error = decode_commands(data[:turn_ends], at)
        sessions, client = self._sessions, self._client
        assert client is not None
        for command, topic in commands:
            event = _EVENTS[Command(command)]
            if event is Event.SUBSCRIBE:
                sessions.subscribe(client, topic, keeps=command == Command.KEEP)
            elif event is Event.UNSUBSCRIBE:
                sessions.unsubscribe(client, topic)
            else:
                self._finish(event)
                return at
        if error is not None:
            raise error
        if at == turn_ends < len(data):
            self.let_others()
        else:
            self.need(COMMAND_BYTES)
        return at

    def _join(self, client_id: bytes) -> None:
        self.connection.spoke()
        self._client = self._sessions.join(client_id, self.connection)
        self.state = TRANSITIONS[self.state][Event.JOIN]
        self.input_seconds = self._sessions.settings.command_seconds

    def input_ended(self) -> None:
        self._finish(Event.INPUT_ENDS)

    def too_late(self) -> None:
        raise WireError(f"a command was not complete after {self.input_seconds:g} s", fault=Fault.TOO_LATE)

    def fault(self, error: RemoteProtocolError) -> None:
        assert isinstance(error, WireError)
        self._sessions.counts.fault(error.fault)
        self.state = TRANSITIONS[self.state][Event.FAULT]

    def release(self) -> None:
        if self._client is not None:
            self._sessions.leave(self._client)
            self._client = None

    def _finish(self, event: Event) -> None:
        """Nothing is sent any more beside what is in the outbox."""
        self.state = TRANSITIONS[self.state][event]
        self.end()
        self.connection.finish()

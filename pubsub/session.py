"""One connection of a subscriber: its id first, then its commands.

Source: PROTOCOL.md, "Subscribers". There are no replies: an error is counted and logged, and closes the
connection.
"""

from collections.abc import Mapping
from typing import ClassVar

from pubsub.sessions import ClientSession, Sessions
from pubsub.states import TRANSITIONS, Event, State
from pubsub.wire import (
    COMMAND_BYTES,
    ID_BYTES,
    Command,
    Fault,
    decode_command,
    decode_id,
    decode_since,
)
from shared.access import ANONYMOUS, READ, Guard
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.net.stops import STOP_WORDS, Stop

LOOKS_BACK = Stop.FIRST_OWN
_SUBSCRIBING = (Command.SUBSCRIBE, Command.KEEP)
_EVENTS = {
    Command.SUBSCRIBE: Event.SUBSCRIBE,
    Command.KEEP: Event.SUBSCRIBE,
    Command.UNSUBSCRIBE: Event.UNSUBSCRIBE,
    Command.DISCONNECT: Event.DISCONNECT,
}


class Session(SessionBase):
    """The server's side of one connection."""

    __slots__ = ("_client", "_gate", "_id", "_sessions", "state")

    stop_words: ClassVar[Mapping[int, str]] = {**STOP_WORDS, LOOKS_BACK: "what was before, which it is sent"}

    def __init__(self, connection: Connection, sessions: Sessions, gate: Guard | None = None) -> None:
        super().__init__(connection)
        self._sessions = sessions
        self._client: ClientSession | None = None
        self._id = b""
        self._gate = gate
        self.state = State.ID
        self.identity.admit(gate)
        self.identity.await_first_request()

    def apply(self, data: bytes, at: int) -> int:
        if self.state is State.ID:
            if len(data) - at < ID_BYTES:
                self.need(ID_BYTES)
                return at
            self._id = decode_id(data[at : at + ID_BYTES])
            at += ID_BYTES
            if self._is_mine():
                self._join(Event.JOIN)
            else:
                self.state = TRANSITIONS[self.state][Event.LOGIN_COMES]
        if self.state is State.LOGIN and data[at : at + 1] not in (b"", bytes([Command.LOGIN])):
            raise RemoteProtocolError("log in first, with a command of type 4", fault=Fault.LOGIN)
        sessions, client = self._sessions, self._client
        while at < len(data):
            found = decode_command(data, at)
            if found is None:
                self.need(COMMAND_BYTES)
                break
            command, topic = found
            minutes = None
            if command == Command.LOGIN and client is not None:
                since = self._since(topic)
                if since is not None:
                    command, (minutes, topic) = Command.KEEP, since
            if client is not None and command in _SUBSCRIBING and not sessions.may_subscribe(client):
                self.pause_input(LOOKS_BACK)
                break
            at += COMMAND_BYTES
            if command == Command.LOGIN:  # the commands behind it wait for its outcome
                user, _, password = topic.partition(b":")
                self.identity.log_in(user.decode("utf-8", "replace"), password, self._logged_in)
                break
            assert client is not None
            event = _EVENTS[Command(command)]
            if event is Event.UNSUBSCRIBE:
                sessions.unsubscribe(client, topic)
            elif event is Event.DISCONNECT:
                self._finish(event)
                break
            elif self._may_subscribe(topic):
                sessions.subscribe(client, topic, keeps=command == Command.KEEP, minutes=minutes)
            if self.turn.over() and at < len(data):
                self.yield_turn()
                break
        return at

    def _since(self, topic: bytes) -> tuple[int, bytes] | None:
        """Minutes and pattern of a subscription from the past; None: it is a login. A user's name may look
        like a number."""
        users = None if self._gate is None else self._gate.access.users
        if users and topic.partition(b":")[0].decode("utf-8", "replace") in users:
            return None
        return decode_since(topic, may_log_in=users is not None)

    def _holds(self, size: int) -> None:
        """So many bytes wait while the client looks back."""
        self.gathered_bytes = size
        self.count_held()
        if not size and self.stopped & LOOKS_BACK:
            self.resume_next_turn(LOOKS_BACK)

    def _is_mine(self) -> bool:
        """Whether this user may take the id: no user or the same one owns it."""
        client = self._sessions.clients.get(self._id)
        return bool(self.user) and (client is None or client.owner == self.user)

    def _join(self, event: Event) -> None:
        self.connection.first_request_done()
        sessions = self._sessions
        known = sessions.clients.get(self._id)
        if known is not None and known.connection is None:
            self._restrict(known)  # rules may have changed while the client was away
        self._client = sessions.join(self._id, self.connection, self.user)
        self._client.holds = self._holds
        self.state = TRANSITIONS[self.state][event]
        self.input_seconds = sessions.settings.command_seconds

    def _logged_in(self, fits: bool) -> None:
        """A login was checked. A refused one closes the connection."""
        client = self._client
        try:
            if not fits:
                raise RemoteProtocolError("a login was refused", fault=Fault.LOGIN)
            if client is None:
                if not self._is_mine():
                    raise RemoteProtocolError("that id is another user's", fault=Fault.LOGIN)
                self._join(Event.LOGGED_IN)
            elif client.owner in (ANONYMOUS, self.user):
                self._sessions.own(client, self.user)
            else:
                raise RemoteProtocolError("the session is another user's", fault=Fault.LOGIN)
        except RemoteProtocolError as error:
            self.on_wire_error(error)
            self.end()
            self.connection.fail(error)

    def _may_subscribe(self, topic: bytes) -> bool:
        guard = self.guard
        if guard is None or guard.may_subscribe(self.user, topic):
            return True
        guard.refuse(self.user, READ, topic, self.connection.peer)
        return False

    def access_changed(self) -> None:
        super().access_changed()
        client = self._client
        if client is not None and client.owner in (ANONYMOUS, self.user):  # else the connection ends, only
            self._restrict(client)

    def _restrict(self, client: ClientSession) -> None:
        """End the subscriptions that the user's rules do not allow."""
        if self.guard is not None:
            ended = [topic for topic in client.topics if not self._may_subscribe(topic)]
            self._sessions.end_subscriptions(client, ended)

    @property
    def traffic(self) -> Mapping[str, int]:
        client = self._client
        return {"messages_in": 0, "messages_out": 0 if client is None else client.written - client.dropped}

    def input_ended(self) -> None:
        self._finish(Event.INPUT_ENDS)

    def too_late(self) -> None:
        raise RemoteProtocolError(
            f"a command was not complete after {self.input_seconds:g} s", fault=Fault.TOO_LATE
        )

    def on_wire_error(self, error: RemoteProtocolError) -> None:
        self._sessions.counts.faults[error.fault] += 1
        self.state = TRANSITIONS[self.state][Event.FAULT]

    def release(self) -> None:
        if self._client is not None:
            self._sessions.leave(self._client)
            self._client = None

    def _finish(self, event: Event) -> None:
        """Send the outbox, then close."""
        self.state = TRANSITIONS[self.state][event]
        self.end()
        self.connection.finish()

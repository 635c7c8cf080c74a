"""Whose a connection is, and what that user may do: the part of a session that asks a protocol's guard.

A connection begins as nobody's where a login is required, else as everybody's (`ANONYMOUS`). A client
certificate or a login gives it to a user. Each user has a share of all connections, so his are counted.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.access import ANONYMOUS, READ, Guard
from shared.net.stops import Stop

if TYPE_CHECKING:
    from shared.net.session import SessionBase

LOGIN_SECONDS = 10.0
"""Time for the first complete request where a login is required, in place of `net.first_request_seconds`."""


class Identity:
    """It sets the session's `user` and `guard`. `crowded`: the user has more than his share of
    connections.
    """

    __slots__ = ("_counted", "_gate", "_session", "crowded")

    def __init__(self, session: "SessionBase") -> None:
        self._session = session
        self._gate: Guard | None = None  # the protocol's guard, also where everything is allowed
        self._counted = ""  # the user whose connection this counts as
        self.crowded = False

    def admit(self, gate: Guard | None, user: str = "") -> None:
        """Put the connection under a protocol's guard. It belongs to `user`; where that is "", to the user
        named in the client certificate.
        """
        if gate is not None:
            session = self._session
            self._gate = gate
            gate.clients.add(session)
            if user:
                session.user = user
            elif session.connection.certificate_user:
                session.user = gate.user_of_certificate(session.connection.certificate_user) or ANONYMOUS
            self.look_again()

    def look_again(self) -> None:
        """The rules or the user have changed: set the session's guard."""
        gate, session = self._gate, self._session
        if gate is None:
            return
        if session.user in ("", ANONYMOUS):
            session.user = "" if gate.asks_login else ANONYMOUS
        if session.user != self._counted:
            self.crowded = not gate.access.count_connection(session.user, self._counted)
            self._counted = session.user
            if self.crowded:  # while it is opened the driver has no session yet that it could close
                session.wake_by(session.connection.now)
        session.connection.set_stranger(not session.user)
        session.guard = None if session.user == ANONYMOUS and gate.opens else gate

    def leave(self) -> None:
        """The session has ended."""
        if self._gate is not None:
            self._gate.clients.discard(self._session)
            self._gate.access.count_connection("", self._counted)

    def await_first_request(self, farewell: bytes = b"") -> None:
        """`Connection.await_first_request`, with `LOGIN_SECONDS` at most where a login is required."""
        gate = self._gate
        has_to_log_in = gate is not None and gate.asks_login
        self._session.connection.await_first_request(farewell, LOGIN_SECONDS if has_to_log_in else math.inf)

    def log_in(self, user: str, password: bytes, done: Callable[[bool], None]) -> None:
        """Check a password and call `done` with the result. Input is held back until then."""
        gate, session = self._gate, self._session

        def checked(fits: bool) -> None:
            if session.lost or session.ended:
                return
            if fits:
                session.user = user
                session.access_changed()
            done(fits)
            # In a turn of the driver, so what `done` wrote is committed at its end.
            session.resume_next_turn(Stop.LOGIN)

        if gate is None:
            done(False)
        else:
            session.pause_input(Stop.LOGIN)
            gate.log_in(user, password, session.connection.peer, checked, session.connection.in_its_turn)

    def may(self, action: str, name: str | bytes) -> bool:
        """Whether the user may do `action` to `name`; a refusal is counted and logged."""
        session = self._session
        guard = session.guard
        if guard is None or guard.may(session.user, action, name):
            return True
        guard.refuse(session.user, action, name, session.connection.peer)
        return False

    def may_see(self, name: str | bytes) -> bool:
        """Whether the user may do anything at all with `name`; a refusal is counted and logged as a read."""
        session = self._session
        guard = session.guard
        if guard is None or guard.may_see(session.user, name):
            return True
        guard.refuse(session.user, READ, name, session.connection.peer)
        return False

    def audit(self, action: str, name: str | bytes) -> None:
        """Write a line to the audit log: the user has done `action` to `name`."""
        if self._gate is not None:
            self._gate.done(self._session.user, self._session.connection.peer, action, name)

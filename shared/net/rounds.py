"""Rounds: the synchronous stretches in which a group's sessions are called, whatever driver serves them.

Output written in a round is flushed when the session that is being served returns (by the poll driver, small
answers of several together), for other connections when the round ends; then `after_round` runs (the host
commits what was appended), and what that wrote is flushed too. A session's `connection_lost` is called at the
end of a round, never from inside a call that the session made.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable
from contextlib import closing
from time import perf_counter
from typing import Any

import structlog
import trio

from shared.errors import RemoteProtocolError
from shared.net.admission import Admission
from shared.net.connection import Connection, Session
from shared.net.counters import NetCounters
from shared.net.deadlines import Deadlines
from shared.net.driven import DrivenConnection
from shared.net.outbox import OutboxBudget
from shared.net.settings import NetSettings

OpenSession = Callable[[Connection], Session]
AfterRound = Callable[[], bool | None]
"""Called after every round; True asks the driver to let other tasks run at once."""

DEADLINES_SECONDS = 2e-3
"""Work on deadlines in one round. Sessions that leave others a turn ask for one at once; where many do, input
would wait for all of them."""
FAREWELLS_SECONDS = 2e-3
"""The same for sessions whose connections are gone: one may have ten thousand subscriptions to take back."""
SILENT_AT_ONCE = 32
"""Connections that are closed in one round because they said nothing: about a millisecond."""
HOLD_LEAST = 4
"""Fewer connections than this are sent at once what `after_round` brought them: they have it soonest so."""


class Rounds:
    """The connections of one group of listeners, the calls into their sessions, and their deadlines.

    `admission` and `budget` are the process's, `counters` the group's. `now`: the time of this round.
    """

    def __init__(
        self,
        *,
        settings: NetSettings,
        admission: Admission,
        budget: OutboxBudget,
        counters: NetCounters,
        after_round: AfterRound,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.settings = settings
        self.admission = admission
        self.budget = budget
        self.counters = counters
        self.log = log
        self.now = 0.0
        self.time: Callable[[], float] = trio.current_time  # until `watch_deadlines` knows the clock itself
        self.in_round = False
        self.awake = False
        """A driver looks for input soon, and for what was left to be sent: nobody else needs to."""
        self.draining = False
        self.dirty: list[DrivenConnection] = []
        self.expecting: list[DrivenConnection] = []
        """They wait for the end of the round with what they have to send."""
        self.connections: set[DrivenConnection] = set()
        self.pushed: set[DrivenConnection] = set()  # those that are sent to unasked
        self._after_round = after_round
        self._deadlines: Deadlines[DrivenConnection] = Deadlines()
        self._silent: OrderedDict[DrivenConnection, tuple[float, bytes]] = OrderedDict()
        """Until when each may say nothing, and what it is told then. All have the same time, so the first of
        them is the first to be late. (A dict would look for its first behind all that have left.)"""
        self._silent_until = math.inf  # no later than that of the first
        self._timer = trio.CancelScope()
        self._lost: deque[DrivenConnection] = deque()
        self._ending: list[DrivenConnection] = []
        self._emptied = trio.lowlevel.ParkingLot()

    # For connections.

    def set_deadline(self, connection: DrivenConnection, deadline: float) -> None:
        deadlines = self._deadlines
        deadlines.set(connection, deadline)
        if deadlines.next < self._timer.deadline:
            self._timer.deadline = deadlines.next

    def await_first(self, connection: DrivenConnection, farewell: bytes) -> None:
        """`connection` has been opened, and is to say something."""
        until = connection.now + self.settings.first_request_seconds
        self._silent[connection] = until, farewell
        if self._silent_until == math.inf:
            self._silent_until = until
            self._timer.deadline = min(self._timer.deadline, until)

    def is_silent(self, connection: DrivenConnection) -> bool:
        """Whether it is to say something first, and has not."""
        return connection in self._silent

    def spoke(self, connection: DrivenConnection) -> None:
        """It has; harmless if it was not to."""
        self._silent.pop(connection, None)

    def forget(self, connection: DrivenConnection, reason: str) -> None:
        """`connection` has closed."""
        self.connections.discard(connection)
        self.pushed.discard(connection)
        self.counters.count_closed(reason)
        self._deadlines.forget(connection)
        self._silent.pop(connection, None)
        self.admission.leave(connection.host)
        self._lost.append(connection)
        if not self.in_round:
            self.request()

    # For drivers and the group.

    def request(self) -> None:
        """Something was left to do by a call from outside a round: have one soon."""
        self._timer.cancel()

    def open(self, connection: DrivenConnection, open_session: OpenSession, *, pushes: bool) -> None:
        """Make the session of an accepted connection, in a round."""
        self.connections.add(connection)
        if pushes:
            self.pushed.add(connection)
        self.counters.accepted += 1

        def open_it() -> None:
            connection._join(open_session(connection))

        self.call(connection, open_it)

    def call(self, connection: DrivenConnection, call: Callable[..., None], *args: Any) -> None:
        """One call into the session of `connection`, whose own output is flushed afterwards."""
        connection._dirty = True
        try:
            call(*args)
        except Exception as error:
            self.failed(connection, error)
        connection._dirty = False
        if not connection.closed:
            connection._flush()

    def end_input(self, connection: DrivenConnection) -> None:
        """Tell the session, once, that the peer has sent all; or that we read no more."""
        connection._stop_input()
        self.call(connection, connection._session.receive_eof)

    def end_input_soon(self, connection: DrivenConnection) -> None:
        """The same, but not from inside a call that the session made."""
        self._ending.append(connection)
        if not self.in_round:
            self.request()

    def drain(self) -> None:
        """End every connection as if its peer had shut down writing: what is owed is still answered.

        Where input is held back, by the session or by a full outbox, its end is told when that is over.
        """
        self.draining = True
        self.begin()
        self._ending += self.connections
        self.end()

    def failed(self, connection: DrivenConnection, error: Exception) -> None:
        """The peer's fault is answered; a bug of the session costs its connection, and no other."""
        if isinstance(error, RemoteProtocolError):
            self.log.info("protocol error", peer=connection.peer, error=error.text)
            connection.write(error.reply)
            connection._reason = "protocol error"
            connection.finish()
        else:
            self.counters.crashes += 1
            self.log.error("a session crashed", peer=connection.peer, exc_info=error)
            connection._close("crash")

    def begin(self) -> None:
        self.now = self.time()
        self.in_round = True

    def interrupt(self) -> None:
        """Other tasks have a turn; then the round goes on, with `begin`."""
        self.in_round = False

    def end(self, *, hold: bool = False) -> bool:
        """Deadlines, output for other connections, `after_round`, farewells. True: let other tasks run.

        `hold`: what `after_round` brings to many waits for the caller's `flush_dirty`, which must come soon.
        """
        if self._deadlines.next <= self.now:
            self._run_deadlines()
        if self._silent_until <= self.now:
            self._close_silent()
        if self._ending:
            self._end_inputs()
        if self.dirty:
            self.flush_dirty()
        yield_now = self._after_round()
        if self.expecting:
            expecting, self.expecting = self.expecting, []
            self.flush(expecting)
        hold = hold and len(self.dirty) >= HOLD_LEAST
        farewells_end = perf_counter() + FAREWELLS_SECONDS
        while (self.dirty and not hold) or self._lost or self._ending:
            self._end_inputs()
            if not hold:
                self.flush_dirty()
            if not self.say_farewell(farewells_end):
                self.request()
                break
        self.in_round = False
        return bool(yield_now)

    def _run_deadlines(self) -> None:
        """Some, where those that have come up are many: the rest follow in the next round."""
        ends = perf_counter() + DEADLINES_SECONDS
        with closing(self._deadlines.due(self.now)) as due:
            for connection in due:
                self.counters.deadlines += 1
                if connection._finishing:
                    connection._advance()
                else:
                    self.call(connection, connection._session.on_deadline, self.now)
                if perf_counter() > ends:
                    break

    def _close_silent(self) -> None:
        """Those that have said nothing in their time; where they are many, the rest in the next round."""
        for _ in range(SILENT_AT_ONCE):
            if not self._silent:
                self._silent_until = math.inf
                return
            connection, (until, farewell) = next(iter(self._silent.items()))
            if until > self.now:
                self._silent_until = until
                return
            del self._silent[connection]
            if not connection._mute:
                self.counters.deadlines += 1
                self.log.info(
                    "no whole request came in time; the connection was closed", peer=connection.peer
                )
                connection.write(farewell)
                connection._reason = "silent"
                connection.finish()

    def _end_inputs(self) -> None:
        ending, self._ending = self._ending, []
        for connection in ending:
            if connection._reading and not (connection._mute or connection._input_over):
                self.end_input(connection)

    def flush_dirty(self, but: Container[DrivenConnection | None] = ()) -> None:
        """Send what was written; `but`: these wait on, until they have been served, or for the next call."""
        dirty, self.dirty = self.dirty, []
        for connection in dirty:
            if connection in but and not connection.closed:
                self.dirty.append(connection)
                continue
            connection._dirty = False
            if not connection.closed:
                connection._flush()

    def flush(self, connections: Iterable[DrivenConnection]) -> None:
        """Send what was written to those that were kept waiting for it."""
        for connection in connections:
            connection._dirty = False
            if not connection.closed:
                connection._flush()

    def say_farewell(self, until: float = math.inf) -> bool:
        """Tell sessions whose connections are gone. False: not all, for `until` (`perf_counter`) has come."""
        while self._lost:
            connection = self._lost.popleft()
            session = connection._part()
            if session is None:  # it could not be opened
                continue
            try:
                session.connection_lost()
            except Exception as error:
                self.counters.crashes += 1
                self.log.error("a session crashed at its end", peer=connection.peer, exc_info=error)
            if self._lost and perf_counter() > until:
                return False
        if not self.connections:
            self._emptied.unpark_all()
        return True

    async def watch_deadlines(self) -> None:
        """Runs a round when a deadline comes up while nothing else happens, or when one was requested."""
        self.time = trio.lowlevel.current_clock().current_time
        while True:
            with self._timer:
                await trio.sleep_forever()
            self._timer = trio.CancelScope()
            due = min(self._deadlines.next, self._silent_until)
            if self._lost or self._ending or self.dirty or due <= self.time():
                self.begin()
                self.end()
            self._timer.deadline = min(self._timer.deadline, self._deadlines.next, self._silent_until)

    async def wait_no_connections(self) -> None:
        """Return once every connection has closed and every session been told."""
        while self.connections or self._lost:
            await self._emptied.park()

    def close_all(self, reason: str) -> None:
        """End every connection now, unsent output lost."""
        self.in_round = True
        for connection in tuple(self.connections):
            connection._close(reason)
        self.say_farewell()
        self.in_round = False

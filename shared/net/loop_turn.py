"""Turns of the loop: the synchronous stretches in which a group's sessions are called, whatever the driver.

When output is sent. A connection that has something to say is in one list, `LoopTurn.to_send`, which is sent

1. when the turn ends, before `after_round`: what sessions wrote to others than the connection being served;
2. after `after_round` (the host commits what was appended), with what that brought: at once or, where that is
   for many and the driver asks for it (`hold`), when the driver has looked who is ready.

A connection whose session said that more comes with the commit (`expect`) is left out of the first, and sent
to at once in the second: all that it gets is there by then. What a session writes to its own connection is
sent when its call returns; the poll driver puts small answers of some connections together. Outside a turn
the socket is tried at once, unless the driver looks for input next.

A session's `connection_lost` is called at the end of a turn, never from inside a call that the session made.
"""

import errno
import math
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Mapping
from contextlib import closing
from functools import partial
from itertools import count
from time import perf_counter
from typing import Any

import structlog
import trio

from shared.errors import RemoteProtocolError
from shared.net.admission import Admission
from shared.net.connection import Connection, Session
from shared.net.counters import NetCounters
from shared.net.deadlines import Deadlines
from shared.net.liveness import UNACKED
from shared.net.outbox import Backlogs, Outbox, Policy
from shared.net.settings import NetSettings
from shared.net.strangers import Strangers

OpenSession = Callable[[Connection], Session]
AfterRound = Callable[[], bool | None]
"""Called at the end of every turn; True asks the driver to let other tasks run at once."""

DEADLINES_SECONDS = 2e-3
"""Work on deadlines in one turn. Sessions that leave others a turn ask for one at once; where many do, input
would wait for all of them."""
FAREWELLS_SECONDS = 2e-3
"""The same for sessions whose connections are gone: one may have ten thousand subscriptions to take back."""
SILENT_AT_ONCE = 32
"""Connections that are closed in one turn because they said nothing: about a millisecond."""
SENDS_SECONDS = 4e-3
"""Work on sending at a time: a message for 5,000 consumers is 5,000 system calls, which took 45 ms."""
SENDS_LOOK = 32
"""So many are sent to between two looks at the clock."""
HOLD_LEAST = 4
"""Fewer connections than this are sent at once what `after_round` brought them: they have it soonest so."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing drops what the system still holds of our output, and sends a reset."""


class DrivenConnection(Connection):
    """A connection under a driver; `send`, `_advance` and `_shut` are the transport's.

    `host`: the peer's numeric address.
    """

    __slots__ = (
        "_accounted",
        "_eof",
        "_finish_left",
        "_finishing",
        "_input_over",
        "_loop",
        "_reason",
        "_session",
        "deadline",
        "expects",
        "heaped",
        "host",
        "number",
        "opened",
        "stalled_since",
    )
    _session: Session

    def __init__(self, loop: "LoopTurn", peer: str, host: str) -> None:
        super().__init__(peer, Outbox(loop.settings.outbox_bytes_max))
        self._loop = loop
        self.host = host
        self.number = loop.next_number()  # among all connections of the group, ever
        self.opened = loop.time()
        self.deadline = self.heaped = self.stalled_since = math.inf
        self.expects = False  # more comes with the commit: what is written before may go along
        self._accounted = False  # the budget knows of a backlog here
        self._eof = False  # the peer has sent all
        self._input_over = False  # the session has been told so, by the peer or for the drain
        self._finishing = False
        self._finish_left = 0  # what was unsent when the time for finishing was last looked at
        self._reason = "finished"

    @property
    def now(self) -> float:
        loop = self._loop
        return loop.now if loop.in_turn else loop.time()

    def in_its_turn(self, callback: Callable[..., None]) -> Callable[..., None]:
        return lambda *arguments: self._loop.soon(partial(self.attempt, callback, *arguments))

    def set_stranger(self, stranger: bool) -> None:
        if stranger != self.stranger and not self.closed:
            self.stranger = stranger
            strangers = self._loop.strangers
            (strangers.came if stranger else strangers.left)(self.host)

    def wake_at(self, deadline: float) -> None:
        if not self._mute:
            self._loop.set_deadline(self, deadline)

    def await_first(self, farewell: bytes = b"", seconds_max: float = math.inf) -> None:
        self._loop.await_first(self, farewell, seconds_max)

    def spoke(self) -> None:
        self._loop.spoke(self)

    def resume_reading(self) -> None:
        super().resume_reading()
        self._reads_again()

    def finish(self) -> None:
        if self._mute:
            return
        self._mute = self._finishing = True
        self._paused = False
        self._loop.set_deadline(self, math.inf)
        self._advance()

    def abort(self, reason: str, *, reset: bool = False) -> None:
        if not self.closed:
            self._loop.log.info(
                "connection aborted: what it was not sent is lost", peer=self.peer, reason=reason
            )
            self.close(reason, reset=reset)

    def fail(self, error: Exception) -> None:
        """The peer's fault is answered; a bug of the session costs its connection, and no other."""
        if isinstance(error, RemoteProtocolError):
            self._reply_to_wire_error(error)
            return
        self._loop.counters.crashes += 1
        self._loop.log.error(
            "a session crashed: its connection is closed, all others are served; report this bug",
            peer=self.peer,
            exc_info=error,
        )
        self.close("crash")

    def _reply_to_wire_error(self, error: RemoteProtocolError) -> None:
        """`SessionBase.on_wire_error` was told before: what the session writes there goes first."""
        self._loop.log.info(
            "protocol error: the connection is closed; mend the client", peer=self.peer, error=error.text
        )
        self.write(error.reply)
        self._reason = "protocol error"
        self.finish()

    # What lists show of it.

    @property
    def user(self) -> str:
        """Who has logged in."""
        user: str = getattr(getattr(self, "_session", None), "user", "")
        return user

    @property
    def stage(self) -> str:
        """open, paused (its input is held back) or finishing."""
        return "finishing" if self._finishing else "open" if self._reading else "paused"

    @property
    def waits_for(self) -> list[str]:
        """Why its input is held back, in words."""
        words: list[str] = getattr(getattr(self, "_session", None), "waits_for", [])
        return words

    @property
    def traffic(self) -> Mapping[str, Any]:
        """`messages_in`, `messages_out` and `held`, those of them that its protocol knows."""
        known: Mapping[str, Any] = getattr(getattr(self, "_session", None), "traffic", {})
        return known

    @property
    def is_encrypted(self) -> bool:
        return False

    def kick(self, reason: str) -> None:
        """Somebody who may has it closed; its protocol says so where it has words for that."""
        getattr(getattr(self, "_session", None), "kick", self.abort)(reason)

    def tcp_info(self, size: int = UNACKED.size) -> bytes | None:
        """For `liveness`; None where the transport is not TCP."""
        raise NotImplementedError

    def _touch(self) -> None:
        loop = self._loop
        if not (loop.in_turn or loop.awake):
            self.send()
            return
        self._dirty = True
        loop.to_send.append(self)
        if self.outbox.size > self.outbox.bound:
            self._outbox_over_bound()

    def _outbox_over_bound(self) -> None:
        if self.outbox.policy is Policy.WAIT:
            self._above = True  # it is flushed when the session returns, which by now should be soon
        else:
            self.send()  # before anybody pays, the peer gets what it can take

    def _drop(self, size: int) -> int:
        chunks = self.outbox.dropped_chunks
        dropped = super()._drop(size)
        counters = self._loop.counters
        counters.dropped_bytes += dropped
        counters.dropped_chunks += self.outbox.dropped_chunks - chunks
        return dropped

    def hold(self, size: int) -> None:
        if self.closed:
            return
        before = self.held_bytes
        super().hold(size)
        if self.held_bytes != before:
            self._account()

    def _account(self) -> None:
        """Tell the process's budget what waits here; it may make this or another connection pay."""
        size = self.held_bytes
        if self.outbox.size:
            self.outbox.pack()
            size += self.outbox.memory_bytes
        self._accounted = size > 0
        self._loop.backlogs.hold(self, size)

    def _broken(self, error: OSError) -> None:
        """The transport says that the peer is gone."""
        self.close("timed out" if error.errno == errno.ETIMEDOUT else "reset")

    def close(self, reason: str, *, reset: bool = False) -> None:
        """Let go of everything but the session, which hears of it at the end of the round."""
        if self.closed:
            return
        self.closed = self._mute = True
        backlog = self.outbox.size > 0
        self._loop.forget(self, reason)
        self.outbox.clear()
        self.held_bytes = 0
        if self._accounted:
            self._account()
        self._shut(reset=reset or backlog)

    # What the turn of the loop calls.

    def send(self) -> None:
        """Send what the transport takes now, account for the rest, apply the policy to it.

        It waits for nobody else to send it any more (`_dirty`, `expects`). Harmless on a closed connection.
        """
        raise NotImplementedError

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """One call into the session, whose own output is sent afterwards."""
        self._dirty = True
        try:
            call(*arguments)
        except Exception as error:
            self.fail(error)
        self.send()

    def open(self, open_session: OpenSession) -> None:
        """Have the session made."""
        self.call(lambda: self._join(open_session(self)))

    def end_input(self) -> None:
        """Tell the session, once, that the peer has sent all, or that we read no more. While input is held
        back it is not told: that comes again when it is not.
        """
        if self._reading and not (self._mute or self._input_over):
            self._stop_input()
            self.call(self._session.receive_eof)

    def deadline_came(self, now: float) -> None:
        if self.closed:  # by the time that a stranger had its turn
            return
        if self._finishing:
            self._advance()
        else:
            self.call(self._session.on_deadline, now)

    def close_silent(self, farewell: bytes, *, stranger: bool = False) -> None:
        """It has said nothing in its time. `stranger`: unless it has logged in meanwhile."""
        if not self._mute and stranger == self.stranger:
            self._loop.counters.deadlines += 1
            self._loop.log.info(
                "no whole request in net.first_request_seconds: the connection is closed", peer=self.peer
            )
            self.write(farewell)
            self._reason = "silent"
            self.finish()

    def tell_lost(self) -> None:
        """The session hears that its connection is gone, and is let go, and so is the cycle of references."""
        self.on_drained = None
        session = self._part()
        if session is not None:  # else it could not be made
            try:
                session.connection_lost()
            except Exception as error:
                self._loop.counters.crashes += 1
                self._loop.log.error(
                    "a session crashed at its end: it may still hold what was its; report this bug",
                    peer=self.peer,
                    exc_info=error,
                )

    # Within.

    def _join(self, session: Session) -> None:
        self._session = session

    def _part(self) -> Session | None:
        session = getattr(self, "_session", None)
        if session is not None:
            del self._session
        return session

    def _reads_again(self) -> None:
        """Neither the session nor a full outbox holds input back any more; in a drain there is none."""
        if self._loop.draining and not self._input_over:
            self._loop.end_input_soon(self)

    def _stop_input(self) -> None:
        """Nothing more is delivered: the peer has sent all, or the server drains."""
        self._input_over = True

    def _has_time_to_flush(self) -> bool:
        """Finishing, with output left: while the peer takes some of it, it has time for the next step."""
        if self.outbox.size == self._finish_left and self.deadline == math.inf:
            return False  # the deadline has come, and nothing has moved
        if self.outbox.size != self._finish_left:
            self._finish_left = self.outbox.size
            self._loop.set_deadline(self, self.now + self._loop.settings.flush_seconds)
        return True

    def _advance(self) -> None:
        """Go on with finishing."""
        raise NotImplementedError

    def _shut(self, *, reset: bool) -> None:
        """Close the transport; `reset`: what the system still holds of our output is thrown away too."""
        raise NotImplementedError


class LoopTurn:
    """The connections of one group of listeners, the calls into their sessions, and their deadlines.

    `admission`, `backlogs` and `strangers` are the process's, `counters` the group's. `now`: the time of this
    turn. `asks_login`: whether who comes has to log in first.
    """

    def __init__(
        self,
        *,
        settings: NetSettings,
        admission: Admission,
        backlogs: Backlogs,
        counters: NetCounters,
        after_round: AfterRound,
        log: structlog.stdlib.BoundLogger,
        strangers: Strangers | None = None,
        asks_login: Callable[[], bool] = lambda: False,
    ) -> None:
        self.settings = settings
        self.admission = admission
        self.strangers = strangers or Strangers()
        self.asks_login = asks_login
        self.backlogs = backlogs
        self.counters = counters
        self.log = log
        self.now = 0.0
        self.time: Callable[[], float] = trio.current_time  # until `watch_deadlines` knows the clock itself
        self.in_turn = False
        self.awake = False
        """A driver looks for input soon, and for what was left to be sent: nobody else needs to."""
        self.draining = False
        self.next_number = count(1).__next__
        self.to_send: list[DrivenConnection] = []
        """Those that have something to say (above)."""
        self.connections: set[DrivenConnection] = set()
        self.pushed: set[DrivenConnection] = set()  # those that are sent to unasked
        self._after_round = after_round
        self._deadlines: Deadlines[DrivenConnection] = Deadlines()
        self._silent: OrderedDict[DrivenConnection, tuple[float, bytes]] = OrderedDict()
        """Until when each may say nothing, and what it is told then. All of a protocol have the same time,
        so the first of them is the first to be late. Where users change that time, those that came before may
        get the longer one. (A dict would look for its first behind all that have left.)"""
        self._silent_until = math.inf  # no later than that of the first
        self._timer = trio.CancelScope()
        self._lost: deque[DrivenConnection] = deque()
        self._ending: deque[DrivenConnection] = deque()
        self._emptied = trio.lowlevel.ParkingLot()
        self._soon: deque[Callable[[], None]] = deque()
        self._more_soon = trio.lowlevel.ParkingLot()

    # For connections.

    def set_deadline(self, connection: DrivenConnection, deadline: float) -> None:
        deadlines = self._deadlines
        deadlines.set(connection, deadline)
        if deadlines.next < self._timer.deadline:
            self._timer.deadline = deadlines.next

    def await_first(self, connection: DrivenConnection, farewell: bytes, seconds_max: float) -> None:
        """`connection` has been opened, and is to say something."""
        until = connection.now + min(self.settings.first_request_seconds, seconds_max)
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
        self.counters.closed[reason] += 1
        self._deadlines.forget(connection)
        self._silent.pop(connection, None)
        if connection.stranger:
            self.strangers.left(connection.host)
            self.strangers.gave_up()
        self.admission.leave(connection.host)
        self._lost.append(connection)
        if not self.in_turn:
            self.request()

    # For drivers and the group.

    def request(self) -> None:
        """Something was left to do by a call from outside a turn: have one soon."""
        self._timer.cancel()

    def open(self, connection: DrivenConnection, open_session: OpenSession, *, pushes: bool) -> None:
        """Make the session of an accepted connection, in a turn."""
        self.connections.add(connection)
        if pushes:
            self.pushed.add(connection)
        self.counters.accepted += 1
        connection.open(open_session)

    def soon(self, call: Callable[[], None]) -> None:
        """Have something done in a turn when strangers have theirs. It must not raise."""
        self._soon.append(call)
        self._more_soon.unpark()

    def end_input_soon(self, connection: DrivenConnection) -> None:
        """The same, but not from inside a call that the session made."""
        self._ending.append(connection)
        if not self.in_turn:
            self.request()

    def drain(self) -> None:
        """End every connection as if its peer had shut down writing: what is owed is still answered.

        Where input is held back, by the session or by a full outbox, its end is told when that is over.
        """
        self.draining = True
        self.begin()
        self._ending += self.connections
        self.end()

    def begin(self) -> None:
        self.now = self.time()
        self.in_turn = True

    def interrupt(self) -> None:
        """Other tasks run; then this turn goes on, with `begin`."""
        self.in_turn = False

    def end(self, *, hold: bool = False) -> bool:
        """Deadlines, output for other connections, `after_round`, farewells. True: let other tasks run.

        `hold`: what `after_round` brings to many waits for the caller's `send`, which must come soon.
        """
        if self._deadlines.next <= self.now:
            self._run_deadlines()
        if self._silent_until <= self.now:
            self._close_silent()
        behind = bool(self._ending) and not self._end_inputs()
        expecting = self._send_others() if self.to_send else ()
        yield_now = self._after_round()
        if expecting:
            self.to_send[:0] = self._send_some(expecting)
        hold = hold and len(self.to_send) >= HOLD_LEAST
        farewells_end = perf_counter() + FAREWELLS_SECONDS
        while not behind and ((self.to_send and not hold) or self._lost or self._ending):
            behind = bool(self._ending) and not self._end_inputs()
            if not hold and not self.send():
                behind = True
            if self._lost and not self.say_farewell(farewells_end):
                behind = True
        if behind:
            self.request()
        self.in_turn = False
        return bool(yield_now) or behind

    def _run_deadlines(self) -> None:
        """Some, where those that have come up are many: the rest follow in the next turn."""
        ends = perf_counter() + DEADLINES_SECONDS
        with closing(self._deadlines.due(self.now)) as due:
            for connection in due:
                self.counters.deadlines += 1
                if connection.stranger:
                    self.soon(partial(connection.deadline_came, self.now))
                else:
                    connection.deadline_came(self.now)
                if perf_counter() > ends:
                    break

    def _close_silent(self) -> None:
        """Those that have said nothing in their time; where they are many, the rest in the next turn."""
        for _ in range(SILENT_AT_ONCE):
            if not self._silent:
                self._silent_until = math.inf
                return
            connection, (until, farewell) = next(iter(self._silent.items()))
            if until > self.now:
                self._silent_until = until
                return
            del self._silent[connection]
            if connection.stranger:
                self.soon(partial(connection.close_silent, farewell, stranger=True))
            else:
                connection.close_silent(farewell)

    def _end_inputs(self) -> bool:
        """Those that are to be ended. False: not all, for `SENDS_SECONDS` are over."""
        ends = perf_counter() + SENDS_SECONDS
        while self._ending:
            self._ending.popleft().end_input()
            if self._ending and perf_counter() > ends:
                return False
        return True

    def send(self, but: Container[DrivenConnection | None] = ()) -> bool:
        """Send what was written. `but`: these are to be served soon, and wait until then.

        False: sending would take long, and the rest stays in `to_send`.
        """
        to_send, self.to_send = self.to_send, []
        if but:
            self.to_send = [each for each in to_send if each in but and not each.closed]
            to_send = [each for each in to_send if each not in but]
        left = self._send_some(to_send)
        if left:
            self.to_send[:0] = left
        return not left

    def _send_others(self) -> list[DrivenConnection]:
        """Send what was written to those that expect no more; returns the others, for the caller to send."""
        to_send, self.to_send = self.to_send, []
        expecting = [each for each in to_send if each.expects]
        if expecting:
            to_send = [each for each in to_send if not each.expects]
        self.to_send[:0] = self._send_some(to_send)
        return expecting

    def _send_some(self, connections: list[DrivenConnection]) -> list[DrivenConnection]:
        """Send to these for `SENDS_SECONDS`; returns those that are left."""
        if len(connections) <= SENDS_LOOK:
            for connection in connections:
                connection.send()
            return []
        ends = perf_counter() + SENDS_SECONDS
        for at in range(0, len(connections), SENDS_LOOK):
            if at and perf_counter() > ends:
                return connections[at:]
            for connection in connections[at : at + SENDS_LOOK]:
                connection.send()
        return []

    def say_farewell(self, until: float = math.inf) -> bool:
        """Tell sessions whose connections are gone. False: not all, for `until` (`perf_counter`) has come."""
        while self._lost:
            connection = self._lost.popleft()
            connection.tell_lost()
            if self._lost and perf_counter() > until:
                return False
        if not self.connections:
            self._emptied.unpark_all()
        return True

    async def watch_deadlines(self) -> None:
        """Runs a turn when a deadline comes up while nothing else happens, or when one was requested."""
        self.time = trio.lowlevel.current_clock().current_time
        while True:
            with self._timer:
                await trio.sleep_forever()
            self._timer = trio.CancelScope()
            due = min(self._deadlines.next, self._silent_until)
            if self._lost or self._ending or self.to_send or due <= self.time():
                self.begin()
                self.end()
            self._timer.deadline = min(self._timer.deadline, self._deadlines.next, self._silent_until)

    async def serve_strangers(self) -> None:
        """Do what was asked for `soon`, in the pace of strangers, until cancelled."""
        while True:
            if not self._soon:
                await self._more_soon.park()
            async with self.strangers:
                self.begin()
                while self._soon:
                    self._soon.popleft()()
                    if self.strangers.is_over():
                        break
                self.end()

    async def wait_no_connections(self) -> None:
        """Return once every connection has closed and every session been told."""
        while self.connections or self._lost:
            await self._emptied.park()

    def close_all(self, reason: str) -> None:
        """End every connection now, unsent output lost."""
        self.in_turn = True
        for connection in tuple(self.connections):
            connection.close(reason)
        self.say_farewell()
        self.in_turn = False

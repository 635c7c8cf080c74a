"""Turns of the loop: the synchronous stretches in which a group's sessions are called.

When output is sent:

- To the connection being served: when the call into its session returns. The driver sends small answers
  of several connections together.
- To other connections: at the end of the turn, before `after_turn`. They wait in `LoopTurn.to_send`.
- What `after_turn` brings (the host commits there, and tickets resolve): right after it. If that is for many
  connections and the driver asks for it (`hold`), the driver first looks who has sent more.
- Outside a turn: at once, unless the driver is about to look for input.

A session's `connection_lost` is called at the end of a turn, never from inside a call that the session made.
"""

import errno
import math
import struct
from collections import deque
from collections.abc import Callable, Container, Mapping
from functools import partial
from itertools import count
from typing import Any

import attrs
import structlog
import trio

from shared.errors import RemoteProtocolError
from shared.net.admission import Admission
from shared.net.connection import Connection, Session
from shared.net.counters import NetCounters
from shared.net.deadlines import Deadlines
from shared.net.liveness import WAITING
from shared.net.outbox import Backlogs, Outbox, Policy
from shared.net.session import SessionBase
from shared.net.settings import NetSettings
from shared.net.strangers import Strangers
from shared.turns import Turn

OpenSession = Callable[[Connection], Session]
AfterTurn = Callable[[], None]
"""Called at the end of every turn."""

MUCH_BYTES = 64 * 1024
"""After one connection with so much to send the clock is looked at."""
HOLD_LEAST = 4
"""Fewer connections than this are sent to right after `after_turn`: holding back would only delay them."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of 0: closing drops unsent output in the kernel and sends a reset."""


class DrivenConnection(Connection):
    """A connection under a driver, which supplies the transport: `send`, `_advance` and `_shut`.

    `host`: the peer's numeric address. `number`: unique within the group. `opened`: seconds, trio's clock.
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
        "host",
        "number",
        "opened",
        "scheduled",
        "stalled_since",
    )
    _session: Session

    def __init__(self, loop: "LoopTurn", peer: str, host: str) -> None:
        super().__init__(peer, Outbox(loop.settings.outbox_bytes_max))
        self._loop = loop
        self.host = host
        self.number = loop.next_number()
        self.opened = loop.time()
        self.deadline = self.scheduled = self.stalled_since = math.inf
        self._accounted = False  # part of the process's backlogs
        self._eof = False  # the peer has sent all
        self._input_over = False  # the session knows that no more input comes: end of input, or drain
        self._finishing = False
        self._finish_left = 0  # bytes unsent when the flush deadline was last set
        self._reason = "finished"

    @property
    def now(self) -> float:
        loop = self._loop
        return loop.now if loop.in_turn else loop.time()

    def hand_over(self, session: Session) -> None:
        self._session = session

    def in_its_turn(self, callback: Callable[..., None]) -> Callable[..., None]:
        return lambda *arguments: self._loop.soon(partial(self.attempt, callback, *arguments))

    def set_stranger(self, stranger: bool) -> None:
        if stranger != self.stranger and not self.closed:
            self.stranger = stranger
            strangers = self._loop.strangers
            (strangers.add if stranger else strangers.remove)(self.host)

    def wake_at(self, deadline: float) -> None:
        if not self.mute:
            self._loop.set_deadline(self, deadline)

    @property
    def first_request_seconds(self) -> float:
        return self._loop.settings.first_request_seconds

    def await_first_request(self, farewell: bytes = b"", seconds_max: float = math.inf) -> None:
        self._loop.await_first_request(self, farewell, seconds_max)

    def first_request_done(self) -> None:
        self._loop.first_request_done(self)

    def resume_reading(self) -> None:
        super().resume_reading()
        self._reads_again()

    def finish(self) -> None:
        if self.mute:
            return
        self.mute = self._finishing = True
        self._paused = False
        self._loop.set_deadline(self, math.inf)
        self._advance()

    def abort(self, reason: str, *, reset: bool = False) -> None:
        if not self.closed:
            self._loop.log.info(
                "connection aborted: output that was not sent yet is lost; `reason` says what it did",
                peer=self.peer,
                reason=reason,
            )
            self.close(reason, reset=reset)

    def fail(self, error: Exception) -> None:
        """Reply to a protocol error and finish; any other exception is our bug and closes the connection."""
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
        """`SessionBase.on_wire_error` has run: what the session wrote there is sent before the reply."""
        self._loop.log.info(
            "protocol error: the connection is closed; fix the client", peer=self.peer, error=error.text
        )
        self.write(error.reply)
        self._reason = "protocol error"
        self.finish()

    # What lists of connections show.

    @property
    def user(self) -> str:
        """Who has logged in; "" while nobody has."""
        base = self._base()
        return base.user if base else ""

    @property
    def stage(self) -> str:
        """`open`, `paused` (input is held back) or `finishing`."""
        return "finishing" if self._finishing else "open" if self._reading else "paused"

    @property
    def waits_for(self) -> list[str]:
        """Why its input is held back, in words."""
        base = self._base()
        return base.waits_for if base else []

    @property
    def traffic(self) -> Mapping[str, Any]:
        """`messages_in`, `messages_out`, `held` and `client`: those that the protocol knows."""
        base = self._base()
        return base.traffic if base else {}

    @property
    def is_encrypted(self) -> bool:
        return False

    def kick(self, reason: str) -> None:
        """Close at an administrator's request; the session may tell its peer first."""
        base = self._base()
        (base.kick if base else self.abort)(reason)

    def tcp_info(self, size: int = WAITING.size) -> bytes | None:
        """The socket's TCP_INFO, for `liveness`; None where the transport is not TCP."""
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
            self._above = True  # the driver flushes when the session returns, which should be soon
        elif len(self.outbox.chunks or ()) > 1:
            self.send()  # send what the peer takes before dropping or disconnecting
        # One message always fits, however large: it is sent with those to others, which looks at the clock.

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
        """Report this backlog to the process's budget. That may shed this or another connection's backlog."""
        size = self.held_bytes
        if self.outbox.size:
            self.outbox.pack()
            size += self.outbox.memory_bytes
        self._accounted = size > 0
        self._loop.backlogs.hold(self, size)

    def _broken(self, error: OSError) -> None:
        """The transport says that the peer is gone: close."""
        self.close("timed out" if error.errno == errno.ETIMEDOUT else "reset")

    def close(self, reason: str, *, reset: bool = False) -> None:
        """Release everything but the session, which is told at the end of the turn."""
        if self.closed:
            return
        self.closed = self.mute = True
        backlog = self.outbox.size > 0
        self._loop.forget(self, reason)
        self.outbox.clear()
        self.held_bytes = 0
        if self._accounted:
            self._account()
        self._shut(reset=reset or backlog)

    # What the driver and `LoopTurn` call.

    def send(self) -> None:
        """Send what the transport takes now, account for the rest, apply the policy to it.

        Clears `_dirty`. Harmless on a closed connection.
        """
        raise NotImplementedError

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call into the session, then send what it wrote to this connection."""
        self._dirty = True
        try:
            call(*arguments)
        except Exception as error:
            self.fail(error)
        self.send()

    def end_input(self) -> None:
        """Tell the session, once, that no more input comes. While input is held back this does nothing:
        `_reads_again` asks for it again.
        """
        if self._reading and not (self.mute or self._input_over):
            self._stop_input()
            self.call(self._session.receive_eof)

    def hang_up(self) -> None:
        """The peer has ended, and input is left to read or held back: it takes no more deliveries."""
        base = self._base()
        if base is not None and not (self.mute or self._input_over):
            self.call(base.hang_up)

    def drain(self) -> None:
        """The server stops: the session ends its waits, and reads no more."""
        if not self.mute:
            self.call(self._session.drain)
        self.end_input()

    def on_deadline(self, now: float) -> None:
        if self.closed:  # a stranger's deadline may run long after it was due
            return
        if self._finishing:
            self._advance()
        else:
            self.call(self._session.on_deadline, now)

    def close_silent(self, farewell: bytes, *, stranger: bool) -> None:
        """No complete request came in time. `stranger`: close only if it has not logged in meanwhile."""
        if not self.mute and stranger == self.stranger:
            self._loop.counters.deadlines += 1
            self._loop.log.info(
                "a client sent no complete request in its time: the connection is closed; where clients need "
                "longer, raise net.first_request_seconds",
                peer=self.peer,
            )
            self.write(farewell)
            self._reason = "silent"
            self.finish()

    def release_session(self) -> None:
        """Tell the session that its connection is gone, and drop it, which breaks the reference cycle."""
        self.on_drained = None
        session = getattr(self, "_session", None)
        if session is not None:  # None: `open_session` failed
            del self._session
            try:
                session.connection_lost()
            except Exception as error:
                self._loop.counters.crashes += 1
                self._loop.log.error(
                    "a session crashed while it was released: it may still hold messages; report this bug",
                    peer=self.peer,
                    exc_info=error,
                )

    # Helpers.

    def _base(self) -> SessionBase | None:
        """The session, if it has what lists show, which `Session` does not ask for."""
        session = getattr(self, "_session", None)
        return session if isinstance(session, SessionBase) else None

    def _reads_again(self) -> None:
        """Input is read again. In a drain there is none: the end of input is told instead."""
        if self._loop.draining and not self._input_over:
            self._loop.end_input_soon(self)

    def _stop_input(self) -> None:
        """Deliver no more input: the peer has sent everything, or the server drains."""
        self._input_over = True

    def _has_time_to_flush(self) -> bool:
        """Whether finishing may go on: the peer has taken some output since the deadline was last set."""
        if self.outbox.size == self._finish_left and self.deadline == math.inf:
            return False  # the deadline has passed and nothing has moved
        if self.outbox.size != self._finish_left:
            self._finish_left = self.outbox.size
            self._loop.set_deadline(self, self.now + self._loop.settings.flush_seconds)
        return True

    def _advance(self) -> None:
        """Take the next step of finishing: flush, shut down writing, discard input, close."""
        raise NotImplementedError

    def _shut(self, *, reset: bool) -> None:
        """Close the transport; `reset`: drop what the kernel still holds of our output."""
        raise NotImplementedError


@attrs.define(eq=False)
class _FirstRequest:
    """What a connection still owes, and what it is told where that does not come in time."""

    connection: DrivenConnection
    farewell: bytes
    deadline: float = math.inf
    scheduled: float = math.inf


class LoopTurn:
    """The connections of one group of listeners, the calls into their sessions, and their deadlines.

    `admission`, `backlogs` and `strangers` are the process's, `counters` the group's. `now`: when this turn
    began. `asks_login`: whether new connections have to log in first.
    """

    def __init__(
        self,
        *,
        settings: NetSettings,
        admission: Admission,
        backlogs: Backlogs,
        counters: NetCounters,
        after_turn: AfterTurn,
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
        self.time: Callable[[], float] = trio.current_time  # `watch_deadlines` replaces it by a faster one
        self.in_turn = False
        self.awake = False
        """The driver looks for input soon and sends then: output from outside a turn may wait for it."""
        self.draining = False
        self.next_number = count(1).__next__
        self.to_send: list[DrivenConnection] = []
        """Connections with output; see the top of this file."""
        self.connections: set[DrivenConnection] = set()
        self.pushed: set[DrivenConnection] = set()  # connections that get messages without requests
        self._after_turn = after_turn
        self._deadlines: Deadlines[DrivenConnection | _FirstRequest] = Deadlines()
        self._silent: dict[DrivenConnection, _FirstRequest] = {}
        self._timer = trio.CancelScope()
        self._lost: deque[DrivenConnection] = deque()
        self._ending: deque[Callable[[], None]] = deque()
        self._emptied = trio.lowlevel.ParkingLot()
        self._soon: deque[Callable[[], None]] = deque()
        self._more_soon = trio.lowlevel.ParkingLot()

    # For connections.

    def set_deadline(self, item: "DrivenConnection | _FirstRequest", deadline: float) -> None:
        deadlines = self._deadlines
        deadlines.set(item, deadline)
        if deadlines.next < self._timer.deadline:
            self._timer.deadline = deadlines.next

    def await_first_request(self, connection: DrivenConnection, farewell: bytes, seconds_max: float) -> None:
        """`connection` is open and must send a complete request in time."""
        self.first_request_done(connection)
        request = self._silent[connection] = _FirstRequest(connection, farewell)
        self.set_deadline(request, connection.now + min(self.settings.first_request_seconds, seconds_max))

    def is_silent(self, connection: DrivenConnection) -> bool:
        """Whether the first request is still missing."""
        return connection in self._silent

    def first_request_done(self, connection: DrivenConnection) -> None:
        """The first request is complete. Harmless if none was awaited."""
        if (request := self._silent.pop(connection, None)) is not None:
            self._deadlines.forget(request)

    def forget(self, connection: DrivenConnection, reason: str) -> None:
        """`connection` has closed."""
        self.connections.discard(connection)
        self.pushed.discard(connection)
        self.counters.closed[reason] += 1
        self._deadlines.forget(connection)
        self.first_request_done(connection)
        if connection.stranger:
            self.strangers.remove(connection.host)
            self.strangers.count_failure()
        self.admission.leave(connection.host, encrypted=connection.is_encrypted)
        self._lost.append(connection)
        if not self.in_turn:
            self.request()

    # For the driver and the group.

    def request(self) -> None:
        """Have a turn soon: a call from outside a turn has left work."""
        self._timer.cancel()

    def open(self, connection: DrivenConnection, open_session: OpenSession, *, pushes: bool) -> None:
        """Make the session of an accepted connection, in a turn."""
        self.connections.add(connection)
        if pushes:
            self.pushed.add(connection)
        self.counters.accepted += 1
        connection.call(lambda: connection.hand_over(open_session(connection)))
        if self.draining:  # it was accepted before, and its handshake took until now
            self._ending.append(connection.drain)

    def soon(self, call: Callable[[], None]) -> None:
        """Have `call` run in a turn when strangers are served. It must not raise."""
        self._soon.append(call)
        self._more_soon.unpark()

    def end_input_soon(self, connection: DrivenConnection) -> None:
        """Tell the connection's session at the end of a turn that no more input comes."""
        self._ending.append(connection.end_input)
        if not self.in_turn:
            self.request()

    def drain(self) -> None:
        """Have every session `drain`, then end its input; pending answers are still sent.

        A connection whose input is held back is told when it would be read again. Many take several turns.
        """
        self.draining = True
        self.begin()
        self._ending += [connection.drain for connection in self.connections]
        self.end()

    def begin(self) -> None:
        self.now = self.time()
        self.in_turn = True

    def interrupt(self) -> None:
        """Let other tasks run; `begin` then continues this turn."""
        self.in_turn = False

    def end(self, *, hold: bool = False) -> bool:
        """Run deadlines, send to other connections, call `after_turn`, tell lost sessions.

        `hold`: what `after_turn` brings to many waits for the caller's `send`, which must come soon.
        True: let other tasks run.
        """
        if self._deadlines.next <= self.now:
            self._run_deadlines()
        behind = bool(self._ending) and not self._end_inputs()
        if self.to_send:
            self.send()
        self._after_turn()
        hold = hold and len(self.to_send) >= HOLD_LEAST
        turn: Turn | None = None
        while not behind and ((self.to_send and not hold) or self._lost or self._ending):
            behind = bool(self._ending) and not self._end_inputs()
            if not hold and not self.send():
                behind = True
            if self._lost:
                turn = turn or Turn()
                if not self.release_lost(turn):
                    behind = True
        if behind:
            self.request()
        self.in_turn = False
        return behind

    def _run_deadlines(self) -> None:
        """Run deadlines that have passed; what does not fit a turn follows in the next."""
        for item in self._deadlines.due(self.now):
            if isinstance(item, _FirstRequest):
                connection = item.connection
                del self._silent[connection]
                late = partial(connection.close_silent, item.farewell, stranger=connection.stranger)
            else:
                self.counters.deadlines += 1
                connection, late = item, partial(item.on_deadline, self.now)
            if connection.stranger:
                self.soon(late)
            else:
                late()

    def _end_inputs(self) -> bool:
        """Drain sessions and end inputs until a turn is over. False: some are left."""
        turn = Turn()
        while self._ending:
            self._ending.popleft()()
            if self._ending and turn.over_now():
                return False
        return True

    def send(self, but: Container[DrivenConnection | None] = ()) -> bool:
        """Send what was written. `but`: connections that are about to be served, whose output waits for that.

        False: time ran out, and the rest stays in `to_send`.
        """
        to_send, self.to_send = self.to_send, []
        if but:
            self.to_send = [each for each in to_send if each in but and not each.closed]
            to_send = [each for each in to_send if each not in but]
        turn = Turn() if len(to_send) > 1 else None  # to one connection, as mostly, it is not asked
        for done, connection in enumerate(to_send, start=1):
            much = connection.outbox.size > MUCH_BYTES
            connection.send()
            if turn is not None and (turn.over_now() if much else turn.over()) and done < len(to_send):
                self.to_send[:0] = to_send[done:]
                return False
        return True

    def release_lost(self, turn: Turn | None = None) -> bool:
        """Tell sessions whose connections are gone. False: the turn is over, and some were left."""
        while self._lost:
            connection = self._lost.popleft()
            connection.release_session()
            if self._lost and turn is not None and turn.over_now():
                return False
        if not self.connections:
            self._emptied.unpark_all()
        return True

    async def watch_deadlines(self) -> None:
        """Run a turn when a deadline passes while nothing else happens, or when one was requested."""
        self.time = trio.lowlevel.current_clock().current_time
        while True:
            with self._timer:
                await trio.sleep_forever()
            self._timer = trio.CancelScope()
            if self._lost or self._ending or self.to_send or self._deadlines.next <= self.time():
                self.begin()
                self.end()
            self._timer.deadline = min(self._timer.deadline, self._deadlines.next)

    async def serve_strangers(self) -> None:
        """Run what `soon` was given, in the pace of strangers, until cancelled."""
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
        """Close every connection now; unsent output is lost."""
        self.in_turn = True
        for connection in tuple(self.connections):
            connection.close(reason)
        self.release_lost()
        self.in_turn = False

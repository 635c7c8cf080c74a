"""What both drivers' connections have in common: where their output goes, how they finish, how they end."""

import errno
import math
import struct
from typing import TYPE_CHECKING

from shared.net.connection import Connection, Session
from shared.net.outbox import Outbox, Policy

if TYPE_CHECKING:
    from shared.net.rounds import Rounds

RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER: closing drops what the system still holds of our output, and sends a reset."""


class DrivenConnection(Connection):
    """A connection under a driver; `_flush`, `_advance` and `_shut` are the transport's.

    `host`: the peer's numeric address, "" for a local socket.
    """

    __slots__ = (
        "_accounted",
        "_corked",
        "_eof",
        "_finish_left",
        "_finishing",
        "_input_over",
        "_reason",
        "_rounds",
        "_session",
        "deadline",
        "heaped",
        "host",
        "stalled_since",
    )
    _session: Session

    def __init__(self, rounds: "Rounds", peer: str, host: str) -> None:
        super().__init__(peer, Outbox(rounds.settings.outbox_bytes_max))
        self._rounds = rounds
        self.host = host
        self.deadline = self.heaped = self.stalled_since = math.inf
        self._accounted = False  # the budget knows of a backlog here
        self._eof = False  # the peer has sent all
        self._input_over = False  # the session has been told so, by the peer or for the drain
        self._finishing = False
        self._corked = False
        self._finish_left = 0  # what was unsent when the time for finishing was last looked at
        self._reason = "finished"

    @property
    def now(self) -> float:
        rounds = self._rounds
        return rounds.now if rounds.in_round else rounds.time()

    def wake_at(self, deadline: float) -> None:
        if not self._mute:
            self._rounds.set_deadline(self, deadline)

    def await_first(self, farewell: bytes = b"") -> None:
        self._rounds.await_first(self, farewell)

    def spoke(self) -> None:
        self._rounds.spoke(self)

    def cork(self) -> None:
        if not self._dirty and not self._mute:
            self._dirty = self._corked = True

    def uncork(self) -> None:
        if self._corked:
            self._dirty = self._corked = False
            if self.outbox.chunks and not self.closed:
                self._touch()

    def resume_reading(self) -> None:
        super().resume_reading()
        self._reads_again()

    def finish(self) -> None:
        if self._mute:
            return
        self._mute = self._finishing = True
        self._paused = False
        self._rounds.set_deadline(self, math.inf)
        self._advance()

    def abort(self, reason: str) -> None:
        if not self.closed:
            self._rounds.log.info("connection aborted", peer=self.peer, reason=reason)
            self._close(reason)

    def crashed(self, error: Exception) -> None:
        self._rounds.failed(self, error)

    def tcp_info(self) -> bytes | None:
        """For `liveness`; None where the transport is not TCP."""
        raise NotImplementedError

    def _touch(self) -> None:
        rounds = self._rounds
        if not (rounds.in_round or rounds.awake):
            self._flush()
            return
        self._dirty = True
        rounds.dirty.append(self)
        if self.outbox.size > self.outbox.bound:
            self._press()

    def _press(self) -> None:
        if self.outbox.policy is Policy.WAIT:
            self._above = True  # it is flushed when the session returns, which by now should be soon
        else:
            self._flush()  # before anybody pays, the peer gets what it can take

    def _drop(self, size: int) -> int:
        chunks = self.outbox.dropped_chunks
        dropped = super()._drop(size)
        counters = self._rounds.counters
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
        self._rounds.budget.account(self, size)

    def _broken(self, error: OSError) -> None:
        """The transport says that the peer is gone."""
        self._close("timed out" if error.errno == errno.ETIMEDOUT else "reset")

    def _close(self, reason: str) -> None:
        """Let go of everything but the session, which hears of it at the end of the round."""
        if self.closed:
            return
        self.closed = self._mute = True
        backlog = self.outbox.size > 0
        self._rounds.forget(self, reason)
        self.outbox.clear()
        self.held_bytes = 0
        if self._accounted:
            self._account()
        self._shut(reset=backlog)

    def _join(self, session: Session) -> None:
        self._session = session

    def _part(self) -> Session | None:
        """Let go of the session, and so of the cycle of references; None if it never was."""
        session = getattr(self, "_session", None)
        if session is not None:
            del self._session
        self.on_drained = None
        return session

    def _reads_again(self) -> None:
        """Neither the session nor a full outbox holds input back any more; in a drain there is none."""
        if self._rounds.draining and not self._input_over:
            self._rounds.end_input_soon(self)

    def _stop_input(self) -> None:
        """Nothing more is delivered: the peer has sent all, or the server drains."""
        self._input_over = True

    def _has_time_to_flush(self) -> bool:
        """Finishing, with output left: while the peer takes some of it, it has time for the next step."""
        if self.outbox.size == self._finish_left and self.deadline == math.inf:
            return False  # the deadline has come, and nothing has moved
        if self.outbox.size != self._finish_left:
            self._finish_left = self.outbox.size
            self._rounds.set_deadline(self, self.now + self._rounds.settings.flush_seconds)
        return True

    def _flush(self) -> None:
        """Send what the transport takes now, account for the rest, apply the policy to it."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Go on with finishing."""
        raise NotImplementedError

    def _shut(self, *, reset: bool) -> None:
        """Close the transport; `reset`: what the system still holds of our output is thrown away too."""
        raise NotImplementedError

"""The contract between a protocol's session and the drivers: bytes in, bytes out, one deadline.

A `Session` is sans-IO: the driver calls it, it calls its `Connection`, and neither waits. The same session
runs under the poll driver, the stream driver and, in tests, over a connection in memory.

All of it runs in the trio thread. `receive` and `on_deadline` are never entered while another call into the
same session is under way, and `connection_lost` never from inside a call of the session's own.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from shared.file_range import FileRange
from shared.net.outbox import Outbox, Policy

SHED_BYTES = 1024 * 1024
HELD_BYTES_MIN = 4 * 1024
"""Of a message that is not all there so much is each connection's own, and counts nowhere."""


class Session(Protocol):
    """What a protocol supplies for one connection."""

    def receive(self, data: bytes) -> None:
        """Apply everything whole in `data`; answers go to `connection.write`.

        `RemoteProtocolError`: its reply is sent, then the connection is finished. Any other exception is a
        bug in the session: it is logged with its traceback and counted, and closes this connection only.
        """

    def receive_eof(self) -> None:
        """The peer has sent all. What is owed is still answered; then the session calls `finish`."""

    def on_deadline(self, now: float) -> None:
        """The deadline set by `connection.wake_at` has passed; none is set any more."""

    def connection_lost(self) -> None:
        """The connection is gone, for whatever reason: release everything. Called exactly once."""


class Connection:
    """One peer, as its session sees it; the drivers supply the transport.

    `peer`: `"127.0.0.1:51234"` or `"[::1]:51234"`. `closed`: nothing said here reaches anybody any
    more; all methods may still be called and do nothing. `on_drained` is called when the outbox falls below
    half its bound after having been above the bound, never from inside a call to the connection.
    `held_bytes`: what the session said that it holds. `certificate_user`: the name in the client certificate
    that was shown and accepted; "" without one. `stranger`: it has to log in first, and is served in
    the pace of those who have to (`shared.net.strangers`).
    """

    __slots__ = (
        "_above",
        "_dirty",
        "_mute",
        "_paused",
        "certificate_user",
        "closed",
        "held_bytes",
        "on_drained",
        "outbox",
        "peer",
        "stranger",
    )

    def __init__(self, peer: str, outbox: Outbox) -> None:
        self.peer = peer
        self.outbox = outbox
        self.closed = False
        self.certificate_user = ""
        self.stranger = False
        self.held_bytes = 0
        self.on_drained: Callable[[], None] | None = None
        self._above = False  # the outbox has been above its bound, and not yet below half of it
        self._paused = False  # the session asked for silence
        self._mute = False  # finished or closed: nothing more may be written
        self._dirty = False  # somebody will flush what is written now

    @property
    def now(self) -> float:
        """Monotonic seconds (trio's clock): inside a turn the time at which that began."""
        raise NotImplementedError

    def write(self, data: bytes | memoryview) -> None:
        """Append to the outbox.

        It is sent at one of three moments. On the connection that is being served: when the session's
        `receive` or `on_deadline` returns; little of it together with some other sessions'. On any other
        connection: at the end of the turn. Outside of a turn: at once. A driver that is about to look for
        input does so first, so the answers to what came meanwhile go along. Nothing is sent after `finish`
        or `abort`.
        """
        if self._mute or not data:
            return
        outbox = self.outbox
        chunks = outbox.chunks
        if chunks is None:
            size = outbox.push(data)
        else:  # the same without a call: this is where every answer passes
            chunks.append(data)
            outbox.size = size = outbox.size + len(data)
        if not self._dirty:
            self._touch()
        elif size > outbox.bound:
            self._outbox_over_bound()

    def write_file(self, part: FileRange) -> None:
        """Append a range of an open file; `part.release` is called once it is sent or never will be."""
        if self._mute or not part.length:
            part.release()
            return
        size = self.outbox.push_file(part)
        if not self._dirty:
            self._touch()
        elif size > self.outbox.bound:
            self._outbox_over_bound()

    def expect(self) -> None:
        """More is written at the end of this turn; what is written until then may go along with it."""

    def finish(self) -> None:
        """Nothing more to say: flush the outbox, shut down writing, discard input for up to 1 s, close.

        Further input, the end of input and deadlines are not delivered any more.
        """
        raise NotImplementedError

    def abort(self, reason: str, *, reset: bool = False) -> None:
        """Close now, unsent output lost; counted and logged by `reason` (fixed words, no peer's bytes).

        `reset`: the peer sees no orderly end, also where there was no such output.
        """
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """What the session raised outside of a call by the driver; it ends as if it were inside of one."""
        raise NotImplementedError

    def attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something of the session's on somebody else's time: the store's, or another session's.

        What it raises costs this connection, as it would in a call of the driver's, and nobody else.
        """
        try:
            call(*arguments)
        except Exception as error:
            self.fail(error)

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """The callback so called: for all that is handed to the store, or waits beside other sessions'."""
        return partial(self.attempt, callback)

    def in_its_turn(self, callback: Callable[..., None]) -> Callable[..., None]:
        """As `guarded`, for what is answered to a login: it is called when strangers have their turn."""
        return self.guarded(callback)

    def set_stranger(self, stranger: bool) -> None:
        """Whether it has to log in first."""
        self.stranger = stranger

    def wake_at(self, deadline: float) -> None:
        """Have `on_deadline` called once `now` has reached `deadline`; replaces the one before; inf: none."""
        raise NotImplementedError

    def await_first(self, farewell: bytes = b"", seconds_max: float = math.inf) -> None:
        """The peer has `first_request_seconds`, but no more than `seconds_max`, from now on; then it is sent
        `farewell`, and closed.

        For a session to say when it is opened; `spoke` ends it. It is apart from `wake_at`.
        """
        raise NotImplementedError

    def spoke(self) -> None:
        """The first request is there, and whole."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stop `receive` and `receive_eof` until `resume_reading`; the peer is held by TCP."""
        self._paused = True

    def resume_reading(self) -> None:
        """Read on; harmless if reading was not paused."""
        self._paused = False

    def hold(self, size: int) -> None:
        """The session holds so many bytes of a message that is not all there; 0: none any more.

        They count with the outbox: all backlogs of the process have one bound, and above it the largest
        pays, which may be this connection, now: by being closed. What is small is each connection's own.
        """
        self.held_bytes = size if size > HELD_BYTES_MIN else 0

    def await_rest(self) -> None:
        """A read has left something begun, to which there is no answer yet.

        Where a peer sends a header and what follows it apart, its system may hold the second back until the
        first is acknowledged, and ours puts that off for up to 40 ms, to let it go along with an answer. So
        have it sent now. That holds until the next answer at most: say it at each such read.
        """

    def go_on(self) -> None:
        """Of a range in the outbox more can be read: its `read` had nothing before."""

    def shed(self) -> int:
        """All backlogs of the process are above their bound and this is the largest: drop half, or close.

        Not more than `SHED_BYTES` at a time: who counts what is dropped may take long over it.
        """
        outbox = self.outbox
        waiting = outbox.waiting_bytes
        if outbox.policy is Policy.DROP and self._drop(max(waiting // 2, waiting - SHED_BYTES)):
            return outbox.memory_bytes + self.held_bytes
        self.abort("input memory" if self.held_bytes > outbox.memory_bytes else "outbox memory")
        return 0

    # The rest is between this class and its drivers.

    def _touch(self) -> None:
        """Something was written and nobody has promised to flush it."""
        raise NotImplementedError

    def _outbox_over_bound(self) -> None:
        """The outbox is above its bound with what was just written: see to it, by the policy."""
        raise NotImplementedError

    def _drop(self, size: int) -> int:
        """Drop oldest chunks down to `size` bytes; returns the bytes dropped."""
        return self.outbox.drop_oldest(size)

    def _enforce_bound(self) -> None:
        """The outbox is above its bound after what could be sent was sent."""
        outbox = self.outbox
        too_much = outbox.waiting_bytes > outbox.bound and outbox.waiting_chunks > 1
        if too_much and outbox.policy is Policy.DISCONNECT:
            self.abort("slow consumer")
            return
        if outbox.policy is Policy.DROP:
            self._drop(outbox.bound)
        self._above = True

    @property
    def _reading(self) -> bool:
        """Whether input may be read: neither the session nor a full outbox says no."""
        return not (self._paused or (self._above and self.outbox.policy is Policy.WAIT))

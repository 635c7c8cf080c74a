"""The contract between a protocol's session and the driver: bytes in, bytes out, one deadline.

A `Session` is sans-IO: the driver calls it, it calls its `Connection`, and neither waits. In tests the same
session runs under another driver, or over a connection in memory.

All of it runs in the trio thread. `receive` and `on_deadline` are never entered while another call into the
same session is under way. `connection_lost` never comes from inside a call of the session's own.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from shared.file_range import FileRange
from shared.net.outbox import Outbox, Policy

SHED_BYTES = 1024 * 1024
HELD_BYTES_MIN = 4 * 1024
"""Up to this much of an incomplete message is part of what a connection costs, and is not charged."""


class Session(Protocol):
    """What a protocol supplies for one connection."""

    def receive(self, data: bytes) -> None:
        """Apply everything whole in `data`; answers go to `connection.write`.

        `RemoteProtocolError`: its reply is sent, then the connection is finished. Any other exception is a
        bug in the session: it is logged with its traceback and counted, and closes this connection only.
        """

    def receive_eof(self) -> None:
        """The peer has sent everything. Pending answers are still sent; then the session calls `finish`."""

    def on_deadline(self, now: float) -> None:
        """The deadline set by `connection.wake_at` has passed; none is set any more."""

    def drain(self) -> None:
        """The server stops: end waits. `receive_eof` follows, at once or when input is read again."""

    def connection_lost(self) -> None:
        """The connection is gone, for whatever reason: release everything. Called exactly once."""


class Connection:
    """One peer, as its session sees it; the driver supplies the transport.

    `peer`: `"127.0.0.1:51234"` or `"[::1]:51234"`. `closed`: nothing reaches the peer any more; all methods
    may still be called and do nothing. `mute`: it finishes or is closed, and what is written is ignored.
    `on_drained`: called when the outbox, after being above its bound, falls below half of it; never from
    inside a call to the connection. `held_bytes`: what the session said that it holds. `stranger`: it has to
    log in first, and is served at the pace of strangers (`shared.net.strangers`). `certificate_user`: the
    name in the accepted client certificate, "" without one.
    """

    __slots__ = (
        "_above",
        "_dirty",
        "_paused",
        "certificate_user",
        "closed",
        "held_bytes",
        "mute",
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
        self._above = False  # the outbox has been above its bound, and is not yet below half of it
        self._paused = False  # the session has paused reading
        self.mute = False
        self._dirty = False  # what is written now will be flushed by a caller further up

    @property
    def now(self) -> float:
        """Monotonic seconds (trio's clock); inside a turn, when that turn began."""
        raise NotImplementedError

    def write(self, data: bytes | memoryview) -> None:
        """Append to the outbox; ignored after `finish` or `abort`.

        Sent to the connection that is being served when its session's `receive` or `on_deadline` returns;
        to others at the end of the turn; outside a turn at once, unless the driver is about to look for
        input. The whole of it: `shared.net.loop_turn`.
        """
        if self.mute or not data:
            return
        outbox = self.outbox
        chunks = outbox.chunks
        if chunks is None:
            size = outbox.push(data)
        else:  # `push`, inlined: every answer comes through here
            chunks.append(data)
            outbox.size = size = outbox.size + len(data)
        if not self._dirty:
            self._touch()
        elif size > outbox.bound:
            self._outbox_over_bound()

    def write_file(self, part: FileRange) -> None:
        """Append a range of an open file; `part.release` is called once it is sent or never will be."""
        if self.mute or not part.length:
            part.release()
            return
        size = self.outbox.push_file(part)
        if not self._dirty:
            self._touch()
        elif size > self.outbox.bound:
            self._outbox_over_bound()

    def finish(self) -> None:
        """Flush the outbox, shut down writing, discard input for up to `linger_seconds`, close.

        No input, end of input or deadline is delivered any more.
        """
        raise NotImplementedError

    def abort(self, reason: str, *, reset: bool = False) -> None:
        """Close now; unsent output is lost. `reason`, a few fixed words, is counted and logged.

        `reset`: send a reset even if no output is lost.
        """
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """The session raised outside a call of the driver's; handle it as if it were inside one."""
        raise NotImplementedError

    def attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call the session from the store or from another session's call.

        What it raises ends this connection, as in a call of the driver's, and affects nobody else.
        """
        try:
            call(*arguments)
        except Exception as error:
            self.fail(error)

    def guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        """`callback` under `attempt`: for callbacks given to the store or kept beside other sessions'."""
        return partial(self.attempt, callback)

    def hand_over(self, session: Session) -> None:
        """From now on another session is this connection's, and the one that says this is called no more."""
        raise NotImplementedError

    def in_its_turn(self, callback: Callable[..., None]) -> Callable[..., None]:
        """As `guarded`, for the answer to a login: called when strangers are served."""
        return self.guarded(callback)

    def set_stranger(self, stranger: bool) -> None:
        """Set whether the peer has to log in first."""
        self.stranger = stranger

    def wake_at(self, deadline: float) -> None:
        """Have `on_deadline` called at `deadline`. Replaces the one set before; inf cancels it."""
        raise NotImplementedError

    @property
    def first_request_seconds(self) -> float:
        """The setting, for sessions that keep the time of their first request themselves."""
        raise NotImplementedError

    def await_first_request(self, farewell: bytes = b"", seconds_max: float = math.inf) -> None:
        """Give the peer `first_request_seconds`, at most `seconds_max`, for its first complete request.

        After that it is sent `farewell` and closed. For a session to call when it is opened;
        `first_request_done` ends it. Independent of `wake_at`.
        """
        raise NotImplementedError

    def first_request_done(self) -> None:
        """The first request is complete."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stop `receive` and `receive_eof` until `resume_reading`; TCP flow control holds the peer."""
        self._paused = True

    def resume_reading(self) -> None:
        """Read on; harmless if reading was not paused."""
        self._paused = False

    def hold(self, size: int) -> None:
        """The session holds `size` bytes of an incomplete message or of pending answers; 0: none any more.

        They count with the outbox. When all backlogs of the process exceed their bound, the largest is shed:
        that may close this connection, now. Up to `HELD_BYTES_MIN` is not counted.
        """
        self.held_bytes = size if size > HELD_BYTES_MIN else 0

    def await_rest(self) -> None:
        """A read ended inside a request, and no answer goes out: acknowledge it now.

        A peer that sends a header and its body apart may hold the body back until the header is acknowledged
        (Nagle). The kernel delays acknowledgements by up to 40 ms. The effect lasts until the next answer, so
        call it at each such read.
        """

    def go_on(self) -> None:
        """A `FileRange` in the outbox has more to read: its `read` had nothing before."""

    def shed(self) -> int:
        """Drop half of this backlog, the process's largest, or close. Returns what is still held, in bytes.

        At most `SHED_BYTES` at a time: whoever counts what is dropped may take long.
        """
        outbox = self.outbox
        waiting = outbox.waiting_bytes
        if outbox.policy is Policy.DROP and self._drop(max(waiting // 2, waiting - SHED_BYTES)):
            return outbox.memory_bytes + self.held_bytes
        self.abort("input memory" if self.held_bytes > outbox.memory_bytes else "outbox memory")
        return 0

    # The rest is between this class and its driver.

    def _touch(self) -> None:
        """Output was written that nobody has promised to flush."""
        raise NotImplementedError

    def _outbox_over_bound(self) -> None:
        """The outbox has just gone above its bound: apply the policy."""
        raise NotImplementedError

    def _drop(self, size: int) -> int:
        """Drop oldest chunks down to `size` bytes; returns the bytes dropped."""
        return self.outbox.drop_oldest(size)

    def _limit_slow_peer(self) -> None:
        """The peer does not read: the outbox is still above its bound after sending. Apply the policy."""
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
        """Whether input may be read: neither the session nor a full outbox prevents it."""
        return not (self._paused or (self._above and self.outbox.policy is Policy.WAIT))

"""A connection of the poll driver: a nonblocking socket, and what an edge once told about it."""

import math
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared.file_range import FileRange
from shared.net import liveness
from shared.net.connection import Session
from shared.net.driven import RESET_ON_CLOSE, DrivenConnection
from shared.net.listeners import acknowledge_now

if TYPE_CHECKING:
    from shared.net.poll import PollDriver

READ_BYTES = 64 * 1024
"""First read of a ready socket. A larger buffer costs more to get from malloc (mmap) than a second read."""
SEND_BYTES = 1024 * 1024
"""Sent to one connection before others get their turn."""
JOIN_CHUNKS_MIN = 16
"""More chunks than this are joined, `JOIN_BYTES` at most; fewer, which may be large, go as they are."""
SMALL_BYTES = 4 * 1024
"""So little is always joined: an iovec for each costs more than the copy."""


class PollConnection(DrivenConnection):
    """A nonblocking socket and its session."""

    __slots__ = (
        "_again",
        "_blocked",
        "_driver",
        "_ending",
        "_expects",
        "_plain",
        "_receive",
        "_recv",
        "_send",
        "_shut_writing",
        "_socket",
        "_unread",
        "fd",
    )
    _receive: Callable[[bytes], None]

    def __init__(self, driver: "PollDriver", sock: socket.socket, peer: str, host: str) -> None:
        super().__init__(driver.rounds, peer, host)
        self._driver = driver
        self._socket = sock
        self._recv = sock.recv
        self._send = sock.send
        self.fd = sock.fileno()
        self._plain = False  # input may be read at once: not paused, blocked, finishing or at its end
        self._blocked = False  # the socket's buffer is full; an edge will tell
        self._unread = False  # an edge told of input that has not been read to its end
        self._ending = False  # an edge told of the peer's last word, or of an error: read until it shows
        self._expects = False  # more will be written when the round ends: it need not be sent before
        self._again = False  # waits in the driver's list
        self._shut_writing = False

    def pause_reading(self) -> None:
        self._paused = True
        self._plain = False

    def expect(self) -> None:
        self._expects = self._rounds.in_round

    def go_on(self) -> None:
        self._blocked = False  # it stood for "nothing to send"; if the socket is full, that shows again
        if not self.closed:
            self._driver.again(self)

    def tcp_info(self) -> bytes | None:
        if self.closed:
            return None
        return self._socket.getsockopt(socket.IPPROTO_TCP, liveness.TCP_INFO, liveness.UNACKED.size)

    def await_rest(self) -> None:
        if not self.closed:
            acknowledge_now(self._socket)

    def _join(self, session: Session) -> None:
        super()._join(session)
        self._receive = session.receive

    def _part(self) -> Session | None:
        session = super()._part()
        if session is not None:
            del self._receive
        return session

    def _reads_again(self) -> None:
        super()._reads_again()
        if not self._mute:
            self._driver.again(self)

    def _stop_input(self) -> None:
        super()._stop_input()
        self._plain = False

    def _flush(self) -> None:
        outbox = self.outbox
        chunks = outbox.chunks
        if chunks and not self._blocked:
            try:
                size = outbox.size
                if (size <= SMALL_BYTES or len(chunks) == 1) and not outbox.file_bytes:  # as nearly always
                    sent = self._send(chunks[0] if len(chunks) == 1 else b"".join(chunks))  # type: ignore[arg-type]
                    self._rounds.counters.bytes_out += sent
                    if sent == size:
                        chunks.clear()
                        outbox.size = 0
                        outbox.begun = False
                    else:
                        outbox.advance(sent)
                if chunks:
                    self._send_many()
            except BlockingIOError:
                self._blocked = True
                self._plain = False
            except OSError as error:
                self._broken(error)
                return
        if chunks or self._accounted or self._above:
            self._settle()

    def _can_read_plainly(self) -> bool:
        """Not before its first word, which may be far more work than its bytes: a session comes back."""
        blocked = self._mute or self._input_over or self._blocked
        return self._reading and not blocked and not self._rounds.is_silent(self)

    def _send_many(self) -> None:
        """Send all, or until the socket says no (BlockingIOError), or until others should have a turn."""
        outbox = self.outbox
        counters = self._rounds.counters
        turn = 0
        while outbox.chunks and turn < SEND_BYTES:
            first = outbox.chunks[0]
            if not isinstance(first, FileRange):
                sent = self._send_gathered()
            elif first.fd < 0:
                try:
                    data = first.read(READ_BYTES)
                except EOFError:
                    self.abort("file ended early")
                    return
                sent = self._send(data)
            else:
                sent = os.sendfile(self.fd, first.fd, first.offset, min(first.length, SEND_BYTES))
                if not sent:
                    self.abort("file ended early")
                    return
            outbox.advance(sent)
            counters.bytes_out += sent
            turn += sent

    def _send_gathered(self) -> int:
        outbox = self.outbox
        gathered = outbox.gather()
        more = socket.MSG_MORE if len(gathered) < len(outbox.chunks or ()) else 0
        if len(gathered) == 1:
            return self._send(gathered[0], more)
        if len(gathered) > JOIN_CHUNKS_MIN or outbox.size <= SMALL_BYTES:
            return self._send(b"".join(gathered), more)
        return self._socket.sendmsg(gathered, (), more)

    def _settle(self) -> None:
        """After sending: account for what is left, apply the policy, see to what comes next."""
        outbox = self.outbox
        self._account()
        if outbox.size > outbox.bound:
            self._apply_policy()
        if self.closed:
            return
        if self._above:
            self._plain = False
            if outbox.size * 2 <= outbox.bound:
                self._driver.again(self)  # to tell the session
        if outbox.size and not self._blocked:
            self._driver.again(self)  # to send the rest

    def _advance(self) -> None:
        self._plain = False
        outbox = self.outbox
        self._flush()
        if self.closed:
            return
        if outbox.size:
            if not self._has_time_to_flush():
                self._close("stalled")
                return
        elif self._eof:
            self._close(self._reason)
            return
        elif not self._shut_writing:
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._broken(error)
                return
            self._shut_writing = True
            self._rounds.set_deadline(self, self.now + self._rounds.settings.linger_seconds)
        elif self.deadline == math.inf:
            self._close(self._reason)
            return
        self._discard()

    def _discard(self) -> None:
        """Read and throw away: closing with unread input would reset, and the peer lose our last words."""
        if self._eof:
            return
        try:
            for _ in range(4):
                if not self._recv(READ_BYTES):
                    self._eof = True
                    break
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error)
            return
        self._driver.again(self)

    def _shut(self, *, reset: bool) -> None:
        self._plain = False
        if reset:
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            except OSError:
                pass  # the peer was faster
        self._driver.drop(self.fd)
        self._socket.close()

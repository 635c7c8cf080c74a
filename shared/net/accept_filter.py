"""Connections are held until they send something, for a port where each that is served costs much.

FreeBSD's accept filter `dataready` does so in the kernel. Linux' TCP_DEFER_ACCEPT hands on, once more than
its backlog wait, also who has not sent anything yet: who closes those closes an administrator too, whose
request comes a moment later (with 148 silent ones beside him).

Here one task accepts and watches all of them, at the pace of strangers. A connection that sends nothing
costs an accept and a close: no task, no TLS, no session. Where no place is left the one that has been silent
for longest is closed: a flood of them keeps nobody out.
"""

import math
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain

import attrs
import trio

from shared.net.listeners import LISTENER_ERRORS, OUT_OF_DESCRIPTORS, format_address
from shared.net.strangers import Strangers

READY_MAX = 64
"""Connections that have sent something and wait to be taken. With so many, the next one is closed."""
FIRST_BYTES = 2048
"""How much of the first bytes `answer_at_once` gets."""
GAP_SECONDS = 0.005
"""Between serving two of them, while others are served. Each takes some 0.05 ms, so a flood leaves the p99 of
others as it is. Several at a time, or no gap, raised it by a tenth and more.
"""
PAUSE_SECONDS = 0.1
"""The pause when the process has no free descriptor."""


@attrs.define(eq=False)
class _Accepted:
    """A connection that the system has accepted. `until`: when it must have sent something."""

    socket: socket.socket
    peer: str
    until: float


class AcceptFilter:
    """Accepts from `listening`, nonblocking sockets that stay the caller's, while `run` runs.

    `places`: how many may be silent now, and `silent_seconds`, for how long. `answer_at_once`: gets the first
    bytes of a connection; what it returns is sent, and the connection closed. Empty: the connection waits to
    be taken.
    """

    def __init__(
        self,
        listening: Sequence[socket.socket],
        strangers: Strangers,
        *,
        places: Callable[[], int],
        silent_seconds: float,
        answer_at_once: Callable[[bytes], bytes] = lambda data: b"",
    ) -> None:
        self._strangers = strangers
        self._places = places
        self._silent_seconds = silent_seconds
        self._answer_at_once = answer_at_once
        self._silent: dict[_Accepted, None] = {}  # the oldest first
        self._ready: deque[_Accepted] = deque()
        self._more_ready = trio.lowlevel.ParkingLot()
        self._selector = selectors.DefaultSelector()
        for sock in listening:
            self._selector.register(sock, selectors.EVENT_READ)

    async def accept(self) -> tuple[socket.socket, str]:
        """The next connection that has sent something, and its peer."""
        while not self._ready:
            await self._more_ready.park()
        connection = self._ready.popleft()
        return connection.socket, connection.peer

    async def run(self) -> None:
        """Accept connections until cancelled. Then connections that nobody took are closed."""
        more = True
        try:
            while True:
                if not more:
                    with trio.move_on_at(next((each.until for each in self._silent), math.inf)):
                        await trio.lowlevel.wait_readable(self._selector)
                try:
                    async with self._strangers:
                        more = self._serve_one()
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    await trio.sleep(PAUSE_SECONDS)
                if not self._strangers.are_alone():
                    await trio.sleep(GAP_SECONDS)
        finally:
            self._selector.close()
            for connection in chain(self._silent, self._ready):
                connection.socket.close()

    def _serve_one(self) -> bool:
        """Serve one connection. False: there was none. Raises OSError without a free descriptor."""
        oldest = next(iter(self._silent), None)
        if oldest is not None and oldest.until <= trio.current_time():
            self._close(oldest)
            return True
        # First those that have sent something: they are few, and a backlog may never be empty.
        found = min(self._selector.select(0), key=lambda each: each[0].data is None, default=None)
        if found is None:
            return False
        if found[0].data is None:
            self._accept(found[0].fileobj)  # type: ignore[arg-type]  # as registered
        else:
            self._peek(found[0].data)
        return True

    def _accept(self, listening: socket.socket) -> None:
        try:
            sock, address = listening.accept()
        except BlockingIOError:  # it has left already
            return
        except OSError as error:
            if error.errno in LISTENER_ERRORS:
                raise
            return
        if len(self._silent) >= self._places():
            self._close(next(iter(self._silent)))
        sock.setblocking(False)
        until = trio.current_time() + self._silent_seconds
        connection = _Accepted(sock, format_address(address[0], address[1]), until)
        self._silent[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._peek(connection)  # most have sent something by now: to look again costs a gap

    def _peek(self, connection: _Accepted) -> None:
        """Something may have come, or the end."""
        try:
            data = connection.socket.recv(FIRST_BYTES, socket.MSG_PEEK)
            if answer := self._answer_at_once(data):
                connection.socket.recv(FIRST_BYTES)  # what is unread at a close resets the connection
                connection.socket.send(answer)
            elif data and len(self._ready) < READY_MAX:
                self._forget(connection)
                self._ready.append(connection)
                self._more_ready.unpark()
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close(connection)

    def _close(self, connection: _Accepted) -> None:
        self._forget(connection)
        connection.socket.close()
        self._strangers.count_failure()

    def _forget(self, connection: _Accepted) -> None:
        del self._silent[connection]
        self._selector.unregister(connection.socket)

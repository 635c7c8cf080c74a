"""The poll driver: one task serves every plain TCP connection of a group, without a task for each.

All sockets are registered once, edge-triggered, with an epoll descriptor of the driver's own. A descriptor
of that kind can itself be waited for, so trio waits for it, and one wake-up brings every socket that is
ready. Between two waits nothing is awaited: read, apply, next; what is little is sent for several at once.
Registering once means no epoll_ctl afterwards, not even while a socket is blocked or a session has paused;
the price is that the driver must remember what an edge told it (`_unread`) until the socket has said that it
has no more.

What a round leaves undone (a socket with more to read, a file range with more to send) is put in `_again` and
served in the next round, behind what others have to say by then.

All that one look at epoll brought is one round, though other tasks may have turns in between: so one commit
(`after_round`) is for many connections. A session that knows of more to come when the round ends says so
(`Connection.expect`), and all of it is one send. What else a commit brings to many is not sent before the
driver has looked who is ready: a peer that has gone on meanwhile gets it along with its next answer.
"""

import os
import select
import socket
from time import perf_counter

import trio

from shared.net.polled import READ_BYTES, SMALL_BYTES, PollConnection
from shared.net.rounds import OpenSession, Rounds

EVENTS_MAX = 128
"""Sockets served in one round."""
ROUND_TURNS = 4
"""Turns that a round may take, so that `after_round` is never far away, however much each socket brings."""
YIELD_SECONDS = 300e-6
"""Work after which other tasks get a turn; a turn costs about 5 µs."""
LOOK_WORK = 8 * 1024
"""Work between two looks at the clock, in bytes read plus `EVENT_WORK` for each event."""
EVENT_WORK = 512
ANSWERS_TOGETHER = 32
"""Small answers are sent so many in a row. To wake a process that waits costs more than to send; peers that
share one are woken by the first, and the others' answers find it awake."""

READABLE = select.EPOLLIN | select.EPOLLOUT
"""What epoll says of a socket that has input and nothing else to tell."""
INPUT = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
ENDING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
URGENT = select.EPOLLPRI
"""What comes before an urgent byte is read by itself: one read more is needed for what is behind it."""
INTEREST = select.EPOLLIN | select.EPOLLOUT | select.EPOLLRDHUP | select.EPOLLPRI | select.EPOLLET


class PollDriver:
    """Serves nonblocking sockets given to `add` for as long as `run` runs."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN | select.EPOLLET)
        self._by_fd: dict[int, PollConnection] = {}
        self._again: list[PollConnection] = []
        self._answered: list[PollConnection] = []  # served in this turn, and not sent to yet
        self._pending: list[tuple[int, int]] = []  # events of a round that took too long
        self._parked = False
        self._turns = 0  # that the round under way has had
        self._more = memoryview(bytearray(max(1, self.rounds.settings.read_bytes_max - READ_BYTES)))

    def add(
        self, sock: socket.socket, peer: str, host: str, open_session: OpenSession, *, pushes: bool = False
    ) -> None:
        """Serve an accepted, nonblocking socket; the driver closes it."""
        connection = PollConnection(self, sock, peer, host)
        self._by_fd[connection.fd] = connection
        self.rounds.begin()
        self.rounds.open(connection, open_session, pushes=pushes)
        if not connection.closed:
            try:
                self._epoll.register(connection.fd, INTEREST)
            except OSError as error:  # fs.epoll.max_user_watches
                connection.abort(os.strerror(error.errno or 0))
        connection._plain = connection._can_read_plainly()
        self.rounds.end()

    def drop(self, fd: int) -> None:
        """A connection closes its socket, which ends its registration too."""
        del self._by_fd[fd]
        if self._pending:  # else they might be taken for another's, which gets the same descriptor
            self._pending = [event for event in self._pending if event[0] != fd]

    def is_behind(self) -> bool:
        """Whether some that were ready wait for a turn after the last."""
        return bool(self._pending)

    def again(self, connection: PollConnection) -> None:
        """Attend to `connection` in the next round."""
        if not connection._again:
            connection._again = True
            self._again.append(connection)
            if self._parked:
                self._parked = False
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> None:
        """Once every connection has closed; may be called again."""
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)

    async def run(self) -> None:
        """Serve until cancelled. Connections outlive it; `Rounds.close_all` ends them."""
        rounds = self.rounds
        rested = False
        turn_ends = perf_counter() + YIELD_SECONDS
        try:
            while True:
                rounds.awake = True
                events = self._look()
                if events or self._again:
                    rested = False
                    if not self._round(events, turn_ends) and perf_counter() < turn_ends:
                        continue
                    if rounds.dirty:
                        self._look()
                elif rested:
                    rounds.awake = False
                    self._parked = True
                    try:
                        await trio.lowlevel.wait_readable(self._epoll)
                    finally:
                        self._parked = False
                    turn_ends = perf_counter() + YIELD_SECONDS
                    continue
                # A turn for the others; it takes half the time of a wait, so it is also tried before parking.
                rested = True
                await trio.lowlevel.checkpoint()
                turn_ends = perf_counter() + YIELD_SECONDS
        finally:
            rounds.awake = False

    def _look(self) -> list[tuple[int, int]]:
        """Who is ready; what waits to be sent to the others goes out, to these it goes with what they get."""
        if not self._pending:
            events = self._pending = self._epoll.poll(0, EVENTS_MAX)
            rounds = self.rounds
            if rounds.dirty:
                by_fd = self._by_fd
                rounds.flush_dirty({by_fd.get(fd) for fd, _ in events} if events else ())
        return self._pending

    def _round(self, events: list[tuple[int, int]], turn_ends: float) -> bool:
        """Serve what is ready, until the turn ends; what is left comes first in the next turn.

        True: let other tasks run.
        """
        self.rounds.begin()
        work = 0
        if self._again:
            again, self._again = self._again, []
            for done, connection in enumerate(again, start=1):
                connection._again = False
                self._attend(connection, 0)
                if perf_counter() > turn_ends:
                    self._again[:0] = again[done:]
                    break
        by_fd = self._by_fd
        left = iter(events)
        for fd, flags in left:
            found = by_fd.get(fd)
            if found is None:  # closed meanwhile, or the driver's own wake-up
                continue
            if flags == READABLE and found._plain:
                work += self._read(found)
            else:
                self._attend(found, flags)
                work += LOOK_WORK
            work += EVENT_WORK
            if work > LOOK_WORK:
                work = 0
                if perf_counter() > turn_ends:
                    break
        # Not those of who was closed meanwhile: with the next turn another may have the descriptor.
        self._pending = [event for event in left if event[0] in by_fd]
        if self._answered:
            self._send_answers()
        self._turns += 1
        if self._pending and self._turns < ROUND_TURNS:
            self.rounds.interrupt()
            return True
        self._turns = 0
        return self.rounds.end(hold=True)

    def _read(self, connection: PollConnection) -> int:
        """Read up to `read_bytes_max` and give it to the session; returns the bytes read."""
        try:
            data = connection._recv(READ_BYTES)
            count = len(data)
            if count == READ_BYTES:
                data, count = self._read_more(connection, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            connection._broken(error)
            return 0
        except MemoryError as error:  # there is none to read into
            self.rounds.failed(connection, error)
            return 0
        if not count:
            connection._eof = True
            self.rounds.end_input(connection)
            return 0
        self.rounds.counters.bytes_in += count
        connection._dirty = True
        try:
            connection._receive(data)
        except Exception as error:
            self.rounds.failed(connection, error)
        if connection._expects:
            connection._expects = False
            if connection.outbox.size < READ_BYTES:
                self.rounds.expecting.append(connection)
                return count
        outbox = connection.outbox
        if outbox.chunks and outbox.size <= SMALL_BYTES:
            self._answered.append(connection)
            if len(self._answered) == ANSWERS_TOGETHER:
                self._send_answers()
            return count
        connection._dirty = False
        if outbox.chunks:
            connection._flush()
        return count

    def _send_answers(self) -> None:
        answered, self._answered = self._answered, []
        self.rounds.flush(answered)

    def _read_more(self, connection: PollConnection, data: bytes) -> tuple[bytes, int]:
        """The first read was full: take more in one piece, and come back in the next round."""
        connection._unread = True
        self.again(connection)
        try:
            count = connection._socket.recv_into(self._more)
        except BlockingIOError:
            return data, len(data)
        return b"".join((data, self._more[:count])), len(data) + count

    def _attend(self, connection: PollConnection, flags: int) -> None:
        """All that is not plain input: room to send, an end, an error, what an earlier round left."""
        if connection.closed:
            return
        if flags & INPUT:
            connection._unread = True
            if flags & ENDING:
                connection._ending = True
        if flags & select.EPOLLOUT:
            connection._blocked = False
        if connection._finishing:
            connection._advance()
            return
        outbox = connection.outbox
        if outbox.chunks:
            connection._flush()
        if connection._above and outbox.size * 2 <= outbox.bound and not connection.closed:
            connection._above = False
            connection._reads_again()
            if connection.on_drained is not None:
                self.rounds.call(connection, connection.on_drained)
        if connection._mute:
            return
        if connection._input_over or not connection._reading:
            if flags & select.EPOLLERR:
                number = connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if number:  # else the event was about an earlier owner of the descriptor
                    connection._broken(OSError(number, os.strerror(number)))
            return
        if connection._unread:
            connection._unread = connection._ending or bool(flags & URGENT)
            self._read(connection)
            if connection._unread:
                self.again(connection)
        connection._plain = connection._can_read_plainly()

"""The stream driver: two tasks for each connection, over any trio stream.

It serves what the poll driver cannot: TLS, and memory streams in tests. One task reads, one writes. The
writer ends both once all is sent; the lingering close follows. Sessions behave the same under either driver.
"""

import select
import socket

import trio

from shared.net import liveness
from shared.net.listeners import acknowledge_now
from shared.net.loop_turn import RESET_ON_CLOSE, DrivenConnection, LoopTurn, OpenSession
from shared.net.outbox import Policy
from shared.net.settings import CertificateUser
from shared.net.tls import in_words
from shared.net.tls_stream import TlsStream

HANDSHAKE_SECONDS = 1.5e-3
"""Processor time of a TLS handshake, most of it in one stretch."""
READ_BYTES = 64 * 1024
"""Bytes of a read; TLS gives 16 KiB at most."""

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class StreamConnection(DrivenConnection):
    """A stream and its session."""

    __slots__ = ("_changed", "_scope", "stream")

    def __init__(self, loop: LoopTurn, stream: trio.abc.Stream, peer: str, host: str) -> None:
        super().__init__(loop, peer, host)
        self.stream = stream
        self._changed = trio.lowlevel.ParkingLot()  # both tasks wait here for work
        self._scope = trio.CancelScope()  # around both tasks

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self.stream, TlsStream)

    async def serve(self, open_session: OpenSession, *, pushes: bool) -> None:
        """Serve the connection to its end."""
        loop = self._loop
        try:
            loop.begin()
            loop.open(self, open_session, pushes=pushes)
            loop.end()
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    await self._read()
            if not self.closed:
                await linger(self.stream, self.transport, loop.settings.linger_seconds, eof=self._eof)
                self.close(self._reason)
        finally:
            self.close("shutdown")

    async def _read(self) -> None:
        """Give input to the session; throw it away once the connection is finishing."""
        loop = self._loop
        try:
            while not self._eof:
                data = await self.stream.receive_some(READ_BYTES)
                while not self._reading and not self._finishing:
                    await self._changed.park()
                if self.closed:  # by the writer, while this task waited
                    return
                self._eof = not data
                if self._finishing or self._input_over:
                    continue
                if self.stranger:
                    async with loop.strangers:
                        self._take(data)
                else:
                    loop.strangers.served_at = loop.time()
                    self._take(data)
        except GONE as error:
            self._gone(error)

    def _take(self, data: bytes | bytearray) -> None:
        if self.closed or self._finishing or self._input_over:  # while a stranger waited to be served
            return
        loop = self._loop
        loop.begin()
        if data:
            loop.counters.bytes_in += len(data)
            self.call(self._session.receive, data)
        else:
            self.end_input()
        loop.end()

    async def _write(self) -> None:
        """Send from the outbox; return once a finishing connection has sent all."""
        outbox = self.outbox
        try:
            while outbox.chunks or not self._finishing:
                if not outbox.chunks:
                    await self._changed.park()
                    continue
                try:
                    data = outbox.begin()
                except BlockingIOError:
                    await self._changed.park()
                    continue
                await self.stream.send_all(data)
                if self.closed:
                    return
                outbox.advance(len(data))
                self._loop.counters.bytes_out += len(data)
                self._sent()
            self._scope.cancel()
        except GONE as error:
            self._gone(error)
        except EOFError:
            self.abort("file ended early")

    def _sent(self) -> None:
        """Part of the outbox was sent: account for it, and tell the session if it waits for that."""
        self._account()
        outbox = self.outbox
        if not self._above or outbox.size * 2 > outbox.bound or self.closed:
            return
        self._above = False
        self._reads_again()
        if self.on_drained is not None and not self.mute:
            self._loop.begin()
            self.call(self.on_drained)
            self._loop.end()

    def tcp_info(self, size: int = liveness.WAITING.size) -> bytes | None:
        transport = self.transport
        if self.closed or not isinstance(transport, trio.SocketStream):
            return None
        info: bytes = transport.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        return info

    def await_rest(self) -> None:
        transport = self.transport
        if not self.closed and isinstance(transport, trio.SocketStream):
            acknowledge_now(transport.socket)

    def go_on(self) -> None:
        self._changed.unpark_all()

    @property
    def transport(self) -> trio.abc.Stream:
        """The stream below TLS, or the stream itself."""
        return self.stream.transport if isinstance(self.stream, TlsStream) else self.stream

    def _reads_again(self) -> None:
        super()._reads_again()
        self._changed.unpark_all()

    def send(self) -> None:
        self._dirty = self.expects = False
        if self.outbox.size or self._accounted:
            self._account()
            if self.outbox.size > self.outbox.bound:
                self._limit_slow_peer()
            self._changed.unpark_all()

    def _limit_slow_peer(self) -> None:
        """What the writer takes next, a moment from now, counts as begun: a peer is not slow for that."""
        outbox = self.outbox
        if outbox.policy is not Policy.WAIT and outbox.begun is None and outbox.chunks:
            outbox.begun = outbox.chunks[0]
        super()._limit_slow_peer()

    def _advance(self) -> None:
        if self.outbox.size and not self._has_time_to_flush():
            self.close("stalled")
        self._changed.unpark_all()

    def _gone(self, error: Exception) -> None:
        """The stream is broken: close. trio puts the reason into the cause."""
        cause = error.__cause__
        self._broken(cause if isinstance(cause, OSError) else OSError(str(error)))

    def _shut(self, *, reset: bool) -> None:
        """Cancel the connection's task, which closes the stream."""
        transport = self.transport
        if reset and isinstance(transport, trio.SocketStream):
            try:
                transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            except OSError:
                pass  # the peer has closed already
        self._scope.cancel()


class StreamDriver:
    """Serves streams given to `add` while `run` runs, or one given to `serve`."""

    def __init__(self, loop: LoopTurn, certificate_user: CertificateUser = "cn") -> None:
        self.loop = loop
        self.certificate_user = certificate_user
        self._nursery: trio.Nursery | None = None
        self._ends: select.epoll | None = None  # tells which peers have ended, while their input is unread
        self._by_fd: dict[int, StreamConnection] = {}

    def add(
        self,
        stream: trio.abc.Stream,
        peer: str,
        host: str,
        open_session: OpenSession,
        *,
        pushes: bool = False,
    ) -> None:
        """Serve an admitted stream in a task of its own."""
        assert self._nursery is not None
        self._nursery.start_soon(self.serve, stream, peer, host, open_session, pushes)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the tasks that `add` starts, until cancelled."""
        with select.epoll() as ends:
            async with trio.open_nursery() as nursery:
                self._nursery, self._ends = nursery, ends
                nursery.start_soon(self._watch_ends, ends)
                task_status.started()
                await trio.sleep_forever()

    async def _watch_ends(self, ends: select.epoll) -> None:
        """Tell sessions whose peers have ended. Reads show it only behind input, which may be held back."""
        while True:
            await trio.lowlevel.wait_readable(ends)
            self.loop.begin()
            for fd, _ in ends.poll(0):
                if (connection := self._by_fd.get(fd)) is not None:
                    connection.hang_up()
            self.loop.end()

    async def serve(
        self,
        stream: trio.abc.Stream,
        peer: str,
        host: str,
        open_session: OpenSession,
        pushes: bool = False,
    ) -> None:
        """Serve one admitted stream to its end, and close it."""
        connection = None
        fd = -1
        try:
            if not isinstance(stream, TlsStream) or await self._shake_hands(stream, peer):
                connection = StreamConnection(self.loop, stream, peer, host)
                if isinstance(stream, TlsStream):
                    connection.certificate_user = stream.certificate_name(self.certificate_user)
                transport = connection.transport
                if self._ends is not None and isinstance(transport, trio.SocketStream):
                    fd = transport.socket.fileno()
                    self._by_fd[fd] = connection
                    self._ends.register(fd, select.EPOLLRDHUP | select.EPOLLET)  # closing the socket ends it
                await connection.serve(open_session, pushes=pushes)
        finally:
            self._by_fd.pop(fd, None)
            if connection is None:
                self.loop.admission.leave(host, encrypted=isinstance(stream, TlsStream))
            await trio.aclose_forcefully(stream)

    async def _shake_hands(self, stream: TlsStream, peer: str) -> bool:
        if self.loop.asks_login():
            await self.loop.strangers.turn(HANDSHAKE_SECONDS)
        try:
            with trio.fail_after(self.loop.settings.handshake_seconds):
                await stream.do_handshake()
        except (trio.TooSlowError, *GONE) as error:
            self.loop.counters.handshakes_failed += 1
            why = "too slow" if isinstance(error, trio.TooSlowError) else "the peer is gone"
            if error.__cause__ is not None:
                why = in_words(error.__cause__, server_side=True)
            self.loop.log.info(
                "TLS handshake failed: the connection is closed, nothing was read from it; `error` says what "
                "to change at the client, or in [tls]",
                peer=peer,
                error=why,
            )
            if not isinstance(error, trio.TooSlowError):
                await linger(
                    stream.transport, stream.transport, self.loop.settings.linger_seconds
                )  # it gets to read the alert
            return False
        return True


async def linger(
    stream: trio.abc.Stream, transport: trio.abc.Stream, seconds: float, *, eof: bool = False
) -> None:
    """Shut down writing, then read and discard: closing with unread input may lose our last answer.

    `transport`: the stream below TLS, or the stream itself; `eof`: the peer has ended too.
    """
    with trio.move_on_after(seconds):
        try:
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while not eof and await transport.receive_some(READ_BYTES):
                pass
        except GONE:
            pass

"""The stream driver: a task for each connection, over any trio stream.

It serves what the poll driver cannot: TLS, Unix sockets, memory streams in tests, and plain TCP where there
is no epoll. A connection is a reading task and a writing task; the writer ends both once all is said, and
what follows is the lingering close. The session notices no difference.
"""

import socket

import trio

from shared.net import liveness
from shared.net.driven import RESET_ON_CLOSE, DrivenConnection
from shared.net.listeners import acknowledge_now
from shared.net.rounds import OpenSession, Rounds
from shared.net.tls import TlsStream, in_words

READ_BYTES = 64 * 1024
"""One read; TLS gives 16 KiB at most anyway."""

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class StreamConnection(DrivenConnection):
    """A stream and its session."""

    __slots__ = ("_changed", "_scope", "stream")

    def __init__(self, rounds: Rounds, stream: trio.abc.Stream, peer: str, host: str) -> None:
        super().__init__(rounds, peer, host)
        self.stream = stream
        self._changed = trio.lowlevel.ParkingLot()  # where both tasks wait for something to do
        self._scope = trio.CancelScope()  # around both tasks

    def tcp_info(self) -> bytes | None:
        transport = self._transport
        if self.closed or not isinstance(transport, trio.SocketStream):
            return None
        if transport.socket.family == socket.AF_UNIX:
            return None
        info: bytes = transport.getsockopt(socket.IPPROTO_TCP, liveness.TCP_INFO, liveness.UNACKED.size)
        return info

    def await_rest(self) -> None:
        transport = self._transport
        if not self.closed and isinstance(transport, trio.SocketStream):
            acknowledge_now(transport.socket)

    def go_on(self) -> None:
        self._changed.unpark_all()

    @property
    def _transport(self) -> trio.abc.Stream:
        """What is under TLS, or the stream itself."""
        return self.stream.transport if isinstance(self.stream, TlsStream) else self.stream

    def _reads_again(self) -> None:
        super()._reads_again()
        self._changed.unpark_all()

    def _flush(self) -> None:
        if self.outbox.size or self._accounted:
            self._account()
            if self.outbox.size > self.outbox.bound:
                self._apply_policy()
            self._changed.unpark_all()

    def _advance(self) -> None:
        if self.outbox.size and not self._has_time_to_flush():
            self._close("stalled")
        self._changed.unpark_all()

    def _gone(self, error: Exception) -> None:
        """trio says that the stream is broken; why is in the cause."""
        cause = error.__cause__
        self._broken(cause if isinstance(cause, OSError) else OSError(str(error)))

    def _shut(self, *, reset: bool) -> None:
        """The connection's task closes the stream, as soon as it may run."""
        transport = self._transport
        if reset and isinstance(transport, trio.SocketStream):
            try:
                transport.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            except OSError:
                pass  # the peer was faster
        self._scope.cancel()


class StreamDriver:
    """Serves streams given to `add` for as long as `run` runs, or one given to `serve`."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self._nursery: trio.Nursery | None = None

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
        """Hold the tasks of what `add` is given, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

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
        try:
            if not isinstance(stream, TlsStream) or await self._shake_hands(stream, peer):
                connection = StreamConnection(self.rounds, stream, peer, host)
                await self._serve(connection, open_session, pushes)
        finally:
            if connection is None:
                self.rounds.admission.leave(host)
            await trio.aclose_forcefully(stream)

    async def _shake_hands(self, stream: TlsStream, peer: str) -> bool:
        try:
            with trio.fail_after(self.rounds.settings.handshake_seconds):
                await stream.do_handshake()
        except (trio.TooSlowError, *GONE) as error:
            self.rounds.counters.handshakes_failed += 1
            why = "too slow" if isinstance(error, trio.TooSlowError) else "the peer is gone"
            if error.__cause__ is not None:
                why = in_words(error.__cause__, server_side=True)
            self.rounds.log.info("TLS handshake failed", peer=peer, error=why)
            if not isinstance(error, trio.TooSlowError):
                await self._linger(stream.transport, stream.transport, eof=False)  # it gets to read the alert
            return False
        return True

    async def _serve(self, connection: StreamConnection, open_session: OpenSession, pushes: bool) -> None:
        try:
            self.rounds.begin()
            self.rounds.open(connection, open_session, pushes=pushes)
            self.rounds.end()
            with connection._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, connection)
                    await self._read(connection)
            if not connection.closed:
                await self._linger(connection.stream, connection._transport, eof=connection._eof)
                connection._close(connection._reason)
        finally:
            connection._close("shutdown")

    async def _read(self, connection: StreamConnection) -> None:
        """Give input to the session until its end; throw it away once the connection is finishing."""
        try:
            while not connection._eof:
                data = await connection.stream.receive_some(READ_BYTES)
                while not connection._reading and not connection._finishing:
                    await connection._changed.park()
                if connection.closed:  # by the writer, while this was on its way
                    return
                connection._eof = not data
                if connection._finishing or connection._input_over:
                    continue
                self.rounds.begin()
                if data:
                    self.rounds.counters.bytes_in += len(data)
                    self.rounds.call(connection, connection._session.receive, data)
                else:
                    self.rounds.end_input(connection)
                self.rounds.end()
        except GONE as error:
            connection._gone(error)

    async def _write(self, connection: StreamConnection) -> None:
        """Send what the outbox holds as it comes; once all is sent of a finishing connection, end it."""
        outbox = connection.outbox
        try:
            while outbox.chunks or not connection._finishing:
                if not outbox.chunks:
                    await connection._changed.park()
                    continue
                try:
                    data = outbox.begin()
                except BlockingIOError:
                    await connection._changed.park()
                    continue
                await connection.stream.send_all(data)
                if connection.closed:
                    return
                outbox.advance(len(data))
                self.rounds.counters.bytes_out += len(data)
                self._drained(connection)
            connection._scope.cancel()
        except GONE as error:
            connection._gone(error)
        except EOFError:
            connection.abort("file ended early")

    def _drained(self, connection: StreamConnection) -> None:
        """Some of the outbox has gone: account for it, and tell the session if it waits for that."""
        connection._account()
        outbox = connection.outbox
        if not connection._above or outbox.size * 2 > outbox.bound or connection.closed:
            return
        connection._above = False
        connection._reads_again()
        if connection.on_drained is not None and not connection._mute:
            self.rounds.begin()
            self.rounds.call(connection, connection.on_drained)
            self.rounds.end()

    async def _linger(self, stream: trio.abc.Stream, transport: trio.abc.Stream, *, eof: bool) -> None:
        """Say that we are done; read and throw away input for a while, or our last words may be lost.

        `transport`: what is under TLS, or the stream itself; `eof`: the peer has said that it is done too.
        """
        with trio.move_on_after(self.rounds.settings.linger_seconds):
            try:
                if isinstance(stream, trio.abc.HalfCloseableStream):
                    await stream.send_eof()
                while not eof and await transport.receive_some(READ_BYTES):
                    pass
            except GONE:
                pass

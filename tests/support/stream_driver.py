"""A driver for tests: two tasks for each connection, over any trio stream, where time is the test's.

One task reads, one writes. The writer ends both once all is sent; the lingering close follows.
"""

import trio

from shared.net import liveness
from shared.net.loop_turn import DrivenConnection, LoopTurn, OpenSession
from shared.net.outbox import Policy

READ_BYTES = 64 * 1024
"""Bytes of a read."""

GONE = (trio.BrokenResourceError, trio.ClosedResourceError)


class StreamConnection(DrivenConnection):
    """A stream and its session."""

    __slots__ = ("_changed", "_scope", "stream")

    def __init__(self, loop: LoopTurn, stream: trio.abc.Stream, peer: str, host: str) -> None:
        super().__init__(loop, peer, host)
        self.stream = stream
        self._changed = trio.lowlevel.ParkingLot()  # both tasks wait here for work
        self._scope = trio.CancelScope()  # around both tasks

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
                await linger(self.stream, loop.settings.linger_seconds, eof=self._eof)
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
        return None

    def go_on(self) -> None:
        self._changed.unpark_all()

    def _reads_again(self) -> None:
        super()._reads_again()
        self._changed.unpark_all()

    def send(self) -> None:
        self._dirty = False
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
        self._scope.cancel()


async def serve_stream(
    loop: LoopTurn,
    stream: trio.abc.Stream,
    peer: str,
    open_session: OpenSession,
    *,
    pushes: bool = False,
) -> None:
    """Serve an admitted stream to its end, and close it."""
    try:
        await StreamConnection(loop, stream, peer, "").serve(open_session, pushes=pushes)
    finally:
        await trio.aclose_forcefully(stream)


async def linger(stream: trio.abc.Stream, seconds: float, *, eof: bool = False) -> None:
    """Shut down writing, then read and discard. `eof`: the peer has ended too."""
    with trio.move_on_after(seconds):
        try:
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while not eof and await stream.receive_some(READ_BYTES):
                pass
        except GONE:
            pass

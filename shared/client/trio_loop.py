"""A client's loop on trio: two tasks a connection, in a nursery beside the client's block."""

import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from shared.client.dial import CONNECT_SECONDS, Address, Disconnected, broke, not_reached, probe, tls_failed
from shared.client.loop import RECEIVE_BYTES, ClientConnection, Event, Loop, Place, Transport
from shared.client.nursery import open_nursery

LAST_WORDS_SECONDS = 1.0
"""For the server's last words where it takes no more from us: why it closes."""


class TrioLoop(Loop):
    """trio's loop, and the nursery that the client's tasks run in."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._transports: set[TrioTransport] = set()

    def now(self) -> float:
        return trio.current_time()

    def event(self) -> Event:
        return trio.Event()

    async def wait(self, event: Event, seconds: float | None = None, *, shield: bool = False) -> bool:
        with trio.move_on_after(math.inf if seconds is None else seconds, shield=shield):
            await event.wait()
        return event.is_set()

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                await work()

        self._nursery.start_soon(run)
        return scope.cancel

    async def connect(self, address: Address, connection: ClientConnection) -> None:
        self.attach(await open_stream(address), connection)

    async def resolve(self, host: str, port: int) -> list[Place]:
        return list(await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_DGRAM))

    def attach(self, stream: trio.abc.Stream, connection: ClientConnection) -> None:
        """Let a connection use a stream that exists; it is closed with the connection."""
        transport = TrioTransport(stream, connection)
        connection.transport = transport
        self._transports.add(transport)

        async def run() -> None:
            try:
                await transport.run()
            finally:
                self._transports.discard(transport)

        self._nursery.start_soon(run)

    def close(self) -> None:
        for transport in tuple(self._transports):
            transport.close()


@asynccontextmanager
async def trio_loop() -> AsyncIterator[TrioLoop]:
    async with open_nursery() as nursery:
        loop = TrioLoop(nursery)
        try:
            yield loop
        finally:
            loop.close()


async def open_stream(address: Address) -> trio.abc.Stream:
    """A stream to the server. Raises ConnectionRefusedError for any reason but TLS's, then ssl.SSLError."""
    tried: Sequence[Exception]
    try:
        with trio.fail_after(CONNECT_SECONDS):
            plain = await trio.open_tcp_stream(address.host, address.port)
            probe(plain.socket)
            if address.ssl_context is None:
                return plain
            name = address.server_hostname or address.host
            tls = trio.SSLStream(plain, address.ssl_context, server_hostname=name)
            try:
                await tls.do_handshake()
            except BaseException as error:
                await trio.aclose_forcefully(tls)
                if isinstance(error, trio.BrokenResourceError) and error.__cause__ is not None:
                    raise error.__cause__ from None
                raise
            return tls
    except ssl.SSLError as error:
        raise tls_failed(address, error) from None
    except trio.TooSlowError as error:
        raise not_reached(address, [TimeoutError()]) from error
    except (OSError, UnicodeError, trio.BrokenResourceError) as error:
        tried = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else [error]
        raise not_reached(address, tried) from error


class TrioTransport(Transport):
    """Over any stream of trio. What is written during a send goes out together in the next."""

    def __init__(self, stream: trio.abc.Stream, connection: ClientConnection) -> None:
        self._stream = stream
        self._connection = connection
        self._outgoing: list[bytes] = []
        self._something = trio.Event()
        self._drained = trio.Event()
        self._drained.set()
        self._resumed = trio.Event()
        self._resumed.set()
        self._eof = False
        self._closed = False
        self._refused: trio.BrokenResourceError | None = None
        # The connection ends by `close`, also where the program is cancelled: goodbyes still go out.
        self._scope = trio.CancelScope(shield=True)
        self._reading = trio.CancelScope()
        self._read = trio.Event()

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        self._outgoing.append(data)
        if self._drained.is_set():
            self._drained = trio.Event()
        self._something.set()

    async def drain(self) -> None:
        await self._drained.wait()

    def write_eof(self) -> None:
        self._eof = True
        if not isinstance(self._stream, trio.abc.HalfCloseableStream):
            self._reading.cancel()  # TLS ends by a dialog, which reads by itself
        self._something.set()

    def pause_reading(self) -> None:
        if self._resumed.is_set():
            self._resumed = trio.Event()

    def resume_reading(self) -> None:
        self._resumed.set()

    def close(self) -> None:
        self._closed = True
        self._scope.cancel()
        self._drained.set()

    async def run(self) -> None:
        """Send and receive until either side ends the connection."""
        error: Disconnected | None = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send, nursery)
                    with self._reading:
                        await self._receive()
                    self._read.set()
                    if not self._reading.cancelled_caught:
                        nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError) as group:
            error = broke(group.exceptions[0].__cause__)  # trio's own error has no reason
        finally:
            closed, self._closed = self._closed, True
            self._drained.set()
            await trio.aclose_forcefully(self._stream)
        if error is None and self._refused is not None:
            error = broke(self._refused.__cause__)
        if not closed:
            self._connection.ended(error)

    async def _send(self, nursery: trio.Nursery) -> None:
        try:
            while not self._eof or self._outgoing:
                await self._something.wait()
                self._something = trio.Event()
                while self._outgoing:
                    outgoing, self._outgoing = self._outgoing, []
                    await self._stream.send_all(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))
                self._drained.set()
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            else:  # under TLS both ends close with a TLS alert
                assert isinstance(self._stream, trio.SSLStream)
                await self._read.wait()
                self._stream, _ = await self._stream.unwrap()
        except trio.BrokenResourceError as error:
            self._refused = error
            if not self._reading.cancel_called:
                # The server takes no more. What it has said is read to its end.
                nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS_SECONDS
                await trio.sleep_forever()

    async def _receive(self) -> None:
        while True:
            await self._resumed.wait()
            received = await self._stream.receive_some(RECEIVE_BYTES)
            if not received:
                return
            self._connection.received(received)

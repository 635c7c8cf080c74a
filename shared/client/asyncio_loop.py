"""A client's loop on asyncio, or on uvloop: protocols and transports, and no task for a connection."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

from shared.client.dial import CONNECT_SECONDS, Address, broke, not_reached, probe, tls_failed
from shared.client.loop import ClientConnection, Event, Loop, Place, Transport


class AsyncioLoop(Loop):
    """The loop that runs now."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transports: set[AsyncioTransport] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return self._loop.time()

    def event(self) -> Event:
        return asyncio.Event()

    async def wait(self, event: Event, seconds: float | None = None, *, shield: bool = False) -> bool:
        try:
            async with asyncio.timeout(seconds):  # a task that was cancelled may wait again: no shield
                await event.wait()
        except TimeoutError:
            pass
        return event.is_set()

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            await work()

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        return cancel

    async def connect(self, address: Address, connection: ClientConnection) -> None:
        tried: list[Exception] = []
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                places = await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
                for family, kind, number, _, place in places:
                    sock = socket.socket(family, kind, number)
                    sock.setblocking(False)
                    try:
                        await self._loop.sock_connect(sock, place)
                    except OSError as error:
                        sock.close()
                        tried.append(error)
                        continue
                    except BaseException:
                        sock.close()
                        raise
                    return await self._attach(sock, address, connection)
        except ssl.SSLError as error:
            raise tls_failed(address, error) from None
        except (OSError, UnicodeError) as error:
            tried.append(error)
        raise not_reached(address, tried)

    async def _attach(self, sock: socket.socket, address: Address, connection: ClientConnection) -> None:
        probe(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        name = None if address.ssl_context is None else address.server_hostname or address.host
        transport = AsyncioTransport(self._loop, connection, self._transports)
        try:
            await self._loop.create_connection(
                lambda: transport, sock=sock, ssl=address.ssl_context, server_hostname=name
            )
        except BaseException:
            sock.close()
            raise

    async def resolve(self, host: str, port: int) -> list[Place]:
        return list(await self._loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))

    async def aclose(self) -> None:
        for transport in tuple(self._transports):
            transport.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def asyncio_loop() -> AsyncIterator[AsyncioLoop]:
    loop = AsyncioLoop()
    try:
        yield loop
    finally:
        await loop.aclose()


class AsyncioTransport(Transport, asyncio.Protocol):
    """asyncio's protocol for a connection. What is written in one turn of the loop goes out together."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: ClientConnection, living: "set[AsyncioTransport]"
    ) -> None:
        self._loop = loop
        self._connection = connection
        self._living = living
        self._outgoing: list[bytes] = []
        self._drained = asyncio.Event()
        self._drained.set()
        self._full = False
        self._eof = False
        self._closed = False

    # What the client calls.

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        self._drained.clear()
        self._outgoing.append(data)
        if len(self._outgoing) == 1:
            self._loop.call_soon(self._flush)

    async def drain(self) -> None:
        await self._drained.wait()

    def write_eof(self) -> None:
        self._eof = True
        self._flush()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._closed = True
        self._drained.set()
        self._transport.abort()

    def _flush(self) -> None:
        if self._closed:
            return
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self._transport.write(b"".join(outgoing))
        if not self._full:
            self._drained.set()
        if self._eof:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # under TLS both ends close with a TLS alert
                self._transport.close()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none of its classes
        # `drain` waits for the kernel. With a high mark of 0 TLS would pause with nothing to send.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._connection.transport = self
        self._living.add(self)

    def data_received(self, data: bytes) -> None:
        if not self._closed:
            self._connection.received(data)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if not self._outgoing:
            self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drained.set()
        self._living.discard(self)
        if not self._closed:
            self._closed = True
            self._connection.ended(None if exc is None else broke(exc))

"""LogMQ on a real store and real sockets, in this process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from logmq.broker import Broker
from logmq.listener import LogmqService, open_broker
from logmq.settings import LogmqSettings
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Context
from shared.storage.settings import StorageSettings
from shared.storage.store import Store
from tests.support.serving import Serving, serving

STORAGE = StorageSettings(segment_bytes=1 << 20, zero_fill=False)
"""Small segments: most of these tests write little, and each starts anew."""
LOG = structlog.stdlib.get_logger("test")


class Served(Serving):
    service: LogmqService

    @property
    def broker(self) -> Broker:
        return self.service.broker

    async def connect(self) -> "Socket":
        """A connection, closed with the server."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return Socket(stream)


class Socket:
    """What nc is: bytes out, bytes in."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._rest = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def line(self) -> bytes:
        """The next line, without its end."""
        while b"\n" not in self._rest:
            data = await self.stream.receive_some()
            assert data, f"closed behind {self._rest!r}"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    async def take(self, count: int) -> bytes:
        """So many bytes."""
        while len(self._rest) < count:
            data = await self.stream.receive_some()
            assert data, f"closed behind {len(self._rest)} bytes"
            self._rest += data
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        while data := await self.stream.receive_some():
            self._rest += data
        return self._rest

    async def ask(self, line: bytes) -> bytes:
        await self.send(line + b"\n")
        return await self.line()


@asynccontextmanager
async def served(
    folder: Path,
    settings: LogmqSettings | None = None,
    *,
    port: int = 0,
    net: NetSettings | None = None,
    tls: TlsSettings | None = None,
    clean: bool = True,
) -> AsyncIterator[Served]:
    """A server on `folder`. Not `clean`: its end is that of a killed process."""
    store = await Store.open(folder, STORAGE)
    settings = settings or LogmqSettings()
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        broker = await open_broker(Context(store, LOG), settings)
        service = LogmqService(broker)
        after = store.commit_pending
        try:
            async with serving(
                Served, "logmq", service, port=port, net=net, tls=tls, after_turn=after
            ) as server:
                yield server
        finally:
            nursery.cancel_scope.cancel()
    if clean:
        await store.close()
    else:
        store.abandon()

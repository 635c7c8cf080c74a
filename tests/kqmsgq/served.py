"""KqueueMsgQ on real sockets, in this process."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import attrs
import trio

from kqmsgq.listener import KqmsgqService
from kqmsgq.queues import Consumer
from kqmsgq.settings import KqmsgqSettings
from shared.net.network import Group, Network
from shared.net.poll import PollConnection
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Context, TcpEndpoint
from tests.kqmsgq.world import LOG

PATIENCE_SECONDS = 60.0
"""More than any of these tests takes on a busy machine, so that a hang fails and does not stay."""


@attrs.frozen
class Served:
    service: KqmsgqService
    group: Group
    port: int
    streams: list[trio.SocketStream] = attrs.field(factory=list)

    @property
    def value(self) -> dict[str, float]:
        """The metrics, those with labels as `name{label}`."""
        return {
            sample.name + "".join(f"{{{label}}}" for _, label in sample.labels): sample.value
            for sample in self.service.samples()
        }

    def consumer(self, stream: trio.SocketStream) -> Consumer:
        """The server's side of a consumer's connection."""
        peer = "{}:{}".format(*stream.socket.getsockname()[:2])
        (found,) = (each for each in self.service.queues.consumers if each.connection.peer == peer)
        return found

    def narrow(self, stream: trio.SocketStream) -> None:
        """Let the system hold next to nothing between the server and this client, who does not read."""
        connection = cast(PollConnection, self.consumer(stream).connection)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    async def until(self, **metrics: float) -> None:
        """Wait until metrics have these values."""
        while any(  # noqa: ASYNC110 (plain ints tell nobody when they change)
            self.value.get(f"kqmsgq_{name}") != value for name, value in metrics.items()
        ):
            await trio.sleep(0.001)

    async def connect(self, data: bytes, *, narrow: bool = False) -> trio.SocketStream:
        """A connection that has sent `data`; closed with the server."""
        sock = trio.socket.socket()
        if narrow:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await sock.connect(("127.0.0.1", self.port))
        stream = trio.SocketStream(sock)
        self.streams.append(stream)
        await stream.send_all(data)
        return stream


@asynccontextmanager
async def served(
    settings: KqmsgqSettings | None = None, *, net: NetSettings | None = None, tls: TlsSettings | None = None
) -> AsyncIterator[Served]:
    service = KqmsgqService(Context(cast(Any, None), LOG), settings or KqmsgqSettings())
    async with trio.open_nursery() as nursery:
        (endpoint,) = service.endpoints
        assert isinstance(endpoint, TcpEndpoint)
        group = Network(net or NetSettings()).group("kqmsgq", after_turn=lambda: None, log=LOG, tls=tls)
        ((_, bound),) = group.bind_tcp(
            "kqmsgq", "127.0.0.1", 0, endpoint.open_session, pushes=endpoint.pushes
        )
        await nursery.start(group.serve)
        server = Served(service, group, int(bound))
        try:
            with trio.fail_after(PATIENCE_SECONDS):
                yield server
        finally:
            for stream in server.streams:
                await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()


async def read(stream: trio.SocketStream, count: int) -> bytes:
    """So many bytes."""
    data = bytearray()
    while len(data) < count:
        received = await stream.receive_some()
        assert received, f"closed behind {len(data)} bytes"
        data += received
    return bytes(data)


async def rest(stream: trio.SocketStream) -> bytes:
    """Everything until the server closes."""
    return b"".join([data async for data in stream])

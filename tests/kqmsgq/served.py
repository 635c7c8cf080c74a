"""KqueueMsgQ on real sockets, in this process."""

import socket
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import trio

from kqmsgq.listener import KqmsgqService
from kqmsgq.queues import Consumer
from kqmsgq.settings import KqmsgqSettings
from shared.net.poll import PollConnection
from shared.net.settings import NetSettings, TlsSettings
from shared.plugin import Context
from tests.kqmsgq.world import LOG
from tests.support.serving import Serving, serving


class Served(Serving):
    service: KqmsgqService

    def consumer(self, stream: trio.SocketStream) -> Consumer:
        """The server's side of a consumer's connection."""
        peer = "{}:{}".format(*stream.socket.getsockname()[:2])
        (found,) = (each for each in self.service.queues.consumers if each.connection.peer == peer)
        return found

    def narrow(self, stream: trio.SocketStream) -> None:
        """Let the system hold next to nothing between the server and this client, who does not read."""
        connection = cast(PollConnection, self.consumer(stream).connection)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

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


def served(
    settings: KqmsgqSettings | None = None, *, net: NetSettings | None = None, tls: TlsSettings | None = None
) -> AbstractAsyncContextManager[Served]:
    service = KqmsgqService(Context(cast(Any, None), LOG), settings or KqmsgqSettings())
    return serving(Served, "kqmsgq", service, net=net, tls=tls)

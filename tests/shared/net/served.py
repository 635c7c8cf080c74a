"""A group of listeners with one endpoint, and clients for it, plain or with TLS."""

import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import structlog
import trio
import trustme

from shared.net.connection import Connection, Session
from shared.net.loop_turn import AfterTurn, OpenSession
from shared.net.network import Group, Network
from shared.net.settings import NetSettings, TlsSettings
from shared.net.tls import client_context

PATIENCE_SECONDS = 60.0
"""More than any of these tests takes on a busy machine, so that a hang fails and does not stay."""

# For tests that take the fixture `serve` (conftest.py): the transports that they run over.
everywhere = pytest.mark.parametrize("serve", ["plain", "tls"], indirect=True)
unencrypted = pytest.mark.parametrize(
    "serve", ["plain"], indirect=True
)  # trio's TLS client has no half-close


@attrs.frozen
class Certificates:
    """PEM files of an authority, a server and a client."""

    folder: Path
    authority: trustme.CA

    @property
    def server(self) -> TlsSettings:
        return TlsSettings(certificate=self.folder / "server.pem", key=self.folder / "server.key")

    @property
    def mutual(self) -> TlsSettings:
        return attrs.evolve(self.server, client_ca=self.folder / "ca.pem")

    def client_context(self) -> ssl.SSLContext:
        context = client_context()
        self.authority.configure_trust(context)
        return context


def make_certificates(folder: Path) -> Certificates:
    authority = trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    server.private_key_pem.write_to_path(str(folder / "server.key"))
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(str(folder / "server.pem"), append=number > 0)
    return Certificates(folder, authority)


def make_group(network: Network | None = None, **options: Any) -> Group:
    network = network or Network(NetSettings())
    log = structlog.stdlib.get_logger()
    return Group("test", network, **{"after_turn": lambda: None, "log": log, **options})


@attrs.define(eq=False)
class Served:
    """A running group, and its clients, who are closed with it."""

    group: Group
    network: Network
    address: tuple[str, int]
    client_context: ssl.SSLContext | None
    _clients: list[trio.abc.Stream | socket.socket] = attrs.field(factory=list)

    async def connect(self) -> trio.abc.Stream:
        stream: trio.abc.Stream = await trio.open_tcp_stream(*self.address)
        if self.client_context is not None:
            stream = trio.SSLStream(stream, self.client_context, server_hostname="localhost")
        self._clients.append(stream)
        return stream

    def connect_socket(self) -> socket.socket:
        """A plain nonblocking client, not for TLS."""
        sock = socket.socket()
        self._clients.append(sock)
        sock.connect(self.address)
        sock.setblocking(False)
        return sock

    async def close_clients(self) -> None:
        for client in self._clients:
            if isinstance(client, socket.socket):
                client.close()
            else:
                await trio.aclose_forcefully(client)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@asynccontextmanager
async def serving(
    kind: str,
    open_session: OpenSession,
    *,
    certificates: Certificates | None = None,
    after_turn: AfterTurn = lambda: None,
    pushes: bool = False,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve `open_session` over `kind` of transport on a free port, and stop at the end."""
    network = Network(NetSettings(**settings))
    tls = certificates.server if certificates is not None and kind == "tls" else None
    group = make_group(network, after_turn=after_turn, tls=tls)
    (address,) = group.bind_tcp("test", "127.0.0.1", 0, open_session, pushes=pushes)
    context = certificates.client_context() if certificates is not None and kind == "tls" else None
    served = Served(group, network, address, context)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(group.serve)
            with trio.fail_after(PATIENCE_SECONDS):
                yield served
            nursery.cancel_scope.cancel()
    finally:
        await served.close_clients()


async def read_all(stream: trio.abc.ReceiveStream, count: int | None = None) -> bytes:
    """Up to the end, or exactly `count` bytes."""
    data = bytearray()
    while count is None or len(data) < count:
        more = await stream.receive_some(65536 if count is None else count - len(data))
        if not more:
            assert count is None, f"the end came after {len(data)} bytes of {count}"
            break
        data += more
    return bytes(data)


class Recorder:
    """A session that writes down what it is told, and does what a test hands it for each kind of call."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.calls: list[str] = []
        self.data = bytearray()
        self.lost = trio.Event()
        self.told_eof = trio.Event()
        self.on_receive: Callable[[bytes], None] = lambda data: None
        self.on_eof: Callable[[], None] = connection.finish
        self.on_time: Callable[[float], None] = lambda now: None
        self.on_drain: Callable[[], None] = lambda: None

    def receive(self, data: bytes) -> None:
        self.calls.append("receive")
        self.data += data
        self.on_receive(data)

    def receive_eof(self) -> None:
        self.calls.append("eof")
        self.told_eof.set()
        self.on_eof()

    def on_deadline(self, now: float) -> None:
        self.calls.append("deadline")
        self.on_time(now)

    def drain(self) -> None:
        self.calls.append("drain")
        self.on_drain()

    def connection_lost(self) -> None:
        self.calls.append("lost")
        self.lost.set()


class Sessions:
    """Opens sessions and hands them to the test in order of connection."""

    def __init__(self, prepare: Callable[[Recorder], None] = lambda session: None) -> None:
        self._prepare = prepare
        self._send, self._receive = trio.open_memory_channel[Recorder](100)

    def __call__(self, connection: Connection) -> Session:
        session = Recorder(connection)
        self._prepare(session)
        self._send.send_nowait(session)
        return session

    async def next(self) -> Recorder:
        return await self._receive.receive()

    async def join(self, served: Served) -> tuple[trio.abc.Stream, Recorder]:
        """Connect a client; it and its session."""
        client = await served.connect()
        if isinstance(client, trio.SSLStream):
            await client.do_handshake()
        return client, await self.next()


def wait_arrived(session: Recorder, count: int = 1) -> None:
    """Wait until so many bytes are there for a polled session to read, and let nothing else run meanwhile.

    What is sent over loopback is usually there at once, but a busy system may deliver it later.
    """
    sock: socket.socket = session.connection.sock  # type: ignore[attr-defined]
    input_ = select.poll()
    input_.register(sock, select.POLLIN)
    while input_.poll(PATIENCE_SECONDS * 1000) and len(sock.recv(count, socket.MSG_PEEK)) < count:
        pass


def socket_of(session: Recorder) -> Any:
    """The socket below its connection."""
    return session.connection.sock  # type: ignore[attr-defined]


def echo(session: Recorder) -> None:
    session.on_receive = session.connection.write


def owe_an_answer(session: Recorder) -> None:
    """It does not finish when its peer has sent all: there is something that it still waits for."""
    session.on_eof = lambda: None

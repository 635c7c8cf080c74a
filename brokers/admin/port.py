"""The admin port: HTTP over TCP, with bounds that keep its clients from slowing the protocols.

| | |
|---|---|
| connections | `CONNECTIONS_MAX`; the next one replaces the oldest without a login, or waits |
| connections that send nothing | accepted and closed at the pace of strangers (`shared.net.accept_filter`) |
| those that do | `PACE_SECONDS` apart, but for the first `FEW` of a burst and those that log in |
| a connection without a login | one answer, and `/livez` on loopback before all others |
| reads without a login, except a connection's first | `PACE_SECONDS` apart, of all together |
| silence | 5 s until the first byte, then until a request's head is whole, and between requests |
| a request's head | `admin_gate.HEAD_BYTES_MAX` |
| a request's body | `api.BODY_BYTES_MAX` within `BODY_SECONDS`, only with a login |
| one that is announced as longer | refused before it comes, and the connection closed |
| an answer | its reader takes each piece within `SEND_SECONDS` |

HTTP/1.1 alone is spoken. HTTP/2 has requests beside each other on one connection, and each may be reset.
"""

import logging
import math
import socket
from collections.abc import Sequence
from typing import Any

import attrs
import h11
import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brokers.admin.gate import CONNECTIONS_MAX, HEAD_BYTES_MAX, Caller, Gate, problem
from shared.net.accept_filter import AcceptFilter
from shared.net.keepalive import is_loopback, keepalive
from shared.net.listeners import bind_each, format_address
from shared.net.settings import CertificateUser
from shared.net.strangers import Strangers
from shared.net.tls import ServerTls
from shared.net.tls_socket import TlsStream

SILENT_LEAST = 32
"""Connections that may be silent even beside so many that are not."""
SILENT_SECONDS = 5.0
FEW = 16
PACE_SECONDS = 0.05
"""Setting up HTTP takes some 0.3 ms, so fewer than one in a hundred short requests elsewhere meets a flood,
and their p99 stays. At 10 ms it rose to 1.15 times."""
BACKLOG = 128
READ_BYTES = 16 * 1024
SEND_SECONDS = 20.0
BODY_SECONDS = 10.0
PAUSE_SECONDS = 0.1
"""The pause when all connections are of those who have logged in."""
TOO_LATE: Message = {"type": "http.disconnect"}


def listen(host: str, port: int) -> list[socket.socket]:
    """The listening sockets, one for each address of `host`. Raises CannotListen."""

    def prepare(sock: socket.socket, address: str) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not is_loopback(address):
            for level, option, value in keepalive(30):
                sock.setsockopt(level, option, value)

    return bind_each(host, port, socket.SOCK_STREAM, prepare, backlog=BACKLOG)


def http_config() -> Config:
    """What hypercorn logs goes to our log, and it does not say what it is."""
    config = Config()
    config.accesslog = None
    config.errorlog = logging.getLogger("brokers.admin")
    config.include_server_header = False
    return config


class TurnPace:
    """Spaces turns so many seconds apart, except for a `burst` after a silence."""

    def __init__(self, seconds: float, burst: int) -> None:
        self._seconds, self._slack = seconds, seconds * burst
        self._last = -math.inf

    async def turn(self) -> None:
        self._last = max(self._last + self._seconds, trio.current_time() - self._slack)
        await trio.sleep_until(self._last)

    def give_back(self) -> None:
        """Give back a turn that cost nothing."""
        self._last -= self._seconds


class _Http11(H11Protocol):
    """Hypercorn's HTTP/1.1, which does not change to HTTP/2: it ignores an upgrade, and answers 505 to a
    preface."""

    async def handle(self, event: Event) -> None:
        try:
            await super().handle(event)
        except H2ProtocolAssumedError:
            await self._send_error_response(505)
            await self.send(Closed())

    async def _send_error_response(self, status_code: int) -> None:
        """Answer with problem details, as the gate does; hypercorn's own answer has no body."""
        answer = problem(status_code, "this is no request of HTTP/1.1, or its head is too long")
        headers = [*answer.raw_headers, (b"connection", b"close"), *self.config.response_headers("h11")]
        for event in (
            h11.Response(status_code=status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            await self._send_h11_event(event)

    async def _check_protocol(self, event: Any) -> None:
        if event.http_version == b"2.0":
            raise H2ProtocolAssumedError(b"")


class HttpConnection(TCPServer):
    """Hypercorn's server of one connection, which ends when its client closes it.

    Hypercorn waits for what a silent connection is allowed (5 s) even then. So 128 requests of a script in
    that time, each on its own connection, took all places, and the next ones were reset.
    """

    has_left = False
    """Whether the client has closed its side; an answer may be under way."""

    def __init__(self, app: ASGIApp, config: Config, stream: Any) -> None:
        """`stream`: what hypercorn uses of one."""
        wrapped = ASGIWrapper(app)  # type: ignore[arg-type]  # an ASGI application by Starlette's types
        super().__init__(wrapped, config, WorkerContext(None), ConnectionState({}), stream)

    async def run(self) -> None:
        sock = self.stream.socket
        try:
            names = (sock.getpeername(), sock.getsockname())
            client, server = (parse_socket_addr(sock.family, name) for name in names)
            async with TaskGroup() as self._task_group:
                self.protocol = _Http11(  # type: ignore[assignment]  # hypercorn's own may change to HTTP/2
                    self.app,
                    self.config,
                    self.context,
                    self._task_group,
                    ConnectionState({}),
                    False,
                    client,
                    server,
                    self.protocol_send,
                )
                await self.idle_task.restart(self._task_group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()

    async def protocol_send(self, event: Event) -> None:
        await super().protocol_send(event)
        if self.has_left and isinstance(event, Updated):  # it may have begun to wait for another request
            await self.idle_task.stop()

    async def _read_data(self) -> None:
        await super()._read_data()
        self.has_left = True
        await self.idle_task.stop()


@attrs.define(eq=False)
class _Open:
    """An open connection; to close its socket ends it."""

    caller: Caller
    socket: trio.socket.SocketType


class AdminPort:
    """The admin port's listening sockets. `serve` runs once; one that is not served is closed."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        log: structlog.stdlib.BoundLogger,
        strangers: Strangers,
        *,
        tls: ServerTls | None = None,
        certificate_user: CertificateUser = "cn",
        handshake_seconds: float = 5.0,
    ) -> None:
        self.sockets = sockets
        self._log = log
        self.tls = tls
        self.certificate_user = certificate_user
        """Both apply to new connections."""
        self._handshake_seconds = handshake_seconds
        self._open: dict[_Open, None] = {}  # the oldest first
        self._strangers = strangers
        self._pace, self._reads = TurnPace(PACE_SECONDS, FEW), TurnPace(PACE_SECONDS, FEW)
        config = self._config = http_config()
        config.h11_max_incomplete_size = HEAD_BYTES_MAX

    @property
    def address(self) -> tuple[str, int]:
        """The first address that was bound."""
        bound = self.sockets[0].getsockname()
        return bound[0], bound[1]

    @property
    def page(self) -> str:
        """The URL of its page."""
        host, port = self.address
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"{'https' if self.tls else 'http'}://{format_address(host, port)}/"

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    async def serve(
        self, gate: Gate, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; then close all connections at once."""
        accepting = AcceptFilter(
            self.sockets,
            self._strangers,
            places=lambda: max(SILENT_LEAST, CONNECTIONS_MAX - len(self._open)),
            silent_seconds=SILENT_SECONDS,
            answer_at_once=gate.answer_at_once,
        )
        async with trio.open_nursery() as nursery:
            try:
                nursery.start_soon(accepting.run)
                nursery.start_soon(self._let_in, accepting, gate, nursery)
                task_status.started()
                await trio.sleep_forever()
            finally:
                # Hypercorn sends from behind a shield, which only a closed socket ends.
                for each in tuple(self._open):
                    each.socket.close()
                self.close()

    async def _let_in(self, accepting: AcceptFilter, gate: Gate, nursery: trio.Nursery) -> None:
        while True:
            if len(self._open) >= CONNECTIONS_MAX and not self._make_room():
                await trio.sleep(PAUSE_SECONDS)
                continue
            sock, peer = await accepting.accept()
            opened = _Open(Caller(peer), trio.socket.from_stdlib_socket(sock))
            self._open[opened] = None
            nursery.start_soon(self._connection, opened, sock, gate)
            await self._pace.turn()

    def _make_room(self) -> bool:
        for opened in self._open:
            if not opened.caller.user:
                self._end(opened)
                return True
        return False

    def _end(self, opened: _Open) -> None:
        self._open.pop(opened, None)
        opened.socket.close()

    async def _connection(self, opened: _Open, sock: socket.socket, gate: Gate) -> None:
        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            await gate(scope, _in_time(receive), send, opened.caller)

        try:
            stream: trio.abc.HalfCloseableStream = trio.SocketStream(opened.socket)
            if self.tls is not None:
                stream = secure = TlsStream(sock, self.tls.context)
                with trio.fail_after(self._handshake_seconds):
                    await secure.do_handshake()
                opened.caller.certificate_user = secure.tls.certificate_name(self.certificate_user)
            await HttpConnection(asked, self._config, _BoundedStream(stream, opened, self._reads))
        except* (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # the peer's fault: no TLS, or it has left
        except* Exception as group:
            self._log.warning(
                "a connection to the admin port failed: one request has no answer; ask again",
                error=repr(group.exceptions[0]),
            )
        finally:
            self._end(opened)
            gate.left(opened.caller)
            if opened.caller.user:
                self._pace.give_back()


def _in_time(receive: Receive) -> Receive:
    """Treat a body that is not complete in time as one whose sender has left."""
    until: list[float] = []

    async def receive_in_time() -> Any:
        if not until:
            until.append(trio.current_time() + BODY_SECONDS)
        with trio.move_on_at(until[0]):
            message = await receive()
            if not message.get("more_body"):
                until[0] = float("inf")  # what comes next is only the end of the connection
            return message
        return TOO_LATE

    return receive_in_time


class _BoundedStream:
    """A connection as hypercorn uses one: reads in small pieces, and writes that are taken in time."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, opened: _Open, pace: TurnPace) -> None:
        self.socket = opened.socket
        self._stream, self._caller = stream, opened.caller
        self._pace, self._begun = pace, False

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(READ_BYTES)
        # Only now: a request that was read before may have logged in meanwhile, and an end costs nothing.
        if data and self._begun and not self._caller.user:
            await self._pace.turn()  # a peer that sends single bytes gets no more of the loop than others
        self._begun = True
        return data

    async def send_all(self, data: bytes) -> None:
        with trio.move_on_after(SEND_SECONDS) as deadline:
            try:
                await self._stream.send_all(data)
            except trio.BusyResourceError:  # its body was none: hypercorn ends our side meanwhile
                raise trio.BrokenResourceError from None
        if deadline.cancelled_caught:
            self.socket.close()
            raise trio.BrokenResourceError

    async def send_eof(self) -> None:
        with trio.move_on_after(1):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

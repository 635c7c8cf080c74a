"""A blocking connection to one LogMQ server, for Spark's Python workers: no loop, no threads.

Requests and answers are those of `logmq.connector`, which does no I/O. Every request here may be sent twice
without harm. So a connection that breaks, or is silent for `reply_seconds`, is made again, and unanswered
requests are sent again, with growing pauses. After `retry_seconds` without an answer it gives up.

The blocking client (`logmq.blocking`) in its place takes 1.7 times the processor: a topic of 191 MiB, fetched
in pieces of 8 MB, 0.20 s; here, where a chunk is received where it stays, 0.11 s.

Source: logmq/PROTOCOL.md.
"""

import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Any, cast

from brokers.pipeline.source.options import Reach, Server
from logmq.connector import (
    BODY_BYTES_MAX,
    LINE_BYTES_MAX,
    Answer,
    Ask,
    LineAnswer,
    LogmqError,
    auth,
    check_logged_in,
)
from shared.client.dial import TLS_ALERT
from shared.client.retry import Retry
from shared.errors import RemoteProtocolError

RECEIVE_BYTES = 256 * 1024
PIPELINED = 256
"""Requests on their way at once. Their answers are small, so the two sides cannot block each other."""
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


class Link:
    """One server, connected when it is first asked. Raises OSError that names a server out of reach."""

    def __init__(self, server: Server, reach: Reach) -> None:
        self.server = server
        self._reach = reach
        self._context = reach.context()
        self._login = reach.login()
        self._socket: socket.socket | None = None
        self._heard = False
        self._data = bytearray()
        self._at = 0
        self._unanswered: deque[tuple[Ask, bytes]] = deque()
        """Requests and their bodies. The first `_on_wire` of them were sent on this connection."""
        self._on_wire = 0
        self._retry = Retry(reach.retry_seconds)

    def ask(self, ask: Ask) -> Any:
        """Return the result of one request. Raises LogmqError if the server refuses."""
        (result,) = self.ask_all([ask])
        if isinstance(result, LogmqError):
            raise result
        return result

    def ask_all(self, asks: Sequence[Ask]) -> list[Any]:
        """Return all results in order; a refused request has its LogmqError there. Requests are pipelined."""
        results: list[Any] = []
        for start in range(0, len(asks), PIPELINED):
            some = asks[start : start + PIPELINED]
            self.put(*some)
            results += [self.take() for _ in some]
        return results

    # For callers that keep requests on their way: each `put` has its `take`.

    def put(self, *asks: Ask, body: bytes = b"") -> None:
        """Send requests, the last with a body. Connects first if there is no connection."""
        self._unanswered += [*((ask, b"") for ask in asks[:-1]), (asks[-1], body)]
        try:
            self._send()
        except OSError as error:
            self._failed(error)

    def take(self, receive: Callable[[], Any] | None = None) -> Any:
        """Return the result of the oldest request, or its LogmqError. `receive`: another way to read it."""
        while True:
            try:
                self._send()
                ask, _ = self._unanswered[0]
                result = self._receive(ask.answer()) if receive is None else receive()
            except OSError as error:
                self._failed(error)
            except BaseException:
                self.close()
                raise
            else:
                self._retry.heard()
                self._unanswered.popleft()
                self._on_wire -= 1
                return result

    def _send(self) -> None:
        """Send whatever is not on its way on this connection."""
        if self._on_wire == len(self._unanswered):
            return
        waiting = islice(self._unanswered, self._on_wire, None)
        parts = [part for ask, body in waiting for part in (ask.request, body) if part]
        sock = self._connected()
        for data in parts if len(parts) <= 2 else (b"".join(parts),):  # a long body is not copied
            sock.sendall(data)
        self._on_wire = len(self._unanswered)

    def _receive(self, answer: Answer) -> Any:
        while not answer.done:
            end = answer.take(self._data, self._at) if self._at < len(self._data) else -1
            if end >= 0:
                self._at = end
            if not answer.done:
                self._more()
        return answer.result if answer.error is None else answer.error

    def receive_chunk(
        self, allocate: Callable[[int], memoryview]
    ) -> tuple[int, memoryview] | LogmqError | None:
        """Return a FETCH's answer: its offset, and its bytes in memory from `allocate`. None means EOF."""
        while (end := self._data.find(b"\n", self._at)) < 0:
            self._more()
        if self._data.startswith(b"EOF", self._at):
            self._at = end + 1
            return None
        head = LineAnswer(b"CHUNK", 3)
        self._at = head.take(self._data, self._at)
        if head.error is not None:
            assert isinstance(head.error, LogmqError)
            return head.error
        offset, length, following = cast(tuple[int, int, int], head.result)
        if following != offset + length or length > BODY_BYTES_MAX:
            raise RemoteProtocolError(
                f"{self.server}: a chunk of {length} bytes from {offset} to {following}"
            )
        body = allocate(length)
        have = min(len(self._data) - self._at, length)
        body[:have] = memoryview(self._data)[self._at : self._at + have]
        self._at += have
        sock = self._connected()
        while have < length:
            got = sock.recv_into(body[have:])
            if not got:
                raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
            have += got
        return offset, body

    def _failed(self, error: OSError) -> None:
        """Disconnect, and pause before another attempt. Raises OSError if another attempt is useless."""
        other_side = self._other_side(error)
        self._disconnect()
        hopeless = other_side or isinstance(error, ssl.SSLCertVerificationError)
        pause = None if hopeless else self._retry.failed(monotonic())
        if pause is None:
            self.close()
            why = other_side or error.strerror or str(error) or type(error).__name__
            text = f"no LogMQ server answers ({why})"
            raise ConnectionRefusedError(errno.ECONNREFUSED, text, str(self.server)) from error
        sleep(pause)

    def close(self) -> None:
        """Close the connection, and forget what is not answered. The next request connects again."""
        self._disconnect()
        self._unanswered.clear()
        self._retry = Retry(self._reach.retry_seconds)

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        self._data.clear()
        self._at = self._on_wire = 0
        if sock is not None:
            sock.close()

    def _other_side(self, error: OSError) -> str:
        """Say that only one side speaks TLS, if that is the reason; else an empty text."""
        if isinstance(error, ssl.SSLError) and error.reason in _NO_TLS:
            return "it does not speak TLS, as the options tls, tlsCa and tlsCertificate have it"
        if self._context is None and isinstance(error, ConnectionError) and self._is_unheard():
            return "it speaks TLS: the option tls=true is missing, or tlsCa" if self._speaks_tls() else ""
        return ""

    def _is_unheard(self) -> bool:
        """Whether there was a connection, and nothing but perhaps a TLS alert came over it."""
        return self._socket is not None and (not self._heard or self._data.startswith(TLS_ALERT))

    def _speaks_tls(self) -> bool:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent to it
        try:
            with self._dialled() as sock, context.wrap_socket(sock):
                return True
        except OSError:
            return False

    def _dialled(self) -> socket.socket:
        return socket.create_connection((self.server.host, self.server.port), self._reach.connect_seconds)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            sock = self._dialled()
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_hostname=self.server.host)
                sock.settimeout(self._reach.reply_seconds)
            except BaseException:
                sock.close()
                raise
            self._socket, self._heard = sock, False
            if self._login:
                try:
                    self._log_in(sock)
                except (LogmqError, RemoteProtocolError, ValueError):
                    self.close()
                    raise
        return self._socket

    def _log_in(self, sock: socket.socket) -> None:
        """Log in over a new connection. Raises LogmqError where the server refuses."""
        sock.sendall(auth(self._login))
        while (end := self._data.find(b"\n")) < 0:
            self._more()
            if len(self._data) > LINE_BYTES_MAX:
                break
        line = bytes(self._data[:end])
        self._data.clear()
        self._at = 0
        check_logged_in(line, self._login)

    def _more(self) -> None:
        received = self._connected().recv(RECEIVE_BYTES)
        if not received:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        self._heard = True
        del self._data[: self._at]
        self._at = 0
        self._data += received

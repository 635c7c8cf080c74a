"""The server's side of TLS: over a nonblocking socket, before a connection's session, and as a stream.

The driver calls a `TlsSocket` where it calls the socket of a plain connection. The TLS is OpenSSL's, over
memory: an end without an alert that OpenSSL reads from a socket is an error, after which it sends nothing.
"""

import math
import socket
import ssl
from typing import TYPE_CHECKING, Any

import trio

from shared.net.settings import CertificateUser
from shared.net.tls import in_words

if TYPE_CHECKING:
    from shared.net.loop_turn import LoopTurn, OpenSession
    from shared.net.poll import PollConnection

CIPHER_BYTES = 64 * 1024
"""Bytes of one read of the socket, and bytes encrypted before the socket has to take them."""
ALERT = bytes.fromhex("15 0301 0002 02 46")
"""Fatal, "protocol version" (RFC 8446, 6). OpenSSL sends no alert to a peer that speaks no TLS; our clients
report this one as the reason."""


class TlsSocket:
    """A socket's `recv` and `send`, encrypted. `ended`: the peer's closing alert has come."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = b""  # encrypted
        self._taken = 0  # bytes of the last `send` that are encrypted, and that it has not reported
        self.ended = False

    def shake_hands(self, data: bytes) -> None:
        """Take bytes of the handshake, b"" at the peer's end. Raises SSLWantReadError, and OSError."""
        self._incoming.write(data)
        if not data:
            self._incoming.write_eof()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            raise
        except ssl.SSLError:
            self._unsent = self._outgoing.read() or ALERT
            self.flush()
            raise
        self.flush()

    def certificate_name(self, field: CertificateUser) -> str:
        """The name in the accepted client certificate: its common name (`cn`) or first DNS name (`san`).

        "" without a certificate or without that field.
        """
        found: Any = self._tls.getpeercert() or {}
        if field == "cn":
            names = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        else:
            names = [value for kind, value in found.get("subjectAltName", ()) if field and kind == "DNS"]
        return str(names[0]) if names else ""

    def recv(self, size: int) -> bytes:
        """As a socket's. A peer that ends without an alert counts as ended, too: every protocol here frames
        its messages, so truncation shows.
        """
        parts: list[bytes] = []
        left = size
        drained = False
        while left and not self.ended:
            try:
                part = self._tls.read(left)
            except ssl.SSLWantReadError:
                if drained:
                    break
                try:
                    data = self._socket.recv(CIPHER_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    if not parts:
                        return b""
                    break  # what tells the driver of the end has it read again
                self._incoming.write(data)
                drained = len(data) < CIPHER_BYTES
            except ssl.SSLZeroReturnError:
                self.ended = True
            else:
                self.ended = not part
                parts.append(part)
                left -= len(part)
        self.flush()  # TLS has answers of its own
        if not parts and not self.ended:
            raise BlockingIOError
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """As a socket's, and after BlockingIOError the next `data` must begin with the same bytes."""
        rest = memoryview(data)[:CIPHER_BYTES]
        while self._taken < len(rest) and not self._unsent:
            self._taken += self._tls.write(rest[self._taken :])
        if not self.flush():
            raise BlockingIOError
        taken, self._taken = self._taken, 0
        return taken

    def flush(self) -> bool:
        """Send what is encrypted. False: the socket has not taken all. Raises OSError."""
        unsent = self._unsent + self._outgoing.read() if self._outgoing.pending else self._unsent
        try:
            while unsent:
                unsent = unsent[self._socket.send(unsent) :]
        except BlockingIOError:
            pass
        self._unsent = unsent
        return not unsent

    def say_the_end(self) -> None:
        """Send the closing alert, if the socket takes it."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # the peer has sent no alert yet; ours is in `_outgoing` all the same
            pass
        self.flush()


class Handshake:
    """A connection's session (`shared.net.connection.Session`) until TLS stands. Then `open_session` makes
    the one that is meant.
    """

    def __init__(
        self,
        connection: "PollConnection",
        loop: "LoopTurn",
        tls: TlsSocket,
        certificate_user: CertificateUser,
        open_session: "OpenSession",
    ) -> None:
        self._connection = connection
        self._loop = loop
        self._tls = tls
        self._certificate_user: CertificateUser = certificate_user
        self._open_session = open_session
        self._over = False
        connection.set_stranger(loop.asks_login())
        connection.wake_at(connection.now + loop.settings.handshake_seconds)

    def receive(self, data: bytes) -> None:
        connection = self._connection
        try:
            self._tls.shake_hands(data)
        except ssl.SSLWantReadError:
            return
        except OSError as error:
            self._fail(in_words(error, server_side=True))
            return
        self._over = True
        connection.wake_at(math.inf)
        connection.certificate_user = self._tls.certificate_name(self._certificate_user)
        connection.encrypt(self._tls)
        connection.hand_over(self._open_session(connection))

    def receive_eof(self) -> None:
        self.receive(b"")

    def on_deadline(self, now: float) -> None:
        self._fail("too slow")

    def drain(self) -> None:
        """Its input ends next."""

    def connection_lost(self) -> None:
        if not self._over:
            self._fail("the peer is gone")

    def _fail(self, why: str) -> None:
        self._over = True
        connection = self._connection
        self._loop.counters.handshakes_failed += 1
        self._loop.log.info(
            "TLS handshake failed: the connection is closed, nothing was read from it; `error` says what to "
            "change at the client, or in [tls]",
            peer=connection.peer,
            error=why,
        )
        connection.finish()


class TlsStream(trio.abc.HalfCloseableStream):
    """A `TlsSocket` as a stream, for the admin port. trio's own cannot say its end and still receive."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self.tls = TlsSocket(sock, context)

    async def do_handshake(self) -> None:
        """Raises BrokenResourceError, with the reason as its cause."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                self.tls.shake_hands(self._socket.recv(CIPHER_BYTES))
            except (BlockingIOError, ssl.SSLWantReadError):
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            return

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        while True:
            try:
                return self.tls.recv(max_bytes or CIPHER_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.tls.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.wait_writable(self._socket)

    async def send_eof(self) -> None:
        """Send the closing alert and shut down writing; input is still received."""
        await trio.lowlevel.checkpoint()
        try:
            self.tls.say_the_end()
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Close without an alert."""
        trio.lowlevel.notify_closing(self._socket)
        self._socket.close()
        await trio.lowlevel.checkpoint()

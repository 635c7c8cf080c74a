"""The server's side of TLS over a stream.

`trio.SSLStream` cannot half-close: it cannot send its closing alert and still receive. If input is left
unread it closes without an alert, and the peer of a lingering close takes our last answer for cut off. So the
stream is our own; the TLS is OpenSSL's.
"""

import ssl
from typing import Any

import trio

from shared.net.settings import CertificateUser

CIPHER_BYTES = 64 * 1024
"""Bytes of one read of the transport."""
_ALERT = bytes.fromhex("15 0301 0002 02 46")
"""Fatal, "protocol version" (RFC 8446, 6)."""


class TlsStream(trio.abc.HalfCloseableStream):
    """The server's side of TLS over `transport`. One task may send while another receives.

    A peer that ends without a closing alert counts as ended (`b""`): every protocol here frames its messages,
    so truncation shows. `aclose` closes the transport without an alert; `send_eof` sends one.
    """

    def __init__(self, transport: trio.abc.HalfCloseableStream, context: ssl.SSLContext) -> None:
        self.transport = transport
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = trio.Lock()  # a receiving task also sends: TLS has messages of its own

    async def do_handshake(self) -> None:
        """Raises BrokenResourceError, with the reason as its cause."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                if not await self._exchange():
                    self._incoming.write_eof()
            except ssl.SSLError as error:
                # OpenSSL sends no alert to a peer that speaks no TLS; our clients report this one as the
                # reason.
                await self._send_outgoing(otherwise=_ALERT)
                raise trio.BrokenResourceError from error
            else:
                await self._send_outgoing()
                return

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

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        while True:
            try:
                return self._tls.read(max_bytes or CIPHER_BYTES)
            except ssl.SSLWantReadError:
                # OpenSSL is not told of an end without an alert: it would encrypt nothing after that, and
                # answers may be left to send.
                if not await self._exchange():
                    return b""
            except ssl.SSLZeroReturnError:
                await trio.lowlevel.checkpoint()
                return b""
            except ssl.SSLError as error:
                raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as rest:
            done = 0
            while done < len(rest):
                try:
                    done += self._tls.write(rest[done:])
                except ssl.SSLError as error:
                    raise trio.BrokenResourceError from error
        await self._send_outgoing()

    async def wait_send_all_might_not_block(self) -> None:
        await self.transport.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        """Send the closing alert and shut down writing; input is still received."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # the peer has sent no alert yet; ours is in `_outgoing` all the same
            pass
        await self._send_outgoing()
        await self.transport.send_eof()

    async def aclose(self) -> None:
        await self.transport.aclose()

    async def _exchange(self) -> bool:
        """Send what TLS has to send, then wait for more from the peer. Returns False at the peer's end."""
        await self._send_outgoing()
        data = await self.transport.receive_some(CIPHER_BYTES)
        self._incoming.write(data)
        return len(data) > 0

    async def _send_outgoing(self, otherwise: bytes = b"") -> None:
        async with self._sending:
            if data := self._outgoing.read() or otherwise:
                await self.transport.send_all(data)

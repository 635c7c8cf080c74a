"""Where a server is and how it is reached, for every client: TCP or TLS, again after growing pauses."""

import errno
import re
import secrets
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar, TypeVar

import attrs
import trio

from shared.errors import EXIT_LOST, EXIT_UNAVAILABLE, BrokerError, UsageError
from shared.net.keepalive import is_loopback, keepalive
from shared.net.tls import client_context, in_words

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 30.0
"""Silence after which TCP asks whether the server is still there; a minute of it, and it is not."""
PAUSE_SECONDS = (0.05, 2.0)
"""Before connecting again: the first pause, doubled each time, and the longest."""
STOOD_SECONDS = 5.0
"""A connection that lasted so long was not turned away: nothing came because there was nothing to say."""

Connected = TypeVar("Connected")


class Disconnected(BrokerError):
    """The connection was lost: what was asked may or may not have been done."""

    exit_code: ClassVar[int | None] = EXIT_LOST


class Unreachable(Disconnected):
    """No connection could be made in time, or the client is closed: nothing was asked."""

    exit_code = EXIT_UNAVAILABLE


def broken(error: BaseException, otherwise: str = "reset") -> Disconnected:
    """The error of a stream that failed, which hides why in its cause."""
    why = error.__cause__
    return Disconnected(f"the connection broke ({otherwise if why is None else in_words(why)})")


def check_plain(said: bytes | bytearray) -> None:
    """The first bytes of a server to which we speak no TLS. Raises Disconnected where it does."""
    if said.startswith(TLS_ALERT):
        raise Disconnected("the server speaks TLS: ask for it with --tls, or name its authority with --ca")


TLS_ALERT = b"\x15\x03"
"""How TLS refuses what is none. No protocol of ours begins so."""


@attrs.frozen
class Address:
    """Where a server is, and how it is reached. `ssl_context`: TLS, for `host` unless said otherwise.

    `kind`: the server's protocol, as people write it, for the error that says that none is there.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    server_hostname: str | None = None
    kind: str = attrs.field(kw_only=True)

    def not_answered(self, why: object) -> Unreachable:
        """The error for somebody there who does not answer as such a server does."""
        return Unreachable(f"{self.host}:{self.port}: no {self.kind} server answers ({why})")

    async def open(self) -> trio.abc.Stream:
        """A stream to it. Raises ConnectionRefusedError, whatever the reason, and ssl.SSLError."""
        try:
            with trio.fail_after(CONNECT_SECONDS):
                plain = await trio.open_tcp_stream(self.host, self.port)
                _probe(plain.socket)
                if self.ssl_context is None:
                    return plain
                name = self.server_hostname or self.host
                tls = trio.SSLStream(plain, self.ssl_context, server_hostname=name)
                try:
                    await tls.do_handshake()
                except BaseException as error:
                    await trio.aclose_forcefully(tls)
                    if isinstance(error, trio.BrokenResourceError) and error.__cause__ is not None:
                        raise error.__cause__ from None
                    raise
                return tls
        except ssl.SSLError as error:
            # Its own words do not say who it was, nor what to do.
            error.filename, error.strerror = f"{self.host}:{self.port}", in_words(error)
            raise
        except (OSError, UnicodeError, trio.TooSlowError, trio.BrokenResourceError) as error:
            said = f"no {self.kind} server answers ({_why(error)})"
            raise ConnectionRefusedError(errno.ECONNREFUSED, said, f"{self.host}:{self.port}") from error


def _why(error: Exception) -> str:
    """No connection was made: why, of all addresses that were tried."""
    if isinstance(error, UnicodeError):  # `a..b`
        return "no host can have that name"
    if isinstance(error, trio.TooSlowError):
        return f"nothing in {CONNECT_SECONDS:g} s"
    tried = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else [error]
    return ", ".join(
        dict.fromkeys(str((isinstance(each, OSError) and each.strerror) or each or "reset") for each in tried)
    )


def _probe(sock: trio.socket.SocketType) -> None:
    """Who waits for a message says nothing, and would never hear that the server's machine is gone."""
    try:
        if not is_loopback(sock.getpeername()[0]):
            for option in keepalive(KEEPALIVE_SECONDS):
                sock.setsockopt(*option)
    except OSError:  # it is gone already: the first read tells
        pass


async def open_again(address: Address, seconds: float) -> trio.abc.Stream:
    """Connect, with growing pauses, for so long. Raises Unreachable."""
    return await keep_trying(address, seconds, address.open)


async def keep_trying(
    address: Address, seconds: float, connect: Callable[[], Awaitable[Connected]]
) -> Connected:
    """What `connect` returns, called again with growing pauses for so long while nobody answers.

    Raises Unreachable, and at once whatever else `connect` raises but OSError and Disconnected.
    """
    deadline = trio.current_time() + seconds
    attempts = 0
    while True:
        try:
            return await connect()
        except (OSError, Disconnected) as error:
            left = deadline - trio.current_time()
            if left <= 0:
                why = (error.strerror if isinstance(error, OSError) else None) or error
                raise Unreachable(f"{address.host}:{address.port}: {why}") from error
            await trio.sleep(min(pause_before(attempts), left))  # the last attempt is made at the very end
            attempts += 1


def pause_before(attempts: int) -> float:
    """Seconds to wait before trying again, after so many attempts.

    Half of each pause is chance: a thousand clients of one server must not come back at once.
    """
    first, longest = PAUSE_SECONDS
    pause = min(first * (1 << min(attempts, 20)), longest)
    return pause / 2 + pause / 2 * secrets.randbelow(1000) / 1000


class Turned:
    """Connections in a row that a server took and closed at once, without a word.

    Whoever makes them again pauses longer before each, and gives up after `seconds` of that.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._count = 0
        self._since = self._made = trio.current_time()

    def made(self) -> None:
        """There is a connection again."""
        self._made = trio.current_time()

    async def away(self, heard: bool, lost: object) -> None:
        """It was lost; `heard`: something came on it. Raises Unreachable."""
        now = trio.current_time()
        if heard or now > self._made + STOOD_SECONDS:
            self._count = 0
            self._since = now
            return
        if self._count and now > self._since + self._seconds:
            raise Unreachable(f"no connection stays: {lost}")
        await trio.sleep(pause_before(self._count))
        self._count += 1


def tls_context(
    *, wanted: bool, ca: Path | None, certificate: Path | None, key: Path | None
) -> ssl.SSLContext | None:
    """What a command's TLS flags mean; None: no TLS. Any of the files implies it. Raises UsageError."""
    if not (wanted or ca or certificate):
        return None
    if ca is not None:
        _check_readable("--ca", ca)
    try:
        context = client_context(ca)
    except ssl.SSLError as error:
        raise UsageError("--ca", f"{ca} is no PEM certificate ({error})") from None
    _show_ours(context, certificate, key)
    return context


def pinned_context(
    pinned: Path, *, certificate: Path | None, key: Path | None, named: bool
) -> ssl.SSLContext | None:
    """TLS with a server whose certificate is known, as its settings name it; None where we cannot read it.

    `named`: somebody said which host it is, so the certificate must have that name, and may also be one that
    the system trusts. Else it is this one alone, which proves more than any name. Raises UsageError.
    """
    try:
        first = _FIRST_CERTIFICATE.search(pinned.read_text(errors="replace"))
    except OSError:
        return None
    if first is None:
        return None
    try:
        context = client_context(pem=first[0])
    except ssl.SSLError:
        return None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    if named:
        context.load_default_certs()
    else:
        context.check_hostname = False
    _show_ours(context, certificate, key)
    return context


_FIRST_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
"""Of a chain, the server's own."""


def _show_ours(context: ssl.SSLContext, certificate: Path | None, key: Path | None) -> None:
    for flag, file in (("--certificate", certificate), ("--key-file", key)):
        if file is not None:
            _check_readable(flag, file)
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except ssl.SSLError as error:
            raise UsageError("--certificate", f"{certificate} and its key are not usable ({error})") from None


def _check_readable(flag: str, file: Path) -> None:
    # OpenSSL's own error does not say which file it is about.
    try:
        file.open("rb").close()
    except OSError as error:
        raise UsageError(flag, f"cannot read {file}: {error.strerror}") from None

"""How every client reaches its server: address, TCP or TLS, and why it was not reached."""

import errno
import os
import re
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import attrs

from shared.client.login import NOBODY, Login, Password, login_of, url_of
from shared.errors import EXIT_LOST, EXIT_UNAVAILABLE, BrokerError, UsageError
from shared.net.keepalive import is_loopback, keepalive
from shared.net.tls import client_context, in_words

if TYPE_CHECKING:
    import trio

CONNECT_SECONDS = 10.0
FIRST_ANSWER_SECONDS = 3.0
"""For a server's first answer. Another protocol's server may say nothing at all."""
LOGIN_SECONDS = 10.0
"""The same for the answer to a login: of many passwords that come together one is checked after another."""
KEEPALIVE_SECONDS = 30.0
"""Seconds of silence before TCP probes the server; after a minute of silence it counts as gone."""


class Disconnected(BrokerError):
    """The connection was lost. The server may or may not have done what was asked."""

    exit_code: ClassVar[int | None] = EXIT_LOST


class Unreachable(Disconnected):
    """No connection could be made in time, or the client is closed. The server was not asked."""

    exit_code = EXIT_UNAVAILABLE


class ClientClosed(Unreachable):
    """The client is closed, so it connects no more."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


def broke(why: BaseException | None) -> Disconnected:
    """The error for a connection that broke for this reason."""
    return Disconnected(f"the connection broke ({'reset' if why is None else in_words(why)})")


def check_plain(said: bytes | bytearray) -> None:
    """Check a server's first bytes on a plain connection. Raises Disconnected if the server speaks TLS."""
    if said.startswith(TLS_ALERT):
        raise Disconnected("the server speaks TLS: ask for it with --tls, or name its authority with --ca")


TLS_ALERT = b"\x15\x03"
"""The alert with which TLS answers plain bytes. None of our protocols' answers begins so."""


class How(TypedDict, total=False):
    """The keyword arguments of all clients: how to reach the server, and who the client is.

    `user` logs in with `password`, or with the first line of `password_file`; without these, BROKERS_USER and
    BROKERS_PASSWORD_FILE count. `tls` takes PEM files: `ca` to trust, `certificate` and `key` to show. Any of
    the files implies it, and `ssl_context` replaces them. The server's certificate must name the host, or
    `server_hostname`.
    """

    user: str | None
    password: str | Password | None
    password_file: str | Path | None
    tls: bool
    ca: str | Path | None
    certificate: str | Path | None
    key: str | Path | None
    ssl_context: ssl.SSLContext | None
    server_hostname: str | None


@attrs.frozen
class Address:
    """Where a server is, and how to reach it. `ssl_context`: TLS, for `host` or another `server_hostname`.

    `kind`: the server's protocol as users write it, for error texts. `login`: what the client logs in with.
    `retry_seconds`: how long a lost connection is tried again; None: nobody has said.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    server_hostname: str | None = None
    kind: str = attrs.field(kw_only=True)
    login: Login = attrs.field(default=NOBODY, kw_only=True)
    retry_seconds: float | None = attrs.field(default=None, kw_only=True)

    @classmethod
    def of(
        cls,
        host: str,
        port: int,
        *,
        kind: str,
        protocol: str,
        usual_user: str | None = None,
        retry_seconds: float | None = None,
        user: str | None = None,
        password: str | Password | None = None,
        password_file: str | Path | None = None,
        tls: bool = False,
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> Self:
        """The address from a client's arguments (`How`). `host` may be a URL; other arguments override its
        parts.

        `usual_user`: the user of a password that comes without one.

        Raises ValueError and UsageError, whose texts hold no password.
        """
        url = url_of(host, protocol, options=True)
        if url is not None:
            files: dict[str, Any] = dict(url.files)
            host, port, tls = url.host, url.port or port, tls or url.tls
            user, password_file = user or url.user, password_file or files.get("password_file")
            ca, key = ca or files.get("ca"), key or files.get("key")
            certificate = certificate or files.get("certificate")
            server_hostname = server_hostname or url.options.get("server_hostname")
            if retry_seconds is None:
                retry_seconds = url.options.get("retry_seconds")
        if ssl_context is None:
            paths = (None if each is None else Path(each) for each in (ca, certificate, key))
            ssl_context = tls_context(tls, *paths)
        login = login_of(user or (usual_user if password else None), password, password_file)
        if login.user and not login and ssl_context is None:
            raise ValueError(f"no password of {login.user}: give password or password_file, or a certificate")
        return cls(
            host, port, ssl_context, server_hostname, kind=kind, login=login, retry_seconds=retry_seconds
        )

    def not_answered(self, why: object) -> Unreachable:
        """The error for a peer that does not answer as a server of this protocol does."""
        return Unreachable(f"{self.host}:{self.port}: no {self.kind} server answers ({why})")


def tls_failed(address: Address, error: ssl.SSLError) -> ssl.SSLError:
    """The same error, which now names the server and says what to do."""
    error.filename, error.strerror = f"{address.host}:{address.port}", in_words(error)
    return error


def not_reached(address: Address, tried: Sequence[Exception]) -> ConnectionRefusedError:
    """The error for a server that no attempt has reached; `tried`: why, over all addresses of the host."""
    why = ", ".join(dict.fromkeys(map(_in_words, tried)))
    text = f"no {address.kind} server answers ({why})"
    return ConnectionRefusedError(errno.ECONNREFUSED, text, f"{address.host}:{address.port}")


def _in_words(error: Exception) -> str:
    if isinstance(error, UnicodeError):  # `a..b`
        return "no host can have that name"
    if isinstance(error, TimeoutError) and error.errno is None:
        return f"nothing in {CONNECT_SECONDS:g} s"
    if not isinstance(error, OSError):
        return str(error) or "reset"
    if (
        error.errno is not None and error.errno in errno.errorcode
    ):  # trio's own text has the address as a Python tuple in it
        return os.strerror(error.errno)
    return error.strerror or str(error) or "reset"


def probe(sock: "socket.socket | trio.socket.SocketType") -> None:
    """Turn on TCP's probes: a client that only waits for messages would not notice that the machine is
    gone."""
    try:
        if not is_loopback(sock.getpeername()[0]):
            for option in keepalive(KEEPALIVE_SECONDS):
                sock.setsockopt(*option)
    except OSError:  # the connection is gone already: the first read fails
        pass


def tls_context(
    wanted: bool, ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext | None:
    """The TLS context from a command's flags; None: no TLS. Any of the files implies TLS. Raises
    UsageError."""
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
    """TLS with a server whose certificate file is known from its settings; None if we cannot read the file.

    `named`: the user named the host, so the certificate must hold that name, and may be any that the system
    trusts. Else only this certificate is trusted, which proves more than a name. Raises UsageError.
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
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate need not be an authority's
    if named:
        context.load_default_certs()
    else:
        context.check_hostname = False
    _show_ours(context, certificate, key)
    return context


_FIRST_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
"""The first certificate of a PEM chain: the server's own."""


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
    # OpenSSL's error does not name the file.
    try:
        file.open("rb").close()
    except OSError as error:
        raise UsageError(flag, f"cannot read {file}: {error.strerror}") from None

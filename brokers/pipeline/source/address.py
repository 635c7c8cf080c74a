"""Where logs are, as options say it: data folders by their names, servers and how they are reached."""

import os
import ssl
from collections.abc import Hashable, Iterable

import attrs

from brokers.pipeline.source.option import flag, option, path, timeout
from shared.errors import ConfigError
from shared.net.tls import client_context

PORT = 8080


@attrs.frozen
class Server:
    """Where a server is."""

    host: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str) -> "Server":
        """`host`, `host:port`, `[v6]` or `[v6]:port`. Raises ValueError."""
        host, colon, port = text.strip(), "", ""
        if host.startswith("["):
            host, bracket, port = host[1:].partition("]")
            colon, port = port[:1], port[1:]
            if not bracket or colon not in ("", ":"):
                raise ValueError(f"{text.strip()!r} is not [address]:port")
        elif host.count(":") == 1:
            host, colon, port = host.partition(":")
        elif ":" in host and "/" not in host:
            raise ValueError(f"{host!r}: an IPv6 address stands in brackets, [{host}]:{PORT}")
        if not host or any(letter.isspace() or letter == "/" for letter in host):
            raise ValueError(f"{text.strip()!r} is not host:port")
        try:
            host.encode("idna")  # as whoever resolves it does
        except UnicodeError:
            raise ValueError(f"{host!r} is not the name of a host") from None
        if not colon:
            return cls(host)
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"{text.strip()!r}: {port!r} is not a port")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@attrs.frozen
class Reach:
    """How servers are reached: TLS, and how patiently. Files are read where the connection is made."""

    tls: bool = option("tls", flag, False)
    ca: str | None = option("tlsCa", path)
    certificate: str | None = option("tlsCertificate", path)
    key: str | None = option("tlsKey", path)
    connect_seconds: float = option("connectTimeoutMs", timeout, 10.0)
    reply_seconds: float = option("replyTimeoutMs", timeout, 60.0)
    """Without a single byte of an answer."""
    retry_seconds: float = option("retryTimeoutMs", timeout, 20.0)
    """Long enough for a server to be started again."""

    def context(self) -> ssl.SSLContext | None:
        """None: no TLS. Raises ConfigError for files that cannot be used."""
        if not (self.tls or self.ca or self.certificate):
            return None
        option, file = "tlsCa", self.ca
        try:
            context = client_context(self.ca)
            if self.certificate is not None:
                option, file = "tlsCertificate", self.certificate
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:
            raise ConfigError(option, f"{file} cannot be used: {error.strerror or error}") from None
        return context


def parse_servers(text: str) -> tuple[Server, ...]:
    """`host:port,host:port`. Raises ValueError."""
    servers = tuple(Server.parse(each) for each in text.split(",") if each.strip())
    if not servers:
        raise ValueError("names no server; host:port,host:port is expected")
    twice = {str(each) for each in servers if servers.count(each) > 1}
    if twice:
        raise ValueError(f"names {min(twice)} twice")
    return servers


def folder_id(path: str) -> Hashable:
    """What all names of a folder have in common; where there is none, of the name alone."""
    try:
        found = os.stat(path)
    except OSError:  # whoever opens it says so
        return os.path.abspath(path)
    return found.st_dev, found.st_ino


def once_each(paths: Iterable[str]) -> tuple[str, ...]:
    """Each data folder once, by the first of the names that are given for it."""
    found: dict[Hashable, str] = {}
    for each in paths:
        found.setdefault(folder_id(each), each)
    return tuple(found.values())

"""The settings of the network, each with its default and its reason; sections `[net]`, `[tls]`
and `[client]`."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators

from shared.units import GIB, KIB, MIB, RESTART, limit


def _bare(host: str | None) -> str | None:
    """`[::1]`, as addresses with ports have it, is `::1`."""
    return host[1:-1] if host and host[:1] == "[" and host[-1:] == "]" else host


def _an_address(_: Any, field: "attrs.Attribute[Any]", value: str | None) -> None:
    if value is None:
        return
    if not value.strip() or "\0" in value:
        raise ValueError("name an address")
    if ":" in value:
        try:
            ipaddress.IPv6Address(value)
        except ValueError:
            raise ValueError(f"{value!r} is no address; ports are the protocols' own settings") from None


def host_setting(default: str | None = None) -> Any:
    """A field for an address to bind."""
    return attrs.field(default=default, converter=_bare, validator=_an_address, metadata=RESTART)


@attrs.frozen
class NetSettings:
    """Section `[net]`."""

    connections_max: int = attrs.field(default=20_000, validator=validators.ge(1))
    """Connections of all protocols together; fewer if the limit on open files, less the reserved ones, is
    lower."""
    connections_per_address_max: int = attrs.field(default=1_000, validator=validators.ge(1))
    """Connections from one peer address; loopback is exempt."""
    backlog: int = limit(4096, 1, 1_000_000, restart=True)
    """Connections that the kernel queues while the server is busy; it caps this at net.core.somaxconn."""
    read_bytes_max: int = limit(512 * KIB, 1, GIB, restart=True)
    """Bytes of one read, and so of one batch."""
    outbox_bytes_max: int = attrs.field(default=1 * MIB, validator=validators.ge(1))
    """Unsent bytes of one connection above which its input waits; pushing protocols set their own."""
    outboxes_memory_percent: float = attrs.field(
        default=25.0, validator=[validators.gt(0), validators.le(100)]
    )
    """The share of the process's memory for unsent bytes and unfinished large messages together. Above it the
    largest backlog is shed first."""
    handshake_seconds: float = attrs.field(default=5.0, validator=validators.gt(0))
    """The longest time of a TLS handshake."""
    first_request_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time from the connection (with TLS: from its handshake) to the first whole request. That is
    a line of LogMQ, DMS's handshake, a subscriber's id, a role of KqueueMsgQ, AMQP's connection.open, or
    DMP's lease. Then the connection is closed. At most 10 s where a login is required (AMQP and DMP:
    `dmp.login_seconds`)."""
    linger_seconds: float = attrs.field(default=1.0, validator=validators.gt(0))
    """How long input is read and dropped after the last answer, so that the peer can read that answer."""
    flush_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """A finished connection is closed when its peer reads nothing of the remaining bytes for so long."""
    keepalive_seconds: float = attrs.field(
        default=30.0, validator=[validators.gt(0), validators.le(32_767)], metadata=RESTART
    )
    """Silence after which TCP probes the peer, then three times at a third of it. Not on listeners bound to
    loopback. The maximum is Linux's (tcp(7), TCP_KEEPIDLE)."""
    user_timeout_seconds: float = attrs.field(
        default=15.0, validator=[validators.gt(0), validators.le(86_400)], metadata=RESTART
    )
    """A peer that does not acknowledge sent data for so long counts as gone."""
    udp_receive_buffer_bytes: int = limit(64 * MIB, 1, GIB, restart=True)
    """The receive buffer of UDP sockets; the system may give less (net.core.rmem_max)."""


CertificateUser = Literal["cn", "san", ""]


@attrs.frozen
class ProtocolAccessSettings:
    """Section `[<protocol>.access]`."""

    required: Literal["beyond-loopback", "always", "never"] | None = None
    """Where this protocol's clients must log in; unset: as `access.required`."""


@attrs.frozen
class TlsSettings:
    """Section `[tls]`, or a protocol's own. All empty: no TLS."""

    certificate: Path | None = None
    """PEM: the server's certificate, then the intermediate ones up to its root."""
    key: Path | None = None
    """PEM: the private key; may be in the certificate's file."""
    client_ca: Path | None = None
    """PEM: authorities of clients. With it every client must show a certificate from them (mutual TLS).
    Without it TLS encrypts, and admits every client."""

    @property
    def enabled(self) -> bool:
        """Whether TLS is on: also if only a key or an authority is named, which cannot mean plain text."""
        return not (self.certificate is self.key is self.client_ca is None)

    def files(self) -> Iterator[Path]:
        """The files that these settings name."""
        return (path for path in (self.certificate, self.key, self.client_ca) if path is not None)


@attrs.frozen
class ClientSettings:
    """Section `[client]`: how commands reach a server. Its port is that of its protocol's section."""

    host: str | None = None
    """The server's address; unset: `serve.host`, or loopback if that stands for all addresses."""
    tls: bool | None = None
    """Whether to use TLS; unset: if `[tls]` or the protocol's own section turns it on for the server."""
    ca: Path | None = None
    """PEM: authorities of servers; unset: the system's, and the certificate in `[tls]`."""
    certificate: Path | None = None
    """PEM: the client's certificate, for servers that require one (`tls.client_ca`)."""
    key: Path | None = None
    """PEM: the client's private key; may be in the certificate's file."""

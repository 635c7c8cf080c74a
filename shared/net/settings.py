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
    """All protocols together; lowered where the file limit less the descriptors kept back allows fewer."""
    connections_per_address_max: int = attrs.field(default=1_000, validator=validators.ge(1))
    """From one peer address; loopback is exempt."""
    backlog: int = limit(4096, 1, 1_000_000, restart=True)
    """Connections the kernel holds for us while we are busy; it caps this at net.core.somaxconn."""
    read_bytes_max: int = limit(512 * KIB, 1, GIB, restart=True)
    """Bytes of one read, and so of one batch."""
    outbox_bytes_max: int = attrs.field(default=1 * MIB, validator=validators.ge(1))
    """Unsent bytes of one connection above which its input waits; pushing protocols set their own."""
    outboxes_memory_percent: float = attrs.field(
        default=25.0, validator=[validators.gt(0), validators.le(100)]
    )
    """All unsent bytes, and those of large messages that are not all there, together, of the memory that this
    process may use; the largest pays first."""
    handshake_seconds: float = attrs.field(default=5.0, validator=validators.gt(0))
    """For a TLS handshake."""
    first_request_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """From the connection (with TLS: from its handshake) to the first whole request: a line of LogMQ, DMS's
    handshake, a subscriber's id, a role of KqueueMsgQ. Who says nothing is closed. At most 10 s
    where a login is required. (For AMQP and DMP there is `dmp.login_seconds`.)"""
    linger_seconds: float = attrs.field(default=1.0, validator=validators.gt(0))
    """Reading and throwing away input after the last word, so that the peer can read it."""
    flush_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """A finished connection whose peer takes nothing of what is left for so long is closed."""
    keepalive_seconds: float = attrs.field(
        default=30.0, validator=[validators.gt(0), validators.le(32_767)], metadata=RESTART
    )
    """Silence after which TCP asks whether the peer is still there; then three times at a third of it. Not
    where a listener is bound to loopback. Linux takes no more (tcp(7), TCP_KEEPIDLE)."""
    user_timeout_seconds: float = attrs.field(
        default=15.0, validator=[validators.gt(0), validators.le(86_400)], metadata=RESTART
    )
    """Sent data unacknowledged for so long: the peer is gone."""
    driver: Literal["auto", "stream"] = attrs.field(default="auto", metadata=RESTART)
    """`auto`: the poll driver for plain TCP where there is epoll; `stream`: a task per connection always."""
    udp_receive_buffer_bytes: int = limit(64 * MIB, 1, GIB, restart=True)
    """Asked for; the system may give less (net.core.rmem_max)."""


CertificateUser = Literal["cn", "san", ""]


@attrs.frozen
class ProtocolAccessSettings:
    """Section `[<protocol>.access]`."""

    required: Literal["beyond-loopback", "always", "never"] | None = None
    """Where this protocol's clients have to log in; else as `access.required` has it."""


@attrs.frozen
class TlsSettings:
    """Section `[tls]`, or a protocol's own. All empty: no TLS."""

    certificate: Path | None = None
    """PEM: the server's certificate, then those between it and its root."""
    key: Path | None = None
    """PEM: the private key; may be in the certificate's file."""
    client_ca: Path | None = None
    """PEM: authorities of clients; with it every client must show a certificate of theirs (mutual TLS).
    Without it TLS encrypts, and lets everybody in."""

    @property
    def enabled(self) -> bool:
        """Also where only a key or an authority is named: that is no way to ask for plain text."""
        return not (self.certificate is self.key is self.client_ca is None)

    def files(self) -> Iterator[Path]:
        """What it is read from."""
        return (path for path in (self.certificate, self.key, self.client_ca) if path is not None)


@attrs.frozen
class ClientSettings:
    """Section `[client]`: how commands reach a server. Its port is that of its protocol's section."""

    host: str | None = None
    """The server's address; else `serve.host`, and this machine's own where that stands for all of them."""
    tls: bool | None = None
    """Whether to speak TLS; unless said, where `[tls]` or the protocol's own says that the server does."""
    ca: Path | None = None
    """PEM: authorities of servers; else the system's, and the certificate that `[tls]` names."""
    certificate: Path | None = None
    """PEM: our own certificate, where the server asks for one (`tls.client_ca`)."""
    key: Path | None = None
    """PEM: its private key; may be in the certificate's file."""

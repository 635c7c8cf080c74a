"""The host's own settings: the section `[serve]`."""

from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators

from shared.access import Required
from shared.net.settings import CertificateUser, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import RESTART, limit

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _not_empty(_: Any, field: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("name at least one protocol, or all")


@attrs.frozen
class ServeSettings:
    """What `brokers serve` does, apart from any protocol."""

    enable: tuple[str, ...] = attrs.field(default=("all",), validator=_not_empty, metadata=RESTART)
    """`all`, or names of protocols."""
    host: str = host_setting("127.0.0.1")
    """The address to bind. What other machines reach takes TLS with `client_ca`, or `insecure`."""
    data_dir: Path = attrs.field(default=Path("data"), metadata=RESTART)
    """The folder of all that is on disk."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """For every protocol whose own section says nothing else."""
    log_level: LogLevel = "info"
    """The least that is logged."""
    log_format: LogFormat = attrs.field(default="text", metadata=RESTART)
    """Of log lines: `json` is an object a line."""
    definitions: Path | None = attrs.field(default=None, metadata=RESTART)
    """JSON, as `GET /api/v1/definitions` has it: queues, topics, exchanges, bindings, groups and users that a
    start makes where they are not there."""
    drain_seconds: float = attrs.field(default=10.0, validator=[validators.ge(0), validators.le(3600)])
    """How long a stop waits for what is owed: no longer than the 10 s that container runtimes give
    before they kill."""
    insecure: bool = False
    """Serve everybody who reaches the address from other machines, in the clear or over TLS."""


@attrs.frozen
class AccessSettings:
    """Section `[access]`: who has to log in, and who may."""

    users_file: Path | None = None
    """TOML: users, their passwords' hashes and their rules; `users.toml` in the data folder unless set."""
    required: Required = "beyond-loopback"
    """Where clients have to log in: `beyond-loopback`, where other machines reach a listener and there are
    users; `always`; or `never`."""
    certificate_user: CertificateUser = "cn"
    """Where a client certificate names its user: `cn`, its common name; `san`, its first DNS name; or empty,
    then certificates are no logins."""


@attrs.frozen
class AdminSettings:
    """Section `[admin]`: operating over TCP, beside the control socket."""

    enabled: bool = attrs.field(default=True, metadata=RESTART)
    """Whether there is one. (A protocol's own `serve` has it only where it is told to.)"""
    port: int = limit(15800, 0, 65535, restart=True)
    """Where it is taken, a server that was not told this port is served without."""
    host: str = host_setting("127.0.0.1")
    """The address to bind. Every request that other machines can send needs a login."""
    names: tuple[str, ...] = ()
    """Names by which browsers reach it, beside the address: what `Host` may be."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[admin.tls]`: instead of `[tls]`."""

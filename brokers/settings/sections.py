"""The host's own settings: the section `[serve]`."""

from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators

from shared.access import USER_SHARE, Required
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
    """The address to bind. One that other machines reach needs TLS with `client_ca`, or `insecure`."""
    data_dir: Path = attrs.field(default=Path("data"), metadata=RESTART)
    """The data folder, which holds all data on disk."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """The durability of every protocol whose own section has none."""
    log_level: LogLevel = "info"
    """The lowest level that is logged."""
    log_format: LogFormat = attrs.field(default="text", metadata=RESTART)
    """The form of log lines: `json` is an object a line."""
    definitions: Path | None = attrs.field(default=None, metadata=RESTART)
    """A JSON file as from `GET /api/v1/definitions`. A start creates the queues, topics, exchanges, bindings,
    groups and users in it that do not exist."""
    drain_seconds: float = attrs.field(default=10.0, validator=[validators.ge(0), validators.le(3600)])
    """How long a stop waits for open answers: no longer than the 10 s after which container runtimes kill."""
    insecure: bool = False
    """Serve everybody who reaches the address from other machines, in the clear or over TLS."""


@attrs.frozen
class AccessSettings:
    """Section `[access]`: which clients must log in, and which users there are."""

    users_file: Path | None = None
    """TOML: users, their passwords' hashes and their rules; `users.toml` in the data folder unless set."""
    required: Required = "beyond-loopback"
    """Where clients must log in. `beyond-loopback`: on listeners that other machines reach, if there are
    users; `always`; or `never`."""
    certificate_user: CertificateUser = "cn"
    """The part of a client certificate that names its user: `cn`, the common name; `san`, the first DNS name.
    Empty: certificates are no logins."""
    user_share: int = limit(USER_SHARE, 1, 100)
    """The percent of every bound that one user may have while others are known. A user's own `user_share` in
    the users file replaces it."""


@attrs.frozen
class AttentionSettings:
    """Section `[attention]`: from when on something needs a person."""

    oldest_seconds: float = attrs.field(default=3600.0, validator=validators.ge(0))
    """The age of a queue's oldest ready message from which on the queue needs a person. 0: never."""
    lag_seconds: float = attrs.field(default=3600.0, validator=validators.ge(0))
    """How long the next record of a group may have waited while the group falls back further. 0: for ever."""


@attrs.frozen
class AdminSettings:
    """Section `[admin]`: the admin port, for operating over TCP beside the control socket."""

    enabled: bool = attrs.field(default=True, metadata=RESTART)
    """Whether there is an admin port. A protocol's own `serve` has one only if a flag asks for it."""
    port: int = limit(15800, 0, 65535, restart=True)
    """The admin port. If it is taken and was not set explicitly, the server starts without one."""
    host: str = host_setting("127.0.0.1")
    """The address to bind. Requests from other machines always need a login."""
    names: tuple[str, ...] = ()
    """Host names by which browsers reach the admin port, beside the address: allowed values of `Host`."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[admin.tls]`, in place of `[tls]`."""

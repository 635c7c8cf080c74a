"""The host's own settings: the section `[serve]`."""

import ipaddress
from pathlib import Path
from typing import Any, Literal

import attrs
from attrs import validators

from shared.storage.settings import Durability

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


def _not_empty(_: Any, field: "attrs.Attribute[Any]", value: tuple[str, ...]) -> None:
    if not value:
        raise ValueError("name at least one protocol, or all")


def _bare(host: str) -> str:
    """`[::1]`, as addresses with ports have it, is `::1`."""
    return host[1:-1] if host[:1] == "[" and host[-1:] == "]" else host


def _an_address(_: Any, field: "attrs.Attribute[Any]", value: str) -> None:
    if not value.strip() or "\0" in value:
        raise ValueError("name an address")
    if ":" in value:
        try:
            ipaddress.IPv6Address(value)
        except ValueError:
            raise ValueError(f"{value!r} is no address; ports are the protocols' own settings") from None


@attrs.frozen
class ServeSettings:
    """What `brokers serve` does, apart from any protocol."""

    enable: tuple[str, ...] = attrs.field(default=("all",), validator=_not_empty)
    """`all`, or names of protocols."""
    host: str = attrs.field(default="127.0.0.1", converter=_bare, validator=_an_address)
    """The address to bind. What other machines reach takes TLS with `client_ca`, or `insecure`."""
    data_dir: Path = Path("data")
    """The folder of all that is on disk."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"))
    """For every protocol whose own section says nothing else."""
    log_level: LogLevel = "info"
    """The least that is logged."""
    log_format: LogFormat = "text"
    """Of log lines: `json` is an object a line."""
    drain_seconds: float = attrs.field(default=10.0, validator=[validators.ge(0), validators.le(3600)])
    """How long a stop waits for what is owed: no longer than the 10 s that container runtimes give
    before they kill."""
    insecure: bool = False
    """Serve everybody who reaches the address from other machines, in the clear or over TLS."""

"""Finds a protocol's server, the same way for all commands that speak to it.

Flags win over `BROKERS_<SECTION>_<KEY>`, these over the file that `--config` or `BROKERS_CONFIG` names, and
that over defaults. `brokers serve` reads the same settings, so a command finds what it started.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokers.errors import ExitCode, Refusal
from shared.cli.options import Place
from shared.plugin import Plugin

DEFAULT_HOST = "127.0.0.1"
_EVERYWHERE = {"": DEFAULT_HOST, "*": DEFAULT_HOST, "0.0.0.0": DEFAULT_HOST, "::": "::1"}
"""Addresses that mean all of a machine's, and the one of these that is dialled."""


def find(kind: type[Place], plugin: Plugin, given: Mapping[str, Any], config: Path | None) -> Place:
    """Return a `Place` or `Server` from the flags that were `given`, and from settings for the rest.

    Raises InvalidSettings, and Refusal if nothing says which port it is.
    """
    said = {name: value for name, value in given.items() if value}
    found = {**_settled(plugin, config), **said}
    if "host" in said:
        found["named"] = True
    if not found["port"]:
        text = f"{plugin.name}.port is 0: the system picked one, which `brokers status` shows; say --port"
        raise Refusal(text, ExitCode.CONFIGURATION)
    if kind is Place:
        return Place(host=found["host"], port=found["port"], settings=found["settings"])
    return kind(**found)


def _settled(plugin: Plugin, file: Path | None) -> dict[str, Any]:
    """Return what the settings say, by the fields of `Server`."""
    if file is None and not any(name.startswith("BROKERS_") for name in os.environ):
        # The usual case, kept quick: reading settings takes as long as all else before the connection.
        settings = plugin.settings()
        return {"host": DEFAULT_HOST, "port": settings.port, "settings": settings, "named": False}
    from brokers.config import load

    config = load([plugin], file=file, environ=os.environ, alone=True)
    client, (_, tls) = config.client, config.tls_of(plugin.name)
    (_, host), settings = config.host_of(plugin.name), config.protocols[plugin.name]
    return {
        "host": client.host or _EVERYWHERE.get(host, host),
        "named": client.host is not None,
        "port": settings.port,
        "settings": settings,
        "tls": tls.enabled if client.tls is None else client.tls,
        "ca": client.ca,
        "certificate": client.certificate,
        "key": client.key,
        "pinned": tls.certificate,
    }

"""Finds a protocol's server, the same way for all commands that speak to it.

Flags win over what `--host` says as a URL, and this over `BROKERS_<SECTION>_<KEY>`. Then come the file that
`--config` or `BROKERS_CONFIG` names, and defaults. `brokers serve` reads the same settings, so a command
finds what it started.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brokers.errors import ExitCode, Failure
from shared.cli.options import Place
from shared.client.login import VARIABLES, url_of
from shared.errors import UsageError
from shared.plugin import Plugin

DEFAULT_HOST = "127.0.0.1"
_EVERYWHERE = {"": DEFAULT_HOST, "*": DEFAULT_HOST, "0.0.0.0": DEFAULT_HOST, "::": "::1"}
"""Addresses that mean all of a machine's, and the one of these that is dialled."""


def find(kind: type[Place], plugin: Plugin, given: Mapping[str, Any], config: Path | None) -> Place:
    """Return a `Place` or `Server` from the flags that were `given`, and from settings for the rest.

    Raises InvalidSettings, and Failure if nothing says which port it is.
    """
    said = {name: value for name, value in given.items() if value}
    settled = _settled(plugin, config)
    found = {**settled, **_of_url(plugin, settled["host"], "client.host"), **said}
    if "host" in said:
        rest = {name: value for name, value in said.items() if name != "host"}
        found = {**found, **_of_url(plugin, said["host"], "--host"), **rest, "named": True}
    if not found["port"]:
        text = f"{plugin.name}.port is 0: the system picked one, which `brokers status` shows; say --port"
        raise Failure(text, ExitCode.CONFIGURATION)
    if kind is Place:
        return Place(host=found["host"], port=found["port"], settings=found["settings"])
    return kind(**found)


def _of_url(plugin: Plugin, host: str, where: str) -> dict[str, Any]:
    """Return what a host that is a URL says, by the fields of `Server`. Raises UsageError."""
    try:
        url = url_of(host, plugin.name)
    except ValueError as error:
        raise UsageError(where, str(error)) from None
    if url is None:
        return {"host": host}
    files = {name: Path(value) for name, value in url.files.items()}
    said = {"host": url.host, "port": url.port, "tls": url.tls, "user": url.user, **files}
    return {name: value for name, value in said.items() if value}


def _settled(plugin: Plugin, file: Path | None) -> dict[str, Any]:
    """Return what the settings say, by the fields of `Server`."""
    if file is None and not any(name.startswith("BROKERS_") for name in os.environ if name not in VARIABLES):
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

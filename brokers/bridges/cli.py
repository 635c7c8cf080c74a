"""`brokers bridge ...`: list, pause, resume, reset and try the bridges of a running server."""

import sys
from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.flags import with_admin_flags, with_table_flags
from brokers.render import Listing
from brokers.server_address import ServerAddress
from shared.cli.app import protocol_app
from shared.cli.options import Json
from shared.errors import UsageError
from shared.objects import BRIDGES

BODY_BYTES_MAX = 700_000
"""The largest message to try: in base64 it fits one request of the admin port."""

app, command = protocol_app(
    "bridge",
    "Bridges: messages that came in by one protocol go out by another.",
    "list",
    "pause sensors",
    "reset jobs-to-log --to first",
)

Name = Annotated[str, Parameter(help="The bridge's name.")]


@command("list", "list --json", name="list")
@with_admin_flags
@with_table_flags
def list_(*, at: ServerAddress, json: Json = False) -> Listing:
    """List the bridges: state, guarantee, counts, lag, and the last error of each."""
    rows = at.client().rows(BRIDGES.name)
    return Listing(rows, {column.name: column.unit for column in BRIDGES.columns})


@command("pause sensors")
@with_admin_flags
def pause(name: Name, *, at: ServerAddress, json: Json = False) -> Mapping[str, Any]:
    """Have a bridge carry nothing until it is resumed; a restart keeps it so."""
    return {"bridge": name, **_ask(at, name, "pause")}


@command("resume sensors")
@with_admin_flags
def resume(name: Name, *, at: ServerAddress, json: Json = False) -> Mapping[str, Any]:
    """Have a bridge that was paused carry again, from where it was."""
    return {"bridge": name, **_ask(at, name, "resume")}


@command("reset jobs-to-log --to first", "reset jobs-to-log --to 2026-07-01T00:00:00Z")
@with_admin_flags
def reset(
    name: Name,
    *,
    to: Annotated[str, Parameter(help="first, end, an offset, or a time (RFC 3339).")],
    at: ServerAddress,
    json: Json = False,
) -> Mapping[str, Any]:
    """Have a bridge from logs begin anew at another place."""
    return {"bridge": name, **_ask(at, name, "reset", to=to)}


@command("test sensors --name home/kitchen/temperature < message", name="test")
@with_admin_flags
def try_out(
    bridge: Name,
    *,
    name: Annotated[str, Parameter(help="Of the message's topic or queue.")] = "",
    key: Annotated[str, Parameter(help="Its routing key.")] = "",
    at: ServerAddress,
    json: Json = False,
) -> Mapping[str, Any]:
    """Say what would become of the message on standard input; nothing is sent."""
    body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise UsageError("standard input", f"a message to try has at most {BODY_BYTES_MAX} bytes")
    return _ask(at, bridge, "test", name=name, key=key, base64=b64encode(body).decode())


def _ask(at: ServerAddress, bridge: str, action: str, **arguments: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = at.client().post(BRIDGES.name, bridge, action, **arguments)
    return found

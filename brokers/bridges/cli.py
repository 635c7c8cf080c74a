"""`brokers bridge ...`: list, make, change, delete, pause, reset and try the bridges of a running server."""

import sys
import time
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.bridges.actions import CHANGE, CREATE, DELETE, PAUSE, RESUME
from brokers.commands.flags import host_app
from brokers.commands.render import Listing
from brokers.commands.server_address import ServerAddress
from shared.cli.objects import action_command
from shared.cli.options import Json
from shared.errors import UsageError
from shared.objects import BRIDGES
from shared.units import moment_ms

BODY_BYTES_MAX = 700_000
"""The largest message to try: in base64 it fits one request of the admin port."""

app, command = host_app(
    "bridge",
    "Bridges: messages that came in by one protocol go out by another.",
    "list",
    "create hall --from 'pubsub:hall/*' --to logmq:hall",
    "reset jobs-to-log --to first",
)

Name = Annotated[str, Parameter(help="The bridge's name.")]


@command("list", "list --json", name="list")
def list_(*, at: ServerAddress, json: Json = False) -> Listing:
    """List the bridges: state, guarantee, counts, lag, and the last error of each."""
    rows = at.client().rows(BRIDGES.name)
    return Listing(rows, {column.name: column.unit for column in BRIDGES.columns})


command("create hall --from 'pubsub:hall/*' --to logmq:hall --as json", name="create")(
    action_command("", BRIDGES.name, CREATE, {"bridge": Name}, makes=True)
)
command("change sensors --rate 100/s --dry-run", "change sensors --unset rate", name="change")(
    action_command("", BRIDGES.name, CHANGE, {"bridge": Name}, unsets=True)
)
command("delete sensors --dry-run", name="delete")(action_command("", BRIDGES.name, DELETE, {"bridge": Name}))
command("pause sensors", name="pause")(action_command("", BRIDGES.name, PAUSE, {"bridge": Name}))
command("resume sensors", name="resume")(action_command("", BRIDGES.name, RESUME, {"bridge": Name}))


@command("reset jobs-to-log --to first", "reset jobs-to-log --to '1h ago'")
def reset(
    name: Name,
    *,
    to: Annotated[
        str,
        Parameter(
            help="first, end, an offset, or a time: 30m ago, 1h, 2d; 2026-01-31T12:00 (local unless it says)."
        ),
    ],
    at: ServerAddress,
    json: Json = False,
) -> Mapping[str, Any]:
    """Have a bridge from logs begin anew at another place."""
    return {"bridge": name, **_ask(at, name, "reset", to=_position(to))}


def _position(said: str) -> str:
    """What the API takes: it has times in RFC 3339 alone. Raises UsageError."""
    if said in ("first", "end") or (said.isdecimal() and said.isascii()):
        return said
    try:
        at = moment_ms(said, time.time_ns() // 1_000_000)
    except ValueError:
        text = f"{said!r} is no time; understood: first, end, an offset, 30m ago, 1h, 2d, 2026-01-31T12:00"
        raise UsageError("--to", text) from None
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


@command("test sensors --name home/kitchen/temperature < message", name="test")
def try_out(
    bridge: Name,
    *,
    name: Annotated[str, Parameter(help="Of the message's topic or queue; AMQP's is --key.")] = "",
    key: Annotated[
        str, Parameter(help="An AMQP message's routing key, which is its name, too; or a job's key.")
    ] = "",
    at: ServerAddress,
    json: Json = False,
) -> Mapping[str, Any]:
    """Say what would become of the message on standard input; nothing is sent."""
    body = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(body) > BODY_BYTES_MAX:
        raise UsageError("standard input", f"a message to try has at most {BODY_BYTES_MAX} bytes")
    return _ask(at, bridge, "test", name=name, key=key, base64=b64encode(body).decode())


def _ask(at: ServerAddress, bridge: str, action: str, **arguments: Any) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = at.client().post(BRIDGES.name, bridge, action, **arguments)
    return answer

"""`brokers find`: the messages of all queues and topics that have a text in them."""

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.commands.control import PAGE
from brokers.commands.flags import host_command
from brokers.commands.render import CommandResult, Listing
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode
from shared.cli.commands import warn
from shared.cli.options import Json, at_least_one

SHOWN = ("kind", "protocol", "name", "position", "time", "bytes", "text", "base64")
UNITS = {"position": "", "time": "time", "bytes": "bytes"}


@host_command("find", "find 'order 42'", "find 'order 42' --max 1 --json")
def find(
    contains: Annotated[str, Parameter(name="--contains", help="The text.")],
    *,
    max_: Annotated[
        int, Parameter(name=("--max", "-n"), help="Messages at most.", validator=at_least_one)
    ] = 20,
    at: ServerAddress,
    json: Json = False,
) -> CommandResult:
    """Find the messages of queues and topics that have a text in them.

    Of a queue the first 100,000 messages are looked at, of a topic the last
    100,000 records, of each 64 MiB at most; 10 of each are shown. The exit code is
    66 where there is none.
    """
    client, query = at.client(), {"contains": contains}
    rows: list[Mapping[str, Any]] = []
    partly: list[str] = []
    while True:
        answer = client.get("search", **query, limit=min(max_ - len(rows), PAGE))
        rows += [{name: row[name] for name in SHOWN if name in row} for row in answer["items"]]
        partly += answer["partly"]
        if answer["next"] is None or len(rows) >= max_:
            break
        query["after"] = answer["next"]
    if partly:
        warn(f"there may be more in {', '.join(partly)}")
    return CommandResult(Listing(rows, UNITS), ExitCode.OK if rows else ExitCode.MISSING)

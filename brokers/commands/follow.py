"""`brokers logs` and `brokers trace`: what the server says, and what passes it, as a list or as it comes."""

import json as json_text
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from cyclopts import Parameter

from brokers.commands.control import ROOT, AdminClient
from brokers.commands.flags import host_command
from brokers.commands.render import Following, cell
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from brokers.escape import escape
from brokers.host.logs import line_of
from shared.cli.options import Json, Max, at_least_one, flag

Row = Mapping[str, Any]


@host_command("logs", "logs", "logs -f --level warning", "logs --level refused", "logs --level audit --json")
def logs(
    *,
    follow: Annotated[bool, flag("Go on with each new line, until interrupted.", "--follow", "-f")] = False,
    level: Annotated[
        Literal["debug", "info", "warning", "error", "audit", "refused"] | None,
        Parameter(
            help="Lines of this level and above; audit: those of the audit log; refused: what was refused, "
            "with warnings and errors."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        Parameter(
            name=("--limit", "-n"),
            help="Of the lines before now, so many; 200 are kept.",
            validator=at_least_one,
        ),
    ] = None,
    at: ServerAddress,
    json: Json = False,
) -> Any:
    """Show the running server's log."""
    client = at.client()
    query = {} if level is None else {"level": level}
    if limit is not None or not follow:
        last = {} if limit is None else {"limit": limit}
        rows: Sequence[Row] = client.get("logs", **{**query, **last})["items"]
        if not follow:
            return rows if json else "\n".join(map(log_line, rows)) or None
    else:
        rows = ()
    behind = {"after": rows[-1]["id"]} if rows else {}
    coming = followed(client, "logs", {**query, **behind})
    return Following(row if json else log_line(row) for row in chain(rows, coming))


@host_command("trace", "trace orders", "trace 'web.*' --max 10", "trace orders --json | jq -r .text")
def trace(
    name: Annotated[
        str, Parameter(help="A topic, queue, exchange or routing key; * and ? stand for any characters.")
    ],
    *,
    max_: Max = None,
    at: ServerAddress,
    json: Json = False,
) -> Following:
    """Show copies of messages that pass a name, in any protocol, until interrupted.

    Of each protocol it is 50 a second at most, and the first 4 KiB of each: a trace
    slows nothing. It is told in the audit log.
    """
    return Following(_traced(at.client(), name, max_, json))


def _traced(client: AdminClient, name: str, most: int | None, json: bool) -> Iterator[Any]:
    count = 0
    for row in followed(client, "trace", {"name": name}):
        yield row if json else _message_line(row)
        count += "missed" not in row
        if count == most:
            return


def followed(client: AdminClient, what: str, query: Mapping[str, Any]) -> Iterator[Row]:
    """Rows that the server sends as events; `{"missed": n}` where it kept some no more. Raises Failure."""
    event = ""
    for line in client.lines(f"{ROOT}/{what}?{urlencode({**query, 'follow': 1})}"):
        field, _, value = line.partition(": ")
        if field == "event":
            event = value
        elif field == "data":
            row = json_text.loads(value)
            yield {"missed": row["count"]} if event == "missed" else row
        elif not line:
            event = ""
    raise Failure(f"{client.name} has ended this", ExitCode.LOST)


def log_line(row: Row) -> str:
    """A line as the server writes it."""
    if "missed" in row:
        return _missed(row)
    return "\n".join(escape(line) for line in line_of(row).split("\n"))


def _message_line(row: Row) -> str:
    if "missed" in row:
        return _missed(row)
    text = row["text"] if "text" in row else f"base64:{row.get('base64', '')}"
    about = {
        name: value
        for name, value in row.items()
        if name not in ("id", "time", "protocol", "name", "bytes", "text", "base64", "position")
        and value not in (None, "", [], {})
    }
    more = "".join(f" {name}={cell(value)}" for name, value in about.items())
    return escape(f"{row['time']} {row['protocol']} {row['name']}{more}  {row['bytes']} B  {text}")


def _missed(row: Row) -> str:
    return f"... {row['missed']} are missing here: they came faster than they were sent"

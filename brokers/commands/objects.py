"""Lists of what runs, with the columns of the API: `brokers queues`, `connections` ...; and `kick`."""

from collections.abc import Callable, Mapping, Sequence
from textwrap import fill
from typing import Annotated, Any

from cyclopts import App, Parameter

from brokers.commands.catalog import NOUNS
from brokers.commands.control import PAGE, AdminClient
from brokers.commands.flags import host_command
from brokers.commands.render import CommandResult, Listing, Watched
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from brokers.escape import escape
from shared.cli.commands import warn
from shared.cli.options import Json, at_least_one, flag
from shared.errors import UsageError
from shared.objects import KINDS, UNSORTED, ObjectKind

SMALLEST_FIRST = ("", "time", "flag")
"""Units of columns by which the first is not the largest."""

EXAMPLES = {"user": "ann", "queue": "jobs", "group": "billing", "client": "A", "type": "topic"}
EXAMPLES |= {"exchange": "amq.topic", "source": "environment", "kind": "bridge"}
"""A value for the example below a list's help, by the filter that takes it."""


def __getattr__(name: str) -> App:
    """The command that lists a kind: what `app.command("brokers.commands.objects:queues")` imports."""
    if name not in KINDS:
        raise AttributeError(name)
    return list_app(KINDS[name])


def list_app(kind: ObjectKind) -> App:
    wide = max(len(column.name) for column in kind.columns)
    columns = "\n".join(
        fill(
            column.help, 80, initial_indent=f"    {column.name:<{wide}}  ", subsequent_indent=" " * (wide + 6)
        )
        for column in kind.columns
    )
    own = [f"{kind.name} {name}={EXAMPLES[name]}" for name in kind.filters if name in EXAMPLES][:1]
    before = f"Columns, which --columns and --sort take:\n\n{columns}\n\n"
    command = host_command(kind.name, kind.name, *own, f"{kind.name} 'a*' --json", before=before)
    return command(_list_verb(kind))


def _list_verb(kind: ObjectKind) -> Callable[..., Listing | Watched]:
    def list_objects(
        *wanted: Annotated[
            str,
            Parameter(help="Part of a name, or all of it with * and ?; COLUMN=VALUE: with that value alone."),
        ],
        sort: Annotated[str | None, Parameter(help="By this column; numbers largest first.")] = None,
        reverse: Annotated[bool, flag("The other way round.")] = False,
        limit: Annotated[
            int | None, Parameter(name=("--limit", "-n"), help="So many; else all.", validator=at_least_one)
        ] = None,
        after: Annotated[str | None, Parameter(help="Those behind this name, for the next page.")] = None,
        watch: Annotated[bool, flag("Show it anew every 2 s, until Ctrl-C.", "--watch", "-w")] = False,
        at: ServerAddress,
        json: Json = False,
    ) -> Listing | Watched:
        def look() -> Listing:
            return listing(kind, at.client(), query_of(wanted), sort, reverse, limit, after)

        return Watched(look) if watch else look()

    more = "" if kind.help.startswith("Every ") else f"\n\n{kind.help}"  # else it says the same again
    list_objects.__doc__ = f"List the {NOUNS.get(kind.name, kind.name)}.{more}"
    return list_objects


def listing(
    kind: ObjectKind,
    client: AdminClient,
    query: Mapping[str, str],
    sort: str | None,
    reverse: bool,
    limit: int | None,
    after: str | None,
) -> Listing:
    """Objects of a kind as the API lists them. Raises UsageError."""
    units = {column.name: column.unit for column in kind.columns}
    if sort is None:
        if reverse:
            raise UsageError("--reverse", "needs --sort")
        rows, following = client.pages(kind.name, query, limit, after)
        return Listing(rows, units, following)
    ordered = [name for name, unit in units.items() if unit not in UNSORTED]
    if sort not in ordered:
        raise UsageError("--sort", f"{kind.name} are not sorted by {sort}; but by {', '.join(ordered)}")
    if after is not None:
        raise UsageError("--after", "is by name, and not with --sort")
    descending = (units[sort] not in SMALLEST_FIRST) is not reverse
    looked_up = any(column.looked_up for column in kind.columns if column.name == sort)
    if limit is not None and limit <= PAGE and not looked_up:  # by the others the API sorts
        order = f"-{sort}" if descending else sort
        first = client.get(kind.name, **{**query, "sort": order, "limit": limit})
        return Listing(first["items"], units, sorted_by=sort)
    rows, _ = client.pages(kind.name, query)
    with_value = [row for row in rows if row[sort] is not None]
    with_value.sort(key=lambda row: row[sort], reverse=descending)
    ranked = [*with_value, *(row for row in rows if row[sort] is None)]
    return Listing(ranked[:limit], units, sorted_by=sort)


def query_of(wanted: Sequence[str]) -> dict[str, str]:
    """The query of words, each a name's part or COLUMN=VALUE. Raises UsageError."""
    query: dict[str, str] = {}
    for word in wanted:
        column, equals, value = word.partition("=")
        name, text = (column, value) if equals and column else ("match", word)
        if name in ("limit", "after", "sort"):
            raise UsageError("WANTED", f"{name} is a flag: --{name}")
        if name in query:
            raise UsageError("WANTED", f"{name} is given twice")
        query[name] = text
    return query


@host_command("kick", "kick dms-12", "kick dms-12 logmq-3")
def kick(
    connection: Annotated[
        tuple[str, ...],
        Parameter(name="--connection", help="What `brokers connections` calls it.", negative=""),
    ],
    *,
    at: ServerAddress,
    json: Json = False,
) -> CommandResult:
    """Close connections. A client is told so where its protocol has words for it.

    The exit code is 66 where one is not there (any more); the others are closed.
    """
    client = at.client()
    rows: list[Mapping[str, Any]] = []
    code = ExitCode.OK
    for each in connection:
        try:
            rows.append({"connection": each, **client.delete("connections", each)})
        except Failure as error:
            if error.code != ExitCode.MISSING:
                raise
            warn(escape(str(error)))
            rows.append({"connection": each, "closed": 0})
            code = ExitCode.MISSING
    return CommandResult(rows, code)

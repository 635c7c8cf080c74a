"""`brokers chart`: what the page draws of single objects, as figures and as a line of blocks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from brokers.commands.control import AdminClient
from brokers.commands.flags import host_command
from brokers.commands.objects import listing, query_of
from brokers.commands.render import Listing, Watched
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure
from shared.actions import HISTORY, SPANS
from shared.cli.options import Json, at_least_one, flag
from shared.objects import KINDS, ObjectKind

BLOCKS = "▁▂▃▄▅▆▇█"
STEPS_A_BLOCK = 4
"""A line of 180 steps has 45 blocks; each is as high as its highest step."""
CHARTED = tuple(kind.name for kind in KINDS.values() if kind.charts)


@host_command("chart", "chart queues jobs", "chart topics 'orders*' --span 24h", "chart connections -n 3 -w")
def chart(
    kind: Annotated[Literal[CHARTED], Parameter(help="The kind of the objects.")],  # type: ignore[valid-type]
    *wanted: Annotated[
        str,
        Parameter(help="Part of a name, or all of it with * and ?; COLUMN=VALUE: with that value alone."),
    ],
    span: Annotated[Literal[SPANS], Parameter(help="How far back.")] = "15m",  # type: ignore[valid-type]
    sort: Annotated[str | None, Parameter(help="Those first by this column; numbers largest first.")] = None,
    limit: Annotated[
        int, Parameter(name=("--limit", "-n"), help="So many objects.", validator=at_least_one)
    ] = 10,
    watch: Annotated[bool, flag("Show it anew every 2 s, until Ctrl-C.", "--watch", "-w")] = False,
    at: ServerAddress,
    json: Json = False,
) -> Listing | Watched:
    """Show the charts of queues, topics, groups, bridges or connections.

    They are those of the page: a line of blocks ends now, and its highest block is
    the figure `most`. With --json a row has all `values`, at their `times`.
    """
    of = KINDS[kind]
    query = query_of(wanted)

    def look() -> Listing:
        client = at.client()
        items = listing(of, client, query, sort, False, limit, None).rows
        return Listing([*charts_of(client, of, items, span, whole=json)], {})

    return Watched(look) if watch else look()


def charts_of(
    client: AdminClient, kind: ObjectKind, items: Iterable[Mapping[str, Any]], span: str, *, whole: bool
) -> Iterator[Mapping[str, Any]]:
    """The rows of `charted` of each object that is still there. Raises Failure."""
    for item in items:
        name = [item[column] for column in kind.name_columns]
        try:
            history = client.get(kind.name, *name, HISTORY.name, span=span)
        except Failure as error:
            if error.code != ExitCode.MISSING:
                raise
        else:
            yield from charted(kind, item, history, whole=whole)


def charted(
    kind: ObjectKind, item: Mapping[str, Any], history: Mapping[str, Any], *, whole: bool
) -> Iterator[Mapping[str, Any]]:
    """A row for each chart of an object. `whole`: with its values in place of what is made of them."""
    name = {column: item[column] for column in kind.name_columns}
    for chart in kind.charts:
        values = history["lines"][chart.column][""]
        row = {**name, "chart": chart.column, "unit": kind.chart_unit(chart)}
        if whole:
            yield {**row, "seconds": history["seconds"], "times": history["times"], "values": values}
            continue
        known = [value for value in values if value is not None] or [None]
        mean = None if known[0] is None else round(sum(known) / len(known), 3)
        yield {
            **row,
            "now": values[-1] if values else None,
            "least": min(known),
            "mean": mean,
            "most": max(known),
            "line": _line(values),
        }


def _line(values: Sequence[float | None]) -> str:
    """The values as blocks; a space: not known."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    runs = [values[at : at + STEPS_A_BLOCK] for at in range(0, len(values), STEPS_A_BLOCK)]
    known = [[value for value in run if value is not None] for run in runs]
    return "".join(BLOCKS[round(max(run) / top * (len(BLOCKS) - 1))] if run else " " for run in known)

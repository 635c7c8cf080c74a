"""`/metrics/detailed`: a series for each object, on demand: the numbers of what the API lists.

A family is a kind of objects. Its metrics are the kind's columns that are numbers, `brokers_queue_ready`, and
its labels what an object is called. Rows are made some at a time, so a scrape of 50,000 queues holds nobody
up. All series of a metric stand together, so a family is held in memory until it is sent.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence

import trio

from brokers.listing import Found, known_of
from shared.access import matcher, text_of
from shared.objects import CONNECTIONS, GROUPS, QUEUES, TOPICS, BadArgument, KindColumn, ObjectKind, Objects

FAMILIES: Mapping[str, tuple[ObjectKind, str, Sequence[str]]] = {
    kind.name: (kind, one, labels)
    for kind, one, labels in (
        (QUEUES, "queue", ("protocol", "name")),
        (TOPICS, "topic", ("protocol", "name")),
        (GROUPS, "group", ("protocol", "group", "topic")),
        (CONNECTIONS, "connection", ("protocol", "id", "peer", "user")),
    )
}
"""The kind, what one of it is called, and its labels."""
ROWS_AT_ONCE = 50
LOOKED_AT_ONCE = 2000
SERIES_MAX = 1_000_000
"""Of one scrape: 100 MB."""
PIECE = 64
"""Parts that are sent as one: 300 KB."""
_UNITS = frozenset({"count", "bytes", "seconds", "rate", "bytes_rate", "flag"})
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def chosen(query: Sequence[tuple[str, str]]) -> tuple[list[ObjectKind], str]:
    """The kinds that a scrape asks for, and a glob of names. Raises BadArgument.

    `query`: the names and values behind the path. Prometheus sends a parameter for each of several families.
    """
    if other := [name for name, _ in query if name not in ("family", "name")]:
        raise BadArgument(f"{other[0]}: no parameter; there are family and name")
    globs = [value for name, value in query if name == "name"]
    if len(globs) > 1:
        raise BadArgument("name is given twice: it is one glob")
    families = ",".join(value for name, value in query if name == "family")
    names = [name for name in families.split(",") if name]
    if unknown := [name for name in names if name not in FAMILIES]:
        raise BadArgument(f"{unknown[0]}: no family; there are {', '.join(FAMILIES)}")
    if not names:
        raise BadArgument(f"family says what to show, with commas between: {', '.join(FAMILIES)}")
    return [FAMILIES[name][0] for name in dict.fromkeys(names)], next(iter(globs), "*")


async def text(
    kinds: Sequence[ObjectKind], everything: Sequence[tuple[str, Objects]], glob: str
) -> AsyncGenerator[bytes, None]:
    """Prometheus text, in pieces. `glob`: of the names of what is shown, as `after` has them."""
    matches = matcher([glob])
    for kind in kinds:
        columns = [column for column in kind.columns if column.unit in _UNITS]
        parts: dict[str, list[str]] = {column.name: [] for column in columns}
        series = 0
        for protocol, each in [those for those in everything if those[1].kind is kind]:
            found = [*each.items()]
            for at in range(0, len(found), LOOKED_AT_ONCE):
                await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
                some = found[at : at + LOOKED_AT_ONCE]
                shown = [item for item in some if matches(text_of(each.name(item)))]
                for begin in range(0, len(shown), ROWS_AT_ONCE):
                    await trio.sleep(0)  # noqa: ASYNC115
                    series += len(columns) * ROWS_AT_ONCE
                    if series <= SERIES_MAX:
                        there = [
                            known_of(protocol, each, item) for item in shown[begin : begin + ROWS_AT_ONCE]
                        ]
                        _write(kind, columns, [known for known in there if known is not None], parts)
        if series > SERIES_MAX:
            yield f"# {kind.name}: some are left out, above {SERIES_MAX} series; use name=\n".encode()
        for column in columns:
            name, lines = _metric(kind, column), parts.pop(column.name)
            if lines:
                yield f"# HELP {name} {column.help}\n# TYPE {name} gauge\n".encode()
            for at in range(0, len(lines), PIECE):
                yield "".join(lines[at : at + PIECE]).encode()


def _metric(kind: ObjectKind, column: KindColumn) -> str:
    return f"brokers_{FAMILIES[kind.name][1]}_{column.name}"


def _write(
    kind: ObjectKind,
    columns: Sequence[KindColumn],
    rows: Sequence[Found],
    parts: Mapping[str, list[str]],
) -> None:
    """Add a line for each row to each column's."""
    said = FAMILIES[kind.name][2]
    labels = [
        ",".join([f'{name}="{str(row.value(name)).translate(_ESCAPED)}"' for name in said]) for row in rows
    ]
    for column in columns:
        name = _metric(kind, column)
        values = [row.value(column.name) for row in rows]
        lines = [
            f"{name}{{{each}}} {value + 0}\n"  # a flag is 0 or 1
            for each, value in zip(labels, values, strict=True)
            if value is not None
        ]
        if lines:
            parts[column.name].append("".join(lines))

"""`/metrics/detailed`: a series for each object on demand, with the numbers of the API's lists.

A family is a kind of objects. Its metrics are its numeric columns, such as `brokers_queue_<column>`; its
labels are the parts of an object's name. A table of counts has a series for each, with a label for its name.
It is made for some objects at a time, so a scrape of 50,000 queues does not hold the loop. All series of a
metric must be together, so a family is in memory until it is sent.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from operator import add
from typing import Any

from brokers.admin.listing import reader
from shared.access import text_of
from shared.globs import matcher
from shared.objects import (
    CONNECTIONS,
    GROUPS,
    QUEUES,
    TOPICS,
    BadArgument,
    KindColumn,
    ObjectKind,
    ObjectsByProtocol,
)
from shared.task_turns import TaskTurn
from shared.turns import batched

FAMILIES: Mapping[str, tuple[ObjectKind, str, Sequence[str]]] = {
    kind.name: (kind, one, labels)
    for kind, one, labels in (
        (QUEUES, "queue", ("protocol", "name")),
        (TOPICS, "topic", ("protocol", "name")),
        (GROUPS, "group", ("protocol", "group", "topic")),
        (CONNECTIONS, "connection", ("protocol", "id", "peer", "user")),
    )
}
"""Family to (kind, the singular for metric names, labels)."""
SERIES_MAX = 1_000_000
"""Series in one scrape: 100 MB."""
PIECE = 32
"""Parts that are sent together: 300 KB."""
_UNITS = frozenset({"count", "bytes", "seconds", "rate", "bytes_rate", "flag"})
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def chosen(query: Sequence[tuple[str, str]]) -> tuple[list[ObjectKind], str]:
    """The kinds and the glob of names that a scrape asks for. Raises BadArgument.

    `query`: (name, value) pairs of the URL. Prometheus repeats a parameter for each of several families.
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
    kinds: Sequence[ObjectKind], everything: ObjectsByProtocol, glob: str
) -> AsyncGenerator[bytes, None]:
    """Prometheus text, in pieces. `glob`: of the names of what is shown, as `after` has them."""
    matches = matcher([glob])
    turn = TaskTurn()
    for kind in kinds:
        columns = [
            column
            for column in kind.columns
            if (column.unit in _UNITS or column.counted_by) and not column.looked_up
        ]
        parts: dict[str, list[str]] = {column.name: [] for column in columns}
        series = 0
        for protocol, each in [those for those in everything if those[1].kind is kind]:
            items = each.items()
            readers = [reader(protocol, each, name) for name in FAMILIES[kind.name][2]]
            values = {column: reader(protocol, each, column.name) for column in columns}
            for batch in batched(items):
                if turn.over_now():
                    await turn.others()
                if glob != "*":
                    batch = [item for item in batch if matches(text_of(each.name(item)))]
                series += len(columns) * len(batch)
                if batch and series <= SERIES_MAX:
                    _write(kind, [_labels(kind, readers, item) for item in batch], batch, values, parts)
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


def _labels(kind: ObjectKind, readers: Sequence[Callable[[Any], Any]], item: Any) -> str:
    read_labels = zip(FAMILIES[kind.name][2], readers, strict=True)
    labels = [f'{name}="{str(read(item)).translate(_ESCAPED)}"' for name, read in read_labels]
    return f"{{{','.join(labels)}}} "


def _write(
    kind: ObjectKind,
    labels: Sequence[str],
    some: Sequence[Any],
    values: Mapping[KindColumn, Callable[[Any], Any]],
    parts: Mapping[str, list[str]],
) -> None:
    """Add a line for each object to each column's, where it has that number."""
    for column, read in values.items():
        row_values = [*map(read, some)]
        those = labels
        if column.counted_by:
            tables = zip(labels, row_values, strict=True)
            counts = [(label, *count) for label, table in tables for count in sorted((table or {}).items())]
            those = [f'{label[:-2]},{column.counted_by}="{name}"}} ' for label, name, _ in counts]
            row_values = [count for _, _, count in counts]
        if None in row_values:
            those = [label for label, value in zip(labels, row_values, strict=True) if value is not None]
            row_values = [value for value in row_values if value is not None]
        if row_values:
            begins = "\n" + _metric(kind, column)
            numbers = map(int, row_values) if column.unit == "flag" else row_values
            lines = begins.join(map(add, those, map(str, numbers)))
            parts[column.name].append(f"{begins[1:]}{lines}\n")

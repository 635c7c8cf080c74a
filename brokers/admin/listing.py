"""Lists of objects: pages in the order of names, or the first rows by a column.

A list reads every name, or one column of every object, in turns with other tasks. Whole rows are made only
for what is shown.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any

import attrs
import trio
from starlette.exceptions import HTTPException

from brokers.commands.control import path_part
from shared.globs import expression
from shared.objects import UNSORTED, KindColumn, ObjectKind, Objects, ObjectsByProtocol
from shared.task_turns import TaskTurn

LIMIT_USUAL, LIMIT_MAX = 100, 1000
MATCH_MAX = 256
DIGITS_MAX = 20
LOOK_SECONDS, LOOK_AT_ONE_SECONDS = 0.002, 2.0
"""CPU seconds that the looked-up columns of a row may take: in a list, and in an answer of one row."""

Row = Mapping[str, Any]
Ranked = tuple[Any, str, Objects, Any]
"""(sort key, protocol, object). The sort key is a column, or the name that is unique within the kind."""


@attrs.frozen
class ListQuery:
    """What a list shows, parsed from a query.

    `filters`: column to the value it must have, as text. `match`: part of the name, or a pattern with `*` and
    `?` for all of it; case does not matter. `sort`: a column; "" is the name. `narrow`: a parameter of
    `Objects.narrow` and its value.
    """

    filters: Mapping[str, str] = {}
    match: str = ""
    sort: str = ""
    descending: bool = False
    narrow: tuple[str, str] | None = None

    @classmethod
    def parse(
        cls, kind: ObjectKind, those: ObjectsByProtocol, query: Mapping[str, str], also: Sequence[str]
    ) -> "ListQuery":
        """Raise HTTPException (400) for unknown parameters. `also`: further parameters that are allowed."""
        narrow = {name for _, each in those for name in each.narrow}
        if unknown := sorted(set(query) - {"match", "sort", *also, *kind.filters, *narrow}):
            known = ", ".join(sorted({*kind.filters, *narrow, "match"}))
            raise HTTPException(400, f"{unknown[0]}: no parameter of this list, which is narrowed by {known}")
        match = query.get("match", "")
        if len(match) > MATCH_MAX:
            raise HTTPException(400, f"match has at most {MATCH_MAX} characters")
        sort = query.get("sort", "").removeprefix("-")
        if sort and sort not in {column.name for column in kind.columns if sorts(column)}:
            raise HTTPException(400, f"sort: {kind.name} are not sorted by {sort}")
        if sort == kind.columns[0].name and not kind.by_protocol:
            sort = ""
        return cls(
            {name: query[name] for name in kind.filters if name in query},
            match,
            sort,
            query.get("sort", "").startswith("-"),
            next(((name, query[name]) for name in sorted(narrow) if name in query), None),
        )


@attrs.frozen
class Selection:
    """Rows of a list; `total`: how many rows all pages have together."""

    items: Sequence[Row]
    total: int


async def listed(kind: ObjectKind, those: ObjectsByProtocol, query: Mapping[str, str]) -> Mapping[str, Any]:
    """A page of a list."""
    wanted = ListQuery.parse(kind, those, query, ("limit", "after"))
    text = query.get("limit", str(LIMIT_USUAL))
    if not (is_number(text) and 1 <= int(text) <= LIMIT_MAX):
        raise HTTPException(400, f"limit is a number from 1 to {LIMIT_MAX}")
    limit = int(text)
    if "sort" in query and "after" in query:
        raise HTTPException(400, "after: a list that is sorted by a column has no other pages")
    ranked, _ = await _first(kind, those, wanted, limit + 1, query.get("after", ""))
    more = "sort" not in query and len(ranked) > limit
    return {"items": await _rows(ranked[:limit]), "next": ranked[limit - 1][0] if more else None}


def sorts(column: KindColumn) -> bool:
    """Whether lists are sorted by a column."""
    return column.unit not in UNSORTED and not column.looked_up


def is_number(text: str) -> bool:
    """Whether a text is a whole number. One of very many digits, which Python makes no number of, is none."""
    return text.isascii() and text.isdecimal() and len(text) < DIGITS_MAX


async def selected(
    kind: ObjectKind, those: ObjectsByProtocol, wanted: ListQuery, skip: int, limit: int
) -> Selection:
    """`limit` rows after the first `skip`, in the order of the query."""
    ranked, total = await _first(kind, those, wanted, skip + limit)
    return Selection(await _rows(ranked[skip:]), total)


def path_of(kind: ObjectKind, row: Row) -> str:
    """The page's URL of an object."""
    return f"/{kind.name}/" + "/".join(path_part(str(row[column])) for column in kind.name_columns)


def reader(protocol: str, objects: Objects, column: str) -> Callable[[Any], Any]:
    """A function that reads a column of an object. Its value is meaningless for a deleted object."""
    if column == "protocol":
        return lambda _: protocol
    if column in objects.values:
        return objects.values[column]

    def from_row(found: Any) -> Any:
        row = objects.row(found)
        return None if row is None else row.get(column)

    return from_row


async def row_of(protocol: str, objects: Objects, found: Any, seconds: float = LOOK_SECONDS) -> Row | None:
    """The whole row, its columns in order; None if the object was deleted.

    `seconds`: CPU time that looked-up columns may take.
    """
    known = objects.row(found)
    if known is None:
        return None
    row = {
        column.name: protocol if column.name == "protocol" else known.get(column.name)
        for column in objects.kind.columns
    }
    if objects.look is not None:
        await trio.sleep(0)
        row |= await objects.look(found, seconds)
    return row


async def _rows(found: Sequence[Ranked]) -> list[Row]:
    """The rows of `found`, without objects that were deleted meanwhile."""
    rows = []
    turn = TaskTurn()
    for _, protocol, objects, item in found:
        await turn.item()
        row = await row_of(protocol, objects, item)
        if row is not None:
            rows.append(row)
    return rows


async def _first(
    kind: ObjectKind, those: ObjectsByProtocol, wanted: ListQuery, most: int, after: str = ""
) -> tuple[list[Ranked], int]:
    """The first matches, by name those after `after`; and the number of all matches."""
    fits = _matcher(wanted.match)
    ranked: list[Ranked] = []
    without: list[Ranked] = []
    turn = TaskTurn()
    for protocol, objects in those:
        if wanted.filters.get("protocol", protocol) != protocol:
            continue
        prefix = f"{protocol}/" if kind.by_protocol else ""
        conditions = [
            (reader(protocol, objects, column), text)
            for column, text in wanted.filters.items()
            if column != "protocol"
        ]
        by = wanted.narrow if wanted.narrow is not None and wanted.narrow[0] in objects.narrow else None
        value = reader(protocol, objects, wanted.sort) if wanted.sort else None
        # A copy: the objects may change between two turns.
        for item in objects.items() if by is None else objects.narrow[by[0]](by[1]):
            await turn.item()
            if fits is not None and not fits(_plain(objects.name(item))):
                continue
            if any(str(read(item)) != text for read, text in conditions):
                continue
            key = prefix + objects.name(item) if value is None else value(item)
            if key is None:
                without.append((key, protocol, objects, item))
            elif value is not None or not after or key > after:
                ranked.append((key, protocol, objects, item))
    pick = nlargest if wanted.descending else nsmallest
    picked = pick(most, ranked, key=itemgetter(0))
    # Objects without a value come last.
    return [*picked, *without[: most - len(picked)]], len(ranked) + len(without)


def _plain(key: str) -> str:
    """A name as users write it (`shared.objects.key_of`)."""
    return key.replace("%2F", "/").replace("%25", "%") if "%" in key else key


def _matcher(match: str) -> Callable[[str], object] | None:
    if not match:
        return None
    if "*" in match or "?" in match:
        return expression(match, re.IGNORECASE).match
    return re.compile(re.escape(match), re.IGNORECASE).search

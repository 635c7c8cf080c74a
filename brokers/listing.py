"""Lists of objects: pages by name, and the first ones by a column, made in turns.

50,000 objects do not hold the loop. By name a page costs a look at every
name. By a column it costs every row.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from fnmatch import translate
from heapq import merge
from operator import itemgetter
from typing import Any

import attrs
import trio
from starlette.exceptions import HTTPException

from shared.objects import UNSORTED, ObjectKind, Objects

LIMIT_USUAL, LIMIT_MAX = 100, 1000
KEYS_AT_ONCE = 500
"""Names that are sorted in one turn: half a millisecond."""
ROWS_AT_ONCE = 100
"""Rows that are made in one turn."""
MATCH_MAX = 256
RANKED_MAX = 10_000
"""By a column nobody sees more than the first ones, so that no more rows are held."""
LOOK_SECONDS, LOOK_AT_ONE_SECONDS = 0.002, 2.0
"""Of the processor, for the further columns of one row in a list, and of one that is asked for alone."""

Row = Mapping[str, Any]
Those = Sequence[tuple[str, Objects]]
"""What each protocol has of one kind."""
Named = tuple[str, str, Objects, Any]
"""The name among all of its kind, the protocol, and the object."""


@attrs.frozen
class ListQuery:
    """What a list shows. Raises HTTPException (400) where the query asks for what is not there.

    `filters`: the value of a column, as text. `match`: part of the name, or, with `*` and `?`, all of it, in
    any case. `sort`: a column; "" is the name. `narrow`: the parameter of `Objects.narrow` and its value.
    """

    filters: Mapping[str, str] = {}
    match: str = ""
    sort: str = ""
    descending: bool = False
    narrow: tuple[str, str] | None = None

    @classmethod
    def parse(
        cls, kind: ObjectKind, those: Those, query: Mapping[str, str], also: Sequence[str]
    ) -> "ListQuery":
        """`also`: what else the query may have."""
        narrow = {name for _, each in those for name in each.narrow}
        if unknown := sorted(set(query) - {"match", "sort", *also, *kind.filters, *narrow}):
            there = ", ".join(sorted({*kind.filters, *narrow, "match"}))
            raise HTTPException(400, f"{unknown[0]}: no parameter of this list, which is narrowed by {there}")
        match = query.get("match", "")
        if len(match) > MATCH_MAX:
            raise HTTPException(400, f"match has at most {MATCH_MAX} characters")
        sort = query.get("sort", "").removeprefix("-")
        sorted_by = [column for column in kind.columns if not (column.unit in UNSORTED or column.looked_up)]
        if sort and sort not in {column.name for column in sorted_by}:
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
    """Rows of a list; `total`: how many it has in all."""

    items: Sequence[Row]
    total: int


async def listed(kind: ObjectKind, those: Those, query: Mapping[str, str]) -> Mapping[str, Any]:
    """A page of a list."""
    wanted = ListQuery.parse(kind, those, query, ("limit", "after"))
    text = query.get("limit", str(LIMIT_USUAL))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= LIMIT_MAX):
        raise HTTPException(400, f"limit is a number from 1 to {LIMIT_MAX}")
    limit = int(text)
    if "sort" in query:
        if "after" in query:
            raise HTTPException(400, "after: a list that is sorted by a column has no other pages")
        selection = await selected(kind, those, wanted, 0, limit)
        return {"items": selection.items, "next": None}
    chunks = [chunk async for chunk in _sorted_chunks(kind, those, wanted, query.get("after", ""))]
    items: list[Row] = []
    last = None
    async with aclosing(_rows(merge(*chunks, key=itemgetter(0)), wanted)) as rows:
        async for name, found in rows:
            if len(items) == limit:
                return {"items": items, "next": last}
            items.append(await found.full())
            last = name
    return {"items": items, "next": None}


async def selected(kind: ObjectKind, those: Those, wanted: ListQuery, skip: int, limit: int) -> Selection:
    """`limit` rows behind the first `skip`, in the order that is wanted."""
    chunks = [chunk async for chunk in _sorted_chunks(kind, those, wanted)]
    if wanted.sort == "" and not set(wanted.filters) - {"protocol"}:
        total = sum(map(len, chunks))
        first = total - skip - limit if wanted.descending else skip
        names = _slice(merge(*chunks, key=itemgetter(0)), max(first, 0), max(first + limit, 0))
        rows = [await each.full() async for _, each in _rows([each async for each in names], wanted)]
        return Selection(rows[::-1] if wanted.descending else rows, total)
    keep = min(skip + limit, RANKED_MAX)
    best: list[tuple[Any, Found]] = []
    total = 0
    async for _, each in _rows((each for chunk in chunks for each in chunk), wanted):
        total += 1
        best.append((each.value(wanted.sort), each))
        if len(best) >= 2 * keep + ROWS_AT_ONCE:
            best = _first(best, keep, wanted.descending)
    shown = _first(best, keep, wanted.descending)[skip:]
    return Selection([await each.full() for _, each in shown], total)


class Found:
    """One object, and what memory has of its row."""

    __slots__ = ("_known", "_object", "_objects", "_protocol")

    def __init__(self, protocol: str, objects: Objects, found: Any, known: Row) -> None:
        self._protocol, self._objects, self._object, self._known = protocol, objects, found, known

    def value(self, column: str) -> Any:
        return self._known.get(column, self._protocol if column == "protocol" else None)

    @property
    def row(self) -> Row:
        """The columns in their order, without those that are looked up."""
        return {column.name: self.value(column.name) for column in self._objects.kind.columns}

    async def full(self, seconds: float = LOOK_SECONDS) -> Row:
        """The whole row; `seconds`: the processor's time that its further columns may take."""
        look = self._objects.look
        if look is None:
            return self.row
        await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        return {**self.row, **await look(self._object, seconds)}


def known_of(protocol: str, objects: Objects, found: Any) -> Found | None:
    """None: it is gone."""
    known = objects.row(found)
    return None if known is None else Found(protocol, objects, found, known)


def _first(found: list[tuple[Any, Found]], keep: int, descending: bool) -> list[tuple[Any, Found]]:
    """The first by value; those without one come last."""
    there = [each for each in found if each[0] is not None]
    there.sort(key=itemgetter(0), reverse=descending)
    return [*there, *(each for each in found if each[0] is None)][:keep]


async def _slice(names: Iterator[Named], first: int, end: int) -> AsyncGenerator[Named, None]:
    for at, each in enumerate(names):
        if at >= end:
            return
        if at % KEYS_AT_ONCE == 0:
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        if at >= first:
            yield each


async def _rows(
    names: Iterator[Named] | Sequence[Named], wanted: ListQuery
) -> AsyncGenerator[tuple[str, Found], None]:
    """The rows that the filters leave, with their names. One that is left early is closed."""
    filters = tuple(wanted.filters.items())
    for looked, (name, protocol, each, found) in enumerate(names):
        if looked % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
        known = known_of(protocol, each, found)
        if known is not None and all(str(known.value(column)) == said for column, said in filters):
            yield name, known


async def _sorted_chunks(
    kind: ObjectKind, those: Those, wanted: ListQuery, after: str = ""
) -> AsyncGenerator[list[Named], None]:
    """All that is behind `after` and fits the name that is wanted, in sorted parts, a turn for each."""
    fits = _pattern(wanted.match)
    for protocol, each in those:
        if wanted.filters.get("protocol", protocol) != protocol:
            continue
        prefix = f"{protocol}/" if kind.by_protocol else ""
        by = wanted.narrow if wanted.narrow is not None and wanted.narrow[0] in each.narrow else None
        # A copy: what is listed may change in the next turn.
        items = each.items() if by is None else each.narrow[by[0]](by[1])
        for at in range(0, len(items), KEYS_AT_ONCE):
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
            chunk: list[Named] = []
            for found in items[at : at + KEYS_AT_ONCE]:
                key = each.name(found)
                name = prefix + key
                if name > after and (fits is None or fits.search(_plain(key))):
                    chunk.append((name, protocol, each, found))
            chunk.sort(key=itemgetter(0))
            yield chunk


def _plain(key: str) -> str:
    """A name as people write it (`shared.objects.key_of`)."""
    return key.replace("%2F", "/").replace("%25", "%") if "%" in key else key


def _pattern(match: str) -> re.Pattern[str] | None:
    if not match:
        return None
    globs = "*" in match or "?" in match
    return re.compile(translate(match) if globs else re.escape(match), re.IGNORECASE)

"""Columns made of records that are JSON objects: a column for each key at their top.

A column has one type for ever, since no table format takes a number back for a text: `bigint`, `double`,
`boolean` or `string`. What is nested is its JSON text. Where tasks of one round find a new key with several
types its column is text. A value that does not fit a column that is there already goes, as text, to the
column of the same name with `_text` behind. Both are counted, and the record's own bytes stay in `value`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pyarrow as pa

TYPES: Mapping[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
}
COLUMNS_MAX = 1000
"""Keys beyond are left in the record: a key for each user would else make a column for each."""

_NAME_MAX = 128
_LONG = range(-(1 << 63), 1 << 63)
_EXACT = range(-(1 << 53), (1 << 53) + 1)
_OURS = frozenset(("offset", "timestamp", "value", "log", "topic", "date", "hour"))
_NOT_IN_NAMES = re.compile(r"\W")
"""Delta and SQL refuse spaces and marks in a column's name, or want quotes for them."""


def merged(found: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Put new columns together: numbers of both kinds are `double`, other conflicts `string`."""
    types: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for each in found:
        for name, kind in each.items():
            known = spelled.setdefault(name.lower(), name)
            before = types.setdefault(known, kind)
            if before != kind:
                types[known] = "double" if {before, kind} == {"bigint", "double"} else "string"
    return types


@attrs.define
class JsonColumns:
    """Makes the columns of one task. `fresh`: new ones and their types, of which no file can be written yet.

    `conflicts`: values that did not fit. `unparsed`: records that are not JSON objects.
    """

    known: Mapping[str, str]
    fresh: dict[str, str] = attrs.field(factory=dict, init=False)
    conflicts: int = attrs.field(default=0, init=False)
    unparsed: int = attrs.field(default=0, init=False)
    _names: dict[str, str | None] = attrs.field(factory=dict, init=False)
    """The column of each key; None for a key that gets none."""
    _spelled: dict[str, str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._spelled = {name.lower(): name for name in self.known}

    def of(self, values: pa.Array) -> list[pa.Array]:
        """Return the known columns of these records, in order."""
        count = len(values)
        columns: dict[str, list[Any]] = {name: [None] * count for name in self.known}
        for row, data in enumerate(values.to_pylist()):
            try:
                found = json.loads(data)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                self.unparsed += 1
                continue
            for key, value in found.items():
                if value is not None:
                    self._put(columns, row, key, value)
        return [_array(columns[name], kind) for name, kind in self.known.items()]

    def _put(self, columns: dict[str, list[Any]], row: int, key: str, value: Any) -> None:
        name = self._names[key] if key in self._names else self._name(key)
        if name is None:
            return
        kind, plain = _typed(value)
        wanted = self.known.get(name)
        if wanted == "double" and kind == "bigint" and plain in _EXACT:
            plain = float(plain)
        elif wanted is not None and wanted != kind:
            self.conflicts += 1
            if wanted != "string":
                self._put_text(columns, row, f"{name}_text", value)
                return
            plain = _text(value)
        if wanted is not None:
            columns[name][row] = plain
        else:
            self._new(name, kind)

    def _put_text(self, columns: dict[str, list[Any]], row: int, name: str, value: Any) -> None:
        known = self._spelled.get(name.lower(), name)
        if self.known.get(known) == "string":
            columns[known][row] = _text(value)
        elif known not in self.known:
            self._new(known, "string")

    def _new(self, name: str, kind: str) -> None:
        if name in self.fresh or len(self.known) + len(self.fresh) < COLUMNS_MAX:
            self.fresh = merged((self.fresh, {name: kind}))

    def _name(self, key: str) -> str | None:
        """Return the column of a key: in one spelling, since engines do not tell capitals apart."""
        name: str | None = _NOT_IN_NAMES.sub("_", key)[:_NAME_MAX]
        if name and name.lower() in _OURS:
            name = f"json_{name}"
        if name and (name.lower() in self._spelled or len(self._spelled) < 2 * COLUMNS_MAX):
            name = self._spelled.setdefault(name.lower(), name)
        else:
            name = None
        if len(self._names) < 16 * COLUMNS_MAX:  # keys may be as many as records
            self._names[key] = name
        return name


def _typed(value: Any) -> tuple[str, Any]:
    if isinstance(value, bool):
        return "boolean", value
    if isinstance(value, int):
        return ("bigint", value) if value in _LONG else ("string", str(value))
    if isinstance(value, float):
        return "double", value
    return "string", _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _array(values: list[Any], kind: str) -> pa.Array:
    try:
        return pa.array(values, TYPES[kind])
    except UnicodeEncodeError:  # a lone half of a pair, which JSON can say and UTF-8 cannot
        plain = [each and each.encode("utf-8", "replace").decode() for each in values]
        return pa.array(plain, TYPES[kind])

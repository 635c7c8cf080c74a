"""What verbs return, shown: the only formatter.

A verb returns what it found and never prints:

- None: nothing to show; `str`: a line (or several); `bytes`: raw bytes, as they are;
- one mapping or attrs object: its fields, one a line;
- a sequence of them: the rows of a table; an iterator or async iterator: rows as they come;
- `Several` results: one after the other, a blank line between;
- `CommandResult`: a result, and the exit code to end with.

On a terminal a table is drawn to fit it (`layout`), whatever could harm the terminal is escaped, and amounts
are as people read them: sizes and durations with their units, by the names of their columns, times local,
large numbers grouped. Elsewhere columns are aligned plain text with plain numbers, for grep and awk; with
`--json` each row is one JSON object a line, for jq, streams included. Bytes in a row are text where they are
UTF-8; in JSON others become `{"base64": "..."}`.
"""

import base64
import codecs
import enum
import json
import shutil
import sys
import textwrap
from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import attrs

from brokers.errors import nearest
from brokers.escape import escape
from brokers.layout import Column, Laid, lay_out
from shared.errors import UsageError
from shared.units import named_unit, readable

Row = Mapping[str, Any]

GROUPED_FROM = 10_000
"""Numbers from this on are written as 10,000."""
PLACES = frozenset(
    {"offset", "first", "end", "last", "committed", "seq", "id", "pid", "port", "delivery", "value"}
)
"""What such a column has is copied into the next command, or into a file of settings."""


@attrs.frozen
class Several:
    """Results to show one after the other; not for JSON, where a verb returns one object."""

    results: tuple[Any, ...]


@attrs.frozen
class CommandResult:
    """A result that is shown, and the exit code beside it."""

    shown: Any
    code: int


class Output:
    """Where a command's results go. `as_json`: what `--json` asks for.

    `wide`: a table may be wider than the terminal. `columns`: show these alone. `listed`: what the rows of a
    table are, to say on a terminal that there are none.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        as_json: bool = False,
        wide: bool = False,
        columns: Sequence[str] | None = None,
        listed: str | None = None,
    ) -> None:
        self._wide = wide
        self._columns = columns
        self._listed = listed
        self._stream = stream or sys.stdout
        self._json = as_json
        self._terminal = self._stream.isatty()
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._ascii = self._terminal or codecs.lookup(encoding).name != "utf-8"

    def show(self, result: Any) -> None:
        """Show anything but an async iterable."""
        if result is None:
            return
        if isinstance(result, Several):
            for number, each in enumerate(result.results):
                if number:
                    self._line("")
                self.show(each)
        elif isinstance(result, bytes):
            self._stream.flush()
            self._stream.buffer.write(result)
            self._stream.buffer.flush()
        elif isinstance(result, str):
            self._line(self._json_text(result) if self._json else self._safe(result))
        elif (row := _row(result)) is not None:
            self._line(self._json_text(row)) if self._json else self._record(row)
        elif isinstance(result, Iterator):
            for item in result:
                self._next(item)
        elif isinstance(result, Iterable):
            self._rows(list(result))
        else:
            self._line(self._json_text(result) if self._json else self._safe(str(result)))
        self._stream.flush()

    async def stream(self, rows: AsyncIterable[Any]) -> None:
        """Show rows one by one, each flushed: somebody is watching, or a pipe is waiting."""
        async for item in rows:
            self._next(item)
            self._stream.flush()

    def _next(self, item: Any) -> None:
        """One row of many, the number of which nobody knows yet."""
        row = _row(item)
        if self._json:
            self._line(self._json_text(item if row is None else row))
        elif row is None:
            self.show(item)
        else:
            self._line("  ".join(escape(self._cell(name, value)) for name, value in row.items()))

    def _line(self, text: str) -> None:
        self._stream.write(text if text.endswith("\n") else text + "\n")

    def _json_text(self, value: Any) -> str:
        return json.dumps(value, default=json_value, ensure_ascii=self._ascii)

    def _safe(self, text: str) -> str:
        if not self._terminal:
            return text
        return "\n".join(escape(line) for line in text.split("\n"))

    def _record(self, row: Row) -> None:
        width = max((len(name) for name in row), default=0)
        for name, value in row.items():
            self._line(f"{name:<{width}}  {self._safe(self._cell(name, value))}")

    def _rows(self, items: Sequence[Any]) -> None:
        if self._columns is not None:
            items = [_only(self._columns, row) for row in _as_rows(items)]
        if self._json:
            for item in items:
                self._next(item)
        elif items:
            self._table(_as_rows(items))
        elif self._terminal and self._listed is not None:
            self._line(f"no {self._listed}")

    def _table(self, rows: Sequence[Row]) -> None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names:
            return
        columns = [
            Column(
                name,
                [escape(self._cell(name, row.get(name))) for row in rows],
                right=all(_is_number(row.get(name)) for row in rows),
                empty=not any(row.get(name) for row in rows),
            )
            for name in names
        ]
        width = shutil.get_terminal_size().columns if self._terminal and not self._wide else None
        laid = lay_out(columns, width, ruled=self._terminal)
        for line in laid.lines:
            self._line(line)
        if laid.left_out or laid.cut:
            self._line("")
            self._note(laid)

    def _note(self, laid: Laid) -> None:
        """What of a table did not fit, and how to see it."""
        how = "--wide or --columns" if self._listed is not None else "--json"
        said = f"Not shown: {', '.join(laid.left_out)} ({how})." if laid.left_out else f"Cut at … ({how})."
        for line in textwrap.wrap(said, shutil.get_terminal_size().columns, break_long_words=False):
            self._line(line)

    def _cell(self, name: str, value: Any) -> str:
        if not self._terminal or not _is_number(value) or value is None:
            return cell(value)
        unit = named_unit(name)
        if unit is not None:
            return readable(value, unit)
        if abs(value) < GROUPED_FROM or not PLACES.isdisjoint(name.split("_")):
            return cell(value)
        return f"{round(value):,}"


def _row(item: Any) -> Row | None:
    """A mapping or attrs object as a row; None for what is neither."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if attrs.has(type(item)):
        return {field.name: getattr(item, field.name) for field in attrs.fields(type(item))}
    return None


def _as_rows(items: Iterable[Any]) -> list[Row]:
    return [{"value": item} if (row := _row(item)) is None else row for item in items]


def _only(columns: Sequence[str], row: Row) -> Row:
    """Raises UsageError for a column that there is not."""
    for name in columns:
        if name not in row:
            meant = nearest(name, list(row))
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(row)}"
            raise UsageError("--columns", f"no column {name}; {hint}")
    return {name: row[name] for name in columns}


def cell(value: Any) -> str:
    """As a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, enum.Enum):
        return cell(value.value)
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, Mapping):
        return " ".join(f"{name}={cell(inner)}" for name, inner in value.items())
    if (row := _row(value)) is not None:
        return cell(row)
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value))
    return str(value)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def json_value(value: Any) -> Any:
    """What JSON has instead of a value that it does not have: for `json.dumps(default=...)`."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, enum.Enum):
        return value.value
    row = _row(value)
    if row is not None:
        return row
    if isinstance(value, Iterable):
        return list(value)
    return str(value)  # a path, a time

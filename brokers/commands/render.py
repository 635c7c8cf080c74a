"""Shows what commands return. It is the only formatter.

A command returns what it found and never prints:

- None: nothing to show; `str`: a line (or several); `bytes`: raw bytes, as they are;
- one mapping or attrs object: its fields, one a line;
- a sequence of them: the rows of a table; an iterator or async iterator: rows as they come;
- `Following` rows: as they come from somebody else;
- a `Listing`: rows whose columns have units; `Watched`: one that is shown anew until Ctrl-C;
- `Several` results: one after the other, with a blank line between;
- `CommandResult`: a result, and the exit code of the command.

On a terminal a table fits the width, and whatever could harm the terminal is escaped. Sizes and durations get
their units, by the names of their columns, and large numbers are grouped. Elsewhere columns are aligned plain
text with plain numbers, for grep and awk. With `--json` each row is a JSON object on a line, for jq, also of
streams. Bytes in a row are text if they are UTF-8; in JSON others become `{"base64": "..."}`.
"""

import base64
import codecs
import enum
import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from time import monotonic, sleep
from typing import Any, TextIO

import attrs

from brokers.errors import did_you_mean
from brokers.escape import escape
from shared.errors import UsageError
from shared.units import named_unit, readable

Row = Mapping[str, Any]

GROUPED_FROM = 10_000
"""From here on numbers are written as 10,000."""
NUMBERS = frozenset({"count", "bytes", "seconds", "rate", "bytes_rate"})
"""Units of columns that are aligned as numbers."""
PLACES = frozenset(
    (
        *("offset", "first", "end", "last", "committed", "seq", "position", "delivery", "id"),
        *("pid", "port", "value"),
    )
)
"""Numbers in these columns are not grouped, because users copy them into commands and settings."""


WATCH_SECONDS = 2.0
WATCH_REST = 9
"""Times as long as the server took to answer: a look at very many queues costs it a tenth of a processor."""
CLEAR_SCREEN = "\x1b[H\x1b[2J"


@attrs.frozen
class Several:
    """Results to show one after the other. For JSON a command returns one object instead."""

    results: tuple[Any, ...]


@attrs.frozen
class Listing:
    """Rows whose columns have units (`shared.objects.Unit`). `following`: behind this name there are more.

    `sorted_by`: a column that is shown however narrow the terminal is.
    """

    rows: Sequence[Row]
    units: Mapping[str, str]
    following: str | None = None
    sorted_by: str = ""


@attrs.frozen
class Following:
    """Rows that come one by one, each shown at once, because somebody waits for it."""

    rows: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.rows


@attrs.frozen
class Watched:
    """A listing that is shown anew until the command is interrupted. `look` asks for it."""

    look: Callable[[], Listing]

    def __iter__(self) -> Iterator[Listing]:
        while True:
            began = monotonic()
            yield self.look()
            sleep(max(WATCH_SECONDS, WATCH_REST * (monotonic() - began)))


@attrs.frozen
class CommandResult:
    """A result to show, and the exit code of the command."""

    shown: Any
    code: int


class Output:
    """Shows a command's results. `as_json`: as `--json` asks.

    `wide`: a table may be wider than the terminal. `columns`: show only these. `listed`: what the rows of a
    table are; on a terminal an empty table says that there are none.
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
        elif isinstance(result, Following):
            for item in result.rows:
                self._next(item)
                self._stream.flush()
        elif isinstance(result, Watched):
            for listing in result:
                if self._terminal and not self._json:
                    self._stream.write(CLEAR_SCREEN)
                self.show(listing)
        elif isinstance(result, Listing):
            self._rows(result.rows, result.units, result.sorted_by)
            if result.following is not None and self._terminal and not self._json:
                self._line(f"\nThere are more: --after {shlex.quote(escape(result.following))}")
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
        """Show rows one by one, and flush each, because a person or a program waits for it."""
        async for item in rows:
            self._next(item)
            self._stream.flush()

    def _next(self, item: Any) -> None:
        """Show one row of many. Their number is not known yet, so columns are not aligned."""
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

    def _rows(
        self, items: Sequence[Any], units: Mapping[str, str] | None = None, sorted_by: str = ""
    ) -> None:
        if self._columns is not None:
            if units is not None:
                _only(self._columns, units)  # a mistake is told where there is no row, too
            items = [_only(self._columns, row) for row in _as_rows(items)]
        if self._json:
            for item in items:
                self._next(item)
        elif items:
            self._table(_as_rows(items), units or {}, sorted_by)
        elif self._terminal and self._listed is not None:
            self._line(f"no {self._listed}")

    def _table(self, rows: Sequence[Row], units: Mapping[str, str], sorted_by: str) -> None:
        columns = columns_of(rows, units, self._cell)
        if not columns:
            return
        width = shutil.get_terminal_size().columns if self._terminal and not self._wide else None
        laid = lay_out(columns, width, ruled=self._terminal, kept=sorted_by)
        for line in laid.lines:
            self._line(line)
        if laid.left_out or laid.cut:
            self._line("")
            self._note(laid)

    def _note(self, laid: "Laid") -> None:
        """Say what of a table did not fit, and how to see it."""
        how = "--wide or --columns" if self._listed is not None else "--json"
        note = f"Not shown: {', '.join(laid.left_out)} ({how})." if laid.left_out else f"Cut at … ({how})."
        for line in textwrap.wrap(note, shutil.get_terminal_size().columns, break_long_words=False):
            self._line(line)

    def _cell(self, name: str, value: Any, unit: str | None = None) -> str:
        return readable_cell(name, value, unit) if self._terminal else cell(value)


def _row(item: Any) -> Row | None:
    """Return a mapping or attrs object as a row; None for anything else."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if attrs.has(type(item)):
        return {field.name: getattr(item, field.name) for field in attrs.fields(type(item))}
    return None


def _as_rows(items: Iterable[Any]) -> list[Row]:
    return [{"value": item} if (row := _row(item)) is None else row for item in items]


def _only(columns: Sequence[str], row: Row) -> Row:
    """Return these columns of a row. Raises UsageError for an unknown column."""
    for name in columns:
        if name not in row:
            hint = did_you_mean(name, row, f"; there are {', '.join(row)}")
            raise UsageError("--columns", f"no column {name}{hint}")
    return {name: row[name] for name in columns}


def cell(value: Any) -> str:
    """Return a value as a table shows it."""
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


def columns_of(
    rows: Sequence[Row], units: Mapping[str, str], show: Callable[[str, Any, str | None], str]
) -> "list[Column]":
    """The columns of a table. `units`: of those that are described; `show(name, value, unit)`: a cell."""
    return [
        Column(
            name,
            [escape(show(name, row.get(name), units.get(name))) for row in rows],
            right=all(_is_number(row.get(name)) for row in rows) and units.get(name, "count") in NUMBERS,
            empty=_is_dispensable([row.get(name) for row in rows], units.get(name)),
        )
        for name in dict.fromkeys(name for row in rows for name in row)
    ]


def readable_cell(name: str, value: Any, unit: str | None = None) -> str:
    """A value as people read it. `unit`: of its column, where that is described; else its name has it."""
    if unit == "time" and isinstance(value, str):
        return local_time(value)
    if value is None or not _is_number(value):
        return cell(value)
    if unit == "bytes_rate":
        return f"{readable(value, 'bytes')}/s"
    if unit == "rate":
        return f"{cell(round(value, 1)) if value < 100 else f'{round(value):,}'}/s"
    if (named := named_unit(name)) is not None:
        return readable(value, named)
    if abs(value) < GROUPED_FROM or not PLACES.isdisjoint(name.split("_")):
        return cell(value)
    return f"{round(value):,}"


def _is_dispensable(values: Sequence[Any], unit: str | None) -> bool:
    """Whether a column is the first to be left out: it has no value, or long ones that only some look at."""
    if unit is None:
        return not any(values)
    return unit == "table" or all(value is None or value in ("", []) for value in values)


def local_time(text: str) -> str:
    """A time in RFC 3339, on the clock here; what is none stays as it is."""
    try:
        return datetime.fromisoformat(text).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return text


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def json_value(value: Any) -> Any:
    """Return what JSON shows for a type that it does not know: for `json.dumps(default=...)`."""
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


# -- a table as lines: columns are chosen and sized to a width, and no word is broken
#
# If not all columns fit, those without any value are left out first, then those on the right: a command puts
# what matters first. Each column gets what its longest word needs, up to `WORD_MAX`. The rest of the width is
# shared from the left. Texts are folded between words. A word that is too long is cut and gets an ellipsis.

WORD_MAX = 32
"""Characters that a column may have before others are left out: more than a time or most names have."""
TEXT_MIN = 24
"""The least characters of a column of texts, which else would be a pillar of words."""
GAP = "  "


@attrs.frozen
class Column:
    """A column of cells that are safe to show. `right`: it has numbers. `empty`: it has no value."""

    name: str
    cells: Sequence[str]
    right: bool = False
    empty: bool = False


@attrs.frozen
class Laid:
    """A table as it is shown. `cut`: whether a word was cut."""

    lines: list[str]
    left_out: list[str]
    cut: bool


def lay_out(columns: Sequence[Column], width: int | None, *, ruled: bool = False, kept: str = "") -> Laid:
    """Lay out a table. `width`: of a line; None: no limit. `ruled`: with a line below the header.

    The first column is never left out, and that called `kept` only after all others.
    """
    shown = list(columns)
    if width is None:
        widths = [_natural(column) for column in shown]
    else:
        while len(shown) > 1 and _sum([_needed(column) for column in shown]) > width:
            others = [column for column in shown[1:] if column.name != kept] or shown[1:]
            empty = [column for column in others if column.empty]
            shown.remove((empty or others)[-1])
        widths = _shared([(min(_needed(column), width), _natural(column)) for column in shown], width)
    folded = [
        [_folded(cell, wide) for cell in (column.name, *column.cells)]
        for column, wide in zip(shown, widths, strict=True)
    ]
    lines: list[str] = []
    for number, row in enumerate(zip(*folded, strict=True)):
        lines += _lines(row, widths, [column.right for column in shown])
        if ruled and not number:
            lines.append("─" * _sum(widths))
    cut = any(
        _length(word) > wide
        for column, wide in zip(shown, widths, strict=True)
        for cell in column.cells
        for word in cell.split()
    )
    names = {column.name for column in shown}
    return Laid(lines, [column.name for column in columns if column.name not in names], cut)


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _natural(column: Column) -> int:
    return max(map(_length, (column.name, *column.cells)))


def _needed(column: Column) -> int:
    words = (word for cell in column.cells for word in cell.split())
    word = min(max(map(_length, words), default=0), WORD_MAX)
    return max(_length(column.name), word, min(_natural(column), TEXT_MIN))


def _shared(sizes: Sequence[tuple[int, int]], width: int) -> list[int]:
    """Give each column what it needs, and share what is left over from the left."""
    spare = max(width - _sum([needed for needed, _ in sizes]), 0)
    widths = []
    for needed, natural in sizes:
        more = min(natural - needed, spare)
        spare -= more
        widths.append(needed + more)
    return widths


def _folded(cell: str, width: int) -> list[str]:
    if _length(cell) <= width:
        return [cell]
    lines = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
    return [line if len(line) <= width else line[: width - 1] + "…" for line in lines] or [""]


def _lines(row: Sequence[list[str]], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    for number in range(max(map(len, row))):
        parts = []
        for cell, width, is_right in zip(row, widths, right, strict=True):
            text = cell[number] if number < len(cell) else ""
            padding = " " * (width - _length(text))
            parts.append(padding + text if is_right else text + padding)
        yield GAP.join(parts).rstrip()


def _length(text: str) -> int:
    """Return the columns of a terminal that a text takes: a Chinese letter takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)

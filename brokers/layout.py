"""A table as lines: columns chosen and sized to a width, and no word broken.

Where all columns do not fit, those go first that say nothing in any row, then those on the right: a verb puts
what matters first. Each that is left gets what its longest word needs, up to `WORD_MAX`; what is left over is
shared from the left. Texts are folded between words; a word that is too long is cut: it ends in an ellipsis.
"""

import textwrap
from collections.abc import Iterator, Sequence

import attrs

WORD_MAX = 32
"""Characters that a column may have before others are left out: more than a time or most names."""
TEXT_MIN = 24
"""Characters that a column of texts has, so that one is not a pillar of words."""
GAP = "  "


@attrs.frozen
class Column:
    """A column of cells that are safe to show. `right`: of numbers. `empty`: nothing in it says anything."""

    name: str
    cells: Sequence[str]
    right: bool = False
    empty: bool = False


@attrs.frozen
class Laid:
    """A table, as it is shown. `cut`: of some word there is more."""

    lines: list[str]
    left_out: list[str]
    cut: bool


def lay_out(columns: Sequence[Column], width: int | None, *, ruled: bool = False) -> Laid:
    """`width`: what a line may have, None: as much as it takes. `ruled`: a line stands below the header."""
    shown = list(columns)
    if width is None:
        widths = [_natural(column) for column in shown]
    else:
        while len(shown) > 1 and _sum([_needed(column) for column in shown]) > width:
            empty = [number for number, column in enumerate(shown) if column.empty and number]
            del shown[empty[-1] if empty else -1]
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
    """What is needed by each, and what is left over: from the left, as far as each can use it."""
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
    """Columns of a terminal: a Chinese letter takes two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)

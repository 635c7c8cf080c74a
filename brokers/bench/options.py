"""The options that benchmarks have in common, and the going through what was chosen by them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from brokers.render import progress

Mode = TypeVar("Mode", bound=str)
Row = TypeVar("Row")

Size = Annotated[int, Parameter(help="Bytes of a message.")]
Seconds = Annotated[float, Parameter(help="Length of a round.")]
Rounds = Annotated[int, Parameter(help="Rounds of each case; the median counts.")]
DataDir = Annotated[Path | None, Parameter(help="A folder for its data: the disk that is meant.")]


def typed(values: Iterable[object]) -> str:
    """A default of several values as one would type it."""
    return " ".join(map(str, values))


SEVERAL = Parameter(negative="", consume_multiple=True, show_default=typed)
"""Of an option that takes several values."""
MODES = Parameter.combine(SEVERAL, Parameter(help="What to measure; repeatable."))
"""Of the option `--modes`: its type names the benchmark's own."""


def each(modes: Sequence[Mode], measure: Callable[[Mode], Iterable[Row]]) -> list[Row]:
    """Measure what was chosen, one after another, with a progress bar; the rows of all."""
    rows: list[Row] = []
    with progress("measuring", total=len(modes)) as update:
        for done, mode in enumerate(modes, 1):
            rows += measure(mode)
            update(done)
    return rows

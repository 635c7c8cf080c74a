"""The options that benchmarks have in common, and the going through what was chosen by them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from cyclopts import Parameter

from shared.cli.options import at_least_one
from shared.cli.progress import progress

Case = TypeVar("Case")
Row = TypeVar("Row")


def some(help_: str) -> Parameter:
    """A number of things, one at least."""
    return Parameter(help=help_, validator=at_least_one)


def maybe_none(help_: str) -> Parameter:
    """A number of things, maybe 0."""
    return Parameter(help=help_, validator=_not_negative)


def _not_negative(_: type, number: int) -> None:
    if number < 0:
        raise ValueError("0 at least")


def _above_nothing(_: type, number: float) -> None:
    if not 0 < number < math.inf:
        raise ValueError("above 0")


Size = Annotated[int, Parameter(help="Bytes of a message.")]
Seconds = Annotated[float, Parameter(help="Length of a round.", validator=_above_nothing)]
Rounds = Annotated[int, some("Rounds of each case; the median counts.")]
DataDir = Annotated[Path | None, Parameter(help="A folder for its data: the disk that is meant.")]


def typed(values: Iterable[object]) -> str:
    """A default of several values as one would type it."""
    return " ".join(map(str, values))


SEVERAL = Parameter(negative="", consume_multiple=True, show_default=typed)
"""The parameter of an option that takes several values."""
MODES = Parameter.combine(SEVERAL, Parameter(help="What to measure; repeatable."))
"""The parameter of the option `--modes`: its type names the benchmark's own modes."""


def each(cases: Sequence[Case], measure: Callable[[Case], Iterable[Row]]) -> Iterator[Row]:
    """Measure what was chosen, one after another, with a progress bar; the rows of all as they come."""
    with progress("measuring", total=len(cases)) as update:
        for done, case in enumerate(cases, 1):
            yield from measure(case)
            update(done)

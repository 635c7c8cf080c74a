"""Rows that a job works on: Spark's DataFrames, or Arrow tables that are in this process.

A job's function takes either and gives the same kind; what it gives is described once. Its part for tables
needs no Spark, and so neither does this module before it meets a DataFrame.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from brokers.pipeline.jobs.windows import microseconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame = Any
"""A DataFrame, or an Arrow table: pyarrow has no types that mypy could tell apart."""
_Some = TypeVar("_Some")

BROKER = "broker"
"""The column that says which folder or server a row is of, where there are several."""


def columns_of(frame: Frame) -> Sequence[str]:
    names: Sequence[str] = frame.column_names if isinstance(frame, pa.Table) else frame.columns
    return names


def by(frame: Frame, *columns: str) -> list[str]:
    """Columns to group by: these, and in front of them which broker's, where rows say it."""
    return [BROKER, *columns] if BROKER in columns_of(frame) else list(columns)


def rows_of(frame: Frame) -> list[dict[str, Any]]:
    """All rows of a frame; times have their zone."""
    table = frame if isinstance(frame, pa.Table) else frame.toArrow()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def union(frames: Iterable[_Some]) -> _Some:
    """All rows of several frames of one kind, which may differ in their other columns."""
    first: Any
    first, *others = frames
    if isinstance(first, pa.Table):
        first = pa.concat_tables([first, *others], promote_options="default")
    else:
        for other in others:
            first = first.unionByName(other, allowMissingColumns=True)
    found: _Some = first
    return found


def told_apart(frames: Mapping[str, _Some]) -> _Some:
    """The rows of each broker as one frame; with its name, where there are several."""
    if len(frames) == 1:
        (frame,) = frames.values()
        return frame
    return union(_named(source, frame) for source, frame in frames.items())


def _named(source: str, frame: _Some) -> _Some:
    some: Any = frame
    if isinstance(some, pa.Table):
        some = some.add_column(0, BROKER, pa.repeat(pa.scalar(source), len(some)))
    else:
        from pyspark.sql import functions as fn

        some = some.select(fn.lit(source).alias(BROKER), "*")
    found: _Some = some
    return found


def ordered(frame: Frame, *columns: str) -> Frame:
    """By these columns, ascending; nulls first."""
    if isinstance(frame, pa.Table):
        keys = [(name, "ascending", "at_start") for name in columns]
        return frame.sort_by(keys)
    return frame.orderBy(*columns)


def limited(frame: Frame, most: int) -> Frame:
    """The first so many rows; 0: all."""
    if not most:
        return frame
    return frame.slice(0, most) if isinstance(frame, pa.Table) else frame.limit(most)


@contextmanager
def kept(frame: Frame) -> Iterator[Frame]:
    """A frame that is looked at more than once: Spark does not make it anew each time."""
    if isinstance(frame, pa.Table):
        yield frame
        return
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


# -- of tables alone


def grouped(table: pa.Table, names: Sequence[str], **aggregates: tuple[str, str]) -> pa.Table:
    """A row for each group, in order of its first row. `aggregates`: a column's name, and of which what."""
    found = table.group_by(list(names), use_threads=False).aggregate(list(aggregates.values()))
    return pa.table(
        {name: found[name] for name in names}
        | {name: found[f"{column}_{what}"] for name, (column, what) in aggregates.items()}
    )


def readable(table: pa.Table) -> pa.Table:
    """The rows without a fault."""
    return table.filter(table["fault"].is_null())


def with_start(table: pa.Table, time: str, window: str) -> pa.Table:
    """With a column `start` more: when the window begins in which the row's time is."""
    step = microseconds(window)
    times = np.asarray(table[time].cast(pa.int64()).combine_chunks())
    return table.append_column("start", starts(times // step * step))


def starts(microseconds_: "NDArray[np.int64]") -> pa.Array:
    """Microseconds as times."""
    from shared.tables.table import time_type

    return pa.array(microseconds_, pa.int64()).cast(time_type())

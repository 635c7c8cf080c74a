"""The rows that a job works on: Spark's DataFrames, or Arrow tables in this process.

A job is a function from frames to a frame of the same kind. The functions here do the same with both kinds,
so a job is written once. Spark is imported only for a DataFrame.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.errors import UsageError
from shared.tables.table import time_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

Frame = Any
"""A DataFrame, or an Arrow table: pyarrow has no types that mypy could tell apart."""
_Some = TypeVar("_Some")
Row = Mapping[str, Any]

BROKER = "broker"
"""The column that names a row's folder or server, if there are several."""


def columns_of(frame: Frame) -> Sequence[str]:
    names: Sequence[str] = frame.column_names if isinstance(frame, pa.Table) else frame.columns
    return names


def by(frame: Frame, *columns: str) -> list[str]:
    """Return the columns to group by: these, with the broker in front if rows have it."""
    return [BROKER, *columns] if BROKER in columns_of(frame) else list(columns)


def rows_of(frame: Frame) -> list[dict[str, Any]]:
    """Return all rows of a frame. Times have their zone."""
    table = frame if isinstance(frame, pa.Table) else frame.toArrow()
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def union(frames: Iterable[_Some]) -> _Some:
    """Return all rows of several frames of one kind. A column that one does not have is null there."""
    first: Any
    first, *others = frames
    if isinstance(first, pa.Table):
        first = pa.concat_tables([first, *others], promote_options="default")
    else:
        for other in others:
            first = first.unionByName(other, allowMissingColumns=True)
    found: _Some = first
    return found


def with_broker_names(frames: Mapping[str, _Some]) -> _Some:
    """Return the rows of all brokers as one frame. If there are several, their names are a column."""
    if len(frames) == 1:
        (frame,) = frames.values()
        return frame
    named: Any = ((with_text(frame, BROKER, source), columns_of(frame)) for source, frame in frames.items())
    found: _Some = union(frame.select([BROKER, *columns]) for frame, columns in named)
    return found


def with_text(frame: Frame, column: str, text: str) -> Frame:
    """Add a column with the same text in every row."""
    if isinstance(frame, pa.Table):
        return frame.append_column(column, pa.repeat(pa.scalar(text), len(frame)))
    from pyspark.sql import functions as fn

    return frame.withColumn(column, fn.lit(text))


def with_start(frame: Frame, time: str, window: str) -> Frame:
    """Add a column `start`: when the window of the row's time begins."""
    if isinstance(frame, pa.Table):
        step = microseconds(window)
        times = np.asarray(frame[time].cast(pa.int64()).combine_chunks())
        return frame.append_column("start", starts(times // step * step))
    from pyspark.sql import functions as fn

    return frame.withColumn("start", fn.window(time, window).getField("start"))


def with_value(frame: Frame, column: str) -> Frame:
    """Return the rows in which a column is not null."""
    return frame.filter(
        frame[column].is_valid() if isinstance(frame, pa.Table) else frame[column].isNotNull()
    )


def readable(frame: Frame) -> Frame:
    """Return the rows without a fault."""
    return frame.filter(frame["fault"].is_null() if isinstance(frame, pa.Table) else frame["fault"].isNull())


def ordered(frame: Frame, *columns: str) -> Frame:
    """Sort by these columns: ascending, nulls first. A `-` before a name: descending, nulls last."""
    names = [(name.removeprefix("-"), name.startswith("-")) for name in columns]
    if isinstance(frame, pa.Table):
        ways = {False: ("ascending", "at_start"), True: ("descending", "at_end")}
        return frame.sort_by([(name, *ways[falls]) for name, falls in names])
    return frame.orderBy(*(frame[name].desc() if falls else frame[name] for name, falls in names))


def limited(frame: Frame, most: int) -> Frame:
    """Return the first `most` rows; 0: all."""
    if not most:
        return frame
    return frame.slice(0, most) if isinstance(frame, pa.Table) else frame.limit(most)


def grouped(frame: Frame, names: Sequence[str], **aggregates: tuple[str, str]) -> Frame:
    """Return a row for each group. A table's groups are in the order of their first rows.

    `aggregates`: by new column, the column and the function (`sum`, `min`, `max`, `mean`, `count`).
    """
    if isinstance(frame, pa.Table):
        found = frame.group_by(list(names), use_threads=False).aggregate(list(aggregates.values()))
        return pa.table(
            {name: found[name] for name in names}
            | {name: found[f"{column}_{what}"] for name, (column, what) in aggregates.items()}
        )
    from pyspark.sql import functions as fn

    columns = (getattr(fn, what)(column).alias(name) for name, (column, what) in aggregates.items())
    return frame.groupBy(*names).agg(*columns)


def by_group(
    frame: Frame, names: Sequence[str], function: Callable[[pa.Table], pa.Table], schema: pa.Schema
) -> Frame:
    """Apply `function` to the table of each group's rows. It returns rows of `schema`.

    Spark runs it in its workers, each group in the memory of one. So it must pickle: a function or a partial.
    """
    if isinstance(frame, pa.Table):
        return pa.concat_tables(
            [schema.empty_table(), *(function(rows).cast(schema) for rows in _groups(frame, names))]
        )
    from pyspark.sql import functions as fn
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import ArrayType

    def run(groups: pa.Array) -> pa.Array:
        found = [function(pa.Table.from_struct_array(rows.values)).cast(schema) for rows in groups]
        ends = np.cumsum([0, *map(len, found)], dtype=np.int32)
        every = pa.concat_tables([schema.empty_table(), *found]).to_struct_array().combine_chunks()
        return pa.ListArray.from_arrays(pa.array(ends), every)

    make: Any = arrow_udf  # its types do not know arrays; applyInArrow would need pandas
    apply = make(run, returnType=ArrayType(from_arrow_schema(schema)))
    lists = frame.groupBy(*names).agg(fn.collect_list(fn.struct("*")).alias("rows"))
    return lists.select(fn.explode(apply("rows")).alias("row")).select("row.*")


def _groups(table: pa.Table, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield each group's rows, in order."""
    numbered = table.append_column("row", pa.array(np.arange(len(table))))
    for rows in grouped(numbered, names, rows=("row", "list"))["rows"]:
        yield table.take(rows.values).combine_chunks()


def is_one_of(frame: Frame, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a column that is true for rows equal to one of these few. A null equals a null."""
    if isinstance(frame, pa.Table):
        nothing: Any = pa.chunked_array([pa.repeat(pa.scalar(False), len(frame))])

        def equals(name: str, value: Any) -> Any:
            return pc.is_in(frame[name], pa.array([value], frame[name].type))

        every, some = pc.and_, pc.or_
    else:
        from pyspark.sql import functions as fn

        nothing = fn.lit(False)

        def equals(name: str, value: Any) -> Any:
            return frame[name].eqNullSafe(value)

        every, some = and_, or_
    return reduce(some, (reduce(every, (equals(*each) for each in row.items())) for row in rows), nothing)


@contextmanager
def kept(frame: Frame) -> Iterator[Frame]:
    """Keep a frame that is used more than once, so that Spark does not compute it each time."""
    if isinstance(frame, pa.Table):
        yield frame
        return
    frame.persist()
    try:
        yield frame
    finally:
        frame.unpersist()


# -- windows of time: lengths as Spark writes them, checked before Spark starts

_LENGTH = re.compile(r"([1-9]\d{0,5}) ?(second|minute|hour|day)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400}


def length(text: str, option: str) -> str:
    """Return a length as Spark writes it: `1 minute`. Raises UsageError, which names the option."""
    found = _LENGTH.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(option, f"not a length of time, such as '1 minute' or '30 seconds': {text!r}")
    return f"{found[1]} {found[2]}"


def in_words(window: str) -> str:
    """Return a length for readers: `1 minute`, `30 seconds`."""
    count, _, unit = length(window, "window").partition(" ")
    return f"{count} {unit}{'' if count == '1' else 's'}"


def microseconds(window: str) -> int:
    count, _, unit = length(window, "window").partition(" ")
    return int(count) * _SECONDS[unit] * 1_000_000


def starts(microseconds_: "NDArray[np.int64]") -> pa.Array:
    return pa.array(microseconds_, pa.int64()).cast(time_type())

"""What leaves its usual band: rates by name, and values that were read.

A series is one measure of one name, a point for each window of time. The usual value at a point is the
median of the `history` points before it, and their spread the median of the distances from that (times
1.4826: for normal noise that is the standard deviation). The band is the usual value plus and minus
`tolerance` spreads. Medians do not mind a few wild points, so an outbreak neither hides the next nor widens
the band for long.

A new level is told of until most of the newest `LEVEL` points lie outside on the same side. Then the band of
these counts too, and a point is outside where it is outside of both.

Two things keep quiet series quiet: a count is given the spread that chance alone gives it (its square root),
and a value that hardly moves a hundredth of itself. With `by_hour` a point is compared with the same hour of
the days before instead, for series that have a daily course.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs.frames import Frame, by, grouped, ordered, readable, starts, with_start
from brokers.pipeline.jobs.windows import in_words, length, microseconds

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column

    Numbers = NDArray[np.float64]

HISTORY = 60
LEAST = 20
"""With fewer points before it nothing is said of a point."""
TOLERANCE = 6.0
LEVEL = 10
"""Points of which a new level takes up eight before it is usual: all but a quarter, rounded down."""
_NARROW = 4.0
"""So many times narrower is what the newest points say more than all before."""
_DEVIATION = 1.4826
_VALUE_SPREAD_LEAST = 0.01
_NAMES = ("protocol", "name")


def rates(volumes: Frame, window: str = "1 minute") -> Frame:
    """The series of messages by window, from the decoded rows of the table `volumes`.

    A window without messages is a zero, from a name's first message to the last of any; the window in which
    that one came is not over, and is left out.
    """
    of = by(volumes, *_NAMES)
    measure = f"messages in {in_words(window)}"
    if isinstance(volumes, pa.Table):
        return _rates(volumes, window, of, measure)
    from pyspark.sql import functions as fn

    readable = volumes.where(fn.col("fault").isNull())
    counted = readable.groupBy(fn.window("time", window).alias("window"), *of).agg(
        fn.sum("messages").alias("messages")
    )
    counted = counted.select(fn.col("window.start").alias("start"), *of, "messages")
    step = fn.expr(f"INTERVAL {length(window, 'window')}")
    names = counted.groupBy(*of).agg(fn.min("start").alias("first"))
    last = counted.agg((fn.max("start") - step).alias("last"))
    grid = names.crossJoin(fn.broadcast(last)).where(fn.col("first") <= fn.col("last"))
    every = grid.select(*of, fn.explode(fn.sequence("first", "last", step)).alias("start"))
    value = fn.coalesce("messages", fn.lit(0)).cast("double").alias("value")
    return every.join(counted, [*of, "start"], "left").select(
        "start", *of, fn.lit(measure).alias("measure"), value
    )


def _rates(volumes: pa.Table, window: str, of: "list[str]", measure: str) -> pa.Table:
    step = microseconds(window)
    by_window = with_start(readable(volumes), "time", window)
    counted = grouped(by_window, [*of, "start"], messages=("messages", "sum"))
    last = _micros(counted).max(initial=0) - step
    found = []
    for key, rows in _each(counted, of):
        times = _micros(rows)
        first = times.min()
        values = np.zeros(max((last - first) // step + 1, 0))
        at = (times - first) // step
        within = at < len(values)
        values[at[within]] = np.asarray(rows["messages"])[within]
        grid = first + step * np.arange(len(values))
        found.append(_points(grid, of, key, measure, values))
    return pa.concat_tables([_points(np.empty(0, np.int64), of, [""] * len(of), "", np.empty(0)), *found])


def values(readings: Frame, window: str = "1 minute") -> Frame:
    """The series of the mean of what was read by window; `readings` has `time`, `protocol`, `name`, `value`.

    A window without readings is no point.
    """
    of = by(readings, *_NAMES)
    if isinstance(readings, pa.Table):
        there = readable(readings)
        by_window = with_start(there.filter(there["value"].is_valid()), "time", window)
        found = grouped(by_window, ["start", *of], value=("value", "mean"))
        named = found.append_column("measure", pa.repeat(pa.scalar("value"), len(found)))
        return named.select(["start", *of, "measure", "value"])
    from pyspark.sql import functions as fn

    return (
        readings.where(fn.col("fault").isNull() & fn.col("value").isNotNull())
        .groupBy(fn.window("time", window).alias("window"), *of)
        .agg(fn.avg("value").alias("value"))
        .select(
            fn.col("window.start").alias("start"),
            *of,
            fn.lit("value").alias("measure"),
            "value",
        )
    )


def bands(
    series: Frame,
    *,
    history: int = HISTORY,
    least: int = LEAST,
    tolerance: float = TOLERANCE,
    by_hour: bool = False,
) -> Frame:
    """Every point with its band: `usual`, `low`, `high` (null: too little history), and whether it is
    outside.

    `distance`: from the usual value, in spreads.
    """
    if isinstance(series, pa.Table):
        return _bands(series, history, least, tolerance, by_hour)
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    each = by(series, *_NAMES, "measure")
    hour = [fn.hour("start")] if by_hour else []
    ordered = Window.partitionBy(*each, *hour).orderBy("start")
    before = ordered.rowsBetween(-history, -1)
    level = min(LEVEL, history)
    # Columns of windows stay columns: any other would be written out wherever it is named, in an array's
    # every element.
    known = series.withColumns(
        {
            "before": fn.collect_list("value").over(before),
            "middle": fn.percentile("value", 0.5).over(before),
            "points": fn.count("value").over(before),
            "newest": fn.collect_list("value").over(ordered.rowsBetween(-level, -1)),
            "level": fn.percentile("value", 0.5).over(ordered.rowsBetween(-level, -1)),
        }
    )
    is_count = fn.col("measure") != "value"

    def spread(away: str, middle: str) -> "Column":
        least_spread = fn.when(is_count, fn.sqrt(fn.greatest(middle, fn.lit(1.0)))).otherwise(
            fn.greatest(fn.abs(middle) * _VALUE_SPREAD_LEAST, fn.lit(1e-9))
        )
        return fn.greatest(_median(away) * _DEVIATION, least_spread)

    def away(values: str, middle: str) -> "Column":
        return fn.array_sort(fn.transform(values, lambda value: fn.abs(value - fn.col(middle))))

    known = known.withColumns(
        {
            "usual": fn.when(fn.col("points") >= least, fn.col("middle")),
            "away": away("before", "middle"),
            "level_away": away("newest", "level"),
            "newest": fn.array_sort("newest"),
        }
    )
    known = known.withColumns(
        {"spread": spread("away", "usual"), "level_spread": spread("level_away", "level")}
    )
    wide = fn.col("spread") * tolerance
    few = level // 4
    moved = (fn.get("newest", fn.lit(few)) > fn.col("usual") + wide) | (
        fn.get("newest", fn.lit(level - 1 - few)) < fn.col("usual") - wide
    )

    def far(middle: str, spread: str) -> "Column":
        return fn.abs(fn.col("value") - fn.col(middle)) / fn.col(spread)

    near = far("level", "level_spread")
    mixed = (fn.col("level_spread") * _NARROW < fn.col("spread")) & (
        fn.get("level_away", fn.lit(level - 1 - few)) <= fn.col("level_spread") * tolerance
    )
    taken = (moved & (near <= far("usual", "spread"))) | (mixed & (near <= tolerance))
    taken = fn.coalesce((fn.size("newest") == level) & taken, fn.lit(False))
    known = known.withColumn("taken", taken & fn.col("usual").isNotNull())
    known = known.withColumns(
        {
            "usual": fn.when(fn.col("taken"), fn.col("level")).otherwise(fn.col("usual")),
            "spread": fn.when(fn.col("taken"), fn.col("level_spread")).otherwise(fn.col("spread")),
        }
    )
    reach = fn.col("spread") * tolerance
    low = fn.col("usual") - reach
    return known.select(
        "start",
        *each,
        "value",
        "usual",
        fn.when(is_count & (low < 0), 0.0).otherwise(low).alias("low"),
        (fn.col("usual") + reach).alias("high"),
        ((fn.col("value") - fn.col("usual")) / fn.col("spread")).alias("distance"),
        fn.coalesce(fn.abs(fn.col("value") - fn.col("usual")) > reach, fn.lit(False)).alias("outside"),
    )


def _bands(series: pa.Table, history: int, least: int, tolerance: float, by_hour: bool) -> pa.Table:
    each = by(series, *_NAMES, "measure")
    keys = list(each)
    if by_hour:
        series = series.append_column("hour", pc.hour(series["start"]))
        keys.append("hour")
    found = []
    for key, rows in _each(series.sort_by("start"), keys):
        is_count = key[len(each) - 1] != "value"
        values = np.asarray(rows["value"])
        usual, spread = _usual(values, history, is_count)
        usual = np.where(np.minimum(np.arange(len(values)), history) >= least, usual, np.nan)
        wide, level = spread * tolerance, min(LEVEL, history)
        few, counts = level // 4, np.minimum(np.arange(len(values)), level)
        newest = np.sort(_before(values, level), axis=1)
        away = np.sort(np.abs(newest - _medians(newest, counts)[:, None]), axis=1)
        new_usual, new_spread = _usual(values, level, is_count)
        moved = (newest[:, few] > usual + wide) | (newest[:, level - 1 - few] < usual - wide)
        near = np.abs(values - new_usual) / new_spread
        taken = moved & (near <= np.abs(values - usual) / spread)
        mixed = (new_spread * _NARROW < spread) & (away[:, level - 1 - few] <= new_spread * tolerance)
        taken |= mixed & (near <= tolerance)
        taken &= (counts == level) & ~np.isnan(usual)
        usual, spread = np.where(taken, new_usual, usual), np.where(taken, new_spread, spread)
        reach = spread * tolerance
        low = usual - reach
        if is_count:
            low = np.maximum(low, 0.0)
        columns = {"usual": usual, "low": low, "high": usual + reach, "distance": (values - usual) / spread}
        unknown = np.isnan(usual)
        for name, column in columns.items():
            rows = rows.append_column(name, pa.array(column, mask=unknown))
        outside = ~unknown & (np.abs(values - usual) > reach)
        found.append(rows.append_column("outside", pa.array(outside)))
    if not found:
        schema = series.select(["start", *each, "value"]).schema
        for name in ("usual", "low", "high", "distance"):
            schema = schema.append(pa.field(name, pa.float64()))
        return schema.append(pa.field("outside", pa.bool_())).empty_table()
    return pa.concat_tables(found).drop_columns(["hour"] if by_hour else [])


def _usual(values: "Numbers", history: int, is_count: bool) -> "tuple[Numbers, Numbers]":
    """At each point the median of those before it, and the spread; NaN at the first."""
    before = _before(values, history)
    counts = np.minimum(np.arange(len(values)), history)
    usual = _medians(before, counts)
    least = (
        np.sqrt(np.maximum(usual, 1.0)) if is_count else np.maximum(abs(usual) * _VALUE_SPREAD_LEAST, 1e-9)
    )
    return usual, np.fmax(_medians(np.abs(before - usual[:, None]), counts) * _DEVIATION, least)


def _before(values: "Numbers", history: int) -> "Numbers":
    """A row for each point: so many values before it; NaN where there are fewer."""
    padded = np.concatenate([np.full(history, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, history)[: len(values)]


def _medians(rows: "Numbers", counts: Any) -> "Numbers":
    """Of the numbers in each row, of which there are `counts`."""
    ascending = np.sort(rows, axis=1)  # NaN last
    at = np.arange(len(rows))
    lower, upper = ascending[at, np.maximum(counts - 1, 0) // 2], ascending[at, counts // 2]
    middle: Numbers = lower + (upper - lower) / 2
    return middle


def anomalies(banded: Frame) -> Frame:
    """The points outside of their bands, in order."""
    if isinstance(banded, pa.Table):
        found = banded.filter(banded["outside"]).drop_columns("outside")
    else:
        from pyspark.sql import functions as fn

        found = banded.where(fn.col("outside")).drop("outside")
    return ordered(found, "start", *by(banded, *_NAMES, "measure"))


def _median(column: str) -> "Column":
    """Of a sorted array; null of an empty one."""
    from pyspark.sql import functions as fn

    size, array = fn.size(column), fn.col(column)
    lower = fn.get(array, fn.floor((size - 1) / 2).cast("int"))
    upper = fn.get(array, fn.floor(size / 2).cast("int"))
    return fn.when(size > 0, (lower + upper) / 2)


# -- of tables alone


def _each(table: pa.Table, of: "list[str]") -> "Iterator[tuple[list[Any], pa.Table]]":
    """Each group's key and rows, which stay in order."""
    table = table.append_column("row", pa.array(np.arange(len(table))))
    lists = grouped(table, of, rows=("row", "list"))
    table = table.drop_columns("row")
    for number, rows in enumerate(lists["rows"]):
        yield [lists[name][number].as_py() for name in of], table.take(rows.values).combine_chunks()


def _points(times: Any, of: "list[str]", key: "list[Any]", measure: str, values: "Numbers") -> pa.Table:
    names = {
        name: pa.repeat(pa.scalar(each, pa.string()), len(times)) for name, each in zip(of, key, strict=True)
    }
    text = pa.repeat(pa.scalar(measure), len(times))
    return pa.table(
        {"start": starts(times), **names, "measure": text, "value": pa.array(values, pa.float64())}
    )


def _micros(rows: pa.Table) -> "NDArray[np.int64]":
    return np.asarray(rows["start"].cast(pa.int64()).combine_chunks())

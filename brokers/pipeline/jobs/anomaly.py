"""Finds rates by name, and measured values, that leave their usual band.

A series is one measure of one name, with a point for each window of time. The usual value at a point is the
median of the `history` points before it. Their spread is the median of the distances from that (times 1.4826,
which is the standard deviation of normal noise). The band is the usual value plus and minus `tolerance`
spreads. A few wild points hardly change medians, so an outbreak does not hide the next one.

A new level is reported until most of the newest `LEVEL` points lie outside on one side. From then on the band
of these points counts, too: a point is outside if it is outside of both bands.

Two rules keep quiet series quiet. The spread of a count is at least its square root, which chance alone gives
it. The spread of a value is at least a hundredth of it. With `by_hour` a point is compared with the same hour
of earlier days, for series with a daily course.
"""

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs.frames import (
    Frame,
    by,
    by_group,
    columns_of,
    grouped,
    in_words,
    microseconds,
    ordered,
    readable,
    starts,
    union,
    with_start,
    with_text,
    with_value,
)
from shared.tables.table import time_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

HISTORY = 60
LEAST = 20
"""A point needs so many points before it to be judged."""
TOLERANCE = 6.0
LEVEL = 10
"""The newest points. A new level is usual once it has eight of them: all but a quarter, rounded down."""
_NARROW = 4.0
"""If the newest points spread so many times less than all before, their band counts."""
NUMBERS_AT_ONCE = 1 << 20
"""Numbers of all points together, each with its history: there may be a week of seconds, and an hour before
each."""
_DEVIATION = 1.4826
_VALUE_SPREAD_LEAST = 0.01
_NAMES = ("protocol", "name")


def rates(volumes: Frame, window: str = "1 minute") -> Frame:
    """Return the series of messages by window, from decoded rows of `volumes`.

    A window without messages is a zero, from the name's first message to the last message of any name. The
    last window is not over, and is left out.
    """
    of, step = by(volumes, *_NAMES), microseconds(window)
    by_window = with_start(readable(volumes), "time", window)
    counted = grouped(by_window, [*of, "start"], messages=("messages", "sum"))
    if isinstance(counted, pa.Table):
        last = pa.repeat(pc.max(counted["start"]), len(counted))
        counted = counted.append_column("last", last.cast(time_type()))
    else:
        from pyspark.sql import functions as fn

        counted = counted.crossJoin(fn.broadcast(counted.agg(fn.max("start").alias("last"))))
    every = by_group(counted, of, partial(_without_gaps, step=step), _points_schema(of))
    return with_text(every, "measure", f"messages in {in_words(window)}").select(
        ["start", *of, "measure", "value"]
    )


def _without_gaps(counted: pa.Table, step: int) -> pa.Table:
    """Return a name's points for every window from its first on, except the `last`, which is not over."""
    times = _micros(counted["start"])
    first = times.min()
    values = np.zeros(max((_micros(counted["last"])[0] - first) // step, 0))
    at = (times - first) // step
    within = at < len(values)
    values[at[within]] = np.asarray(counted["messages"])[within]
    names = {name: counted[name].take(np.zeros(len(values), np.int64)) for name in counted.column_names[:-3]}
    return pa.table({"start": starts(first + step * np.arange(len(values))), **names, "value": values})


def _points_schema(of: list[str]) -> pa.Schema:
    return pa.schema([("start", time_type()), *((name, pa.string()) for name in of), ("value", pa.float64())])


def values(readings: Frame, window: str = "1 minute") -> Frame:
    """Return the series of mean values by window. `readings`: `time`, `protocol`, `name`, `value`.

    A window without readings has no point.
    """
    of = by(readings, *_NAMES)
    by_window = with_start(with_value(readable(readings), "value"), "time", window)
    found = grouped(by_window, ["start", *of], value=("value", "mean"))
    return with_text(found, "measure", "value").select(["start", *of, "measure", "value"])


def series(volumes: Frame, readings: Iterable[Frame], window: str = "1 minute") -> Frame:
    """Return all series of `rates` and `values`."""
    return union([rates(volumes, window), *(values(each, window) for each in readings)])


def bands(
    series: Frame,
    *,
    history: int = HISTORY,
    least: int = LEAST,
    tolerance: float = TOLERANCE,
    by_hour: bool = False,
) -> Frame:
    """Add to every point its band (`usual`, `low`, `high`; null: too little history), and `outside`.

    `distance`: from the usual value, in spreads.
    """
    each = by(series, *_NAMES, "measure")
    schema = _points_schema(each)
    for name in ("usual", "low", "high", "distance"):
        schema = schema.append(pa.field(name, pa.float64()))
    schema = schema.append(pa.field("outside", pa.bool_()))
    if by_hour and isinstance(series, pa.Table):
        series = series.append_column("hour", pc.hour(series["start"]))
    elif by_hour:
        from pyspark.sql import functions as fn

        series = series.withColumn("hour", fn.hour("start"))
    banded = partial(_banded, columns=schema.names, history=history, least=least, tolerance=tolerance)
    return by_group(series, [*each, "hour"] if by_hour else each, banded, schema)


def _banded(rows: pa.Table, columns: list[str], history: int, least: int, tolerance: float) -> pa.Table:
    rows = rows.sort_by("start")
    is_count = rows["measure"][0].as_py() != "value"
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
    low = np.maximum(usual - reach, 0.0) if is_count else usual - reach
    unknown = np.isnan(usual)
    found = {"usual": usual, "low": low, "high": usual + reach, "distance": (values - usual) / spread}
    for name, column in found.items():
        rows = rows.append_column(name, pa.array(column, mask=unknown))
    outside = ~unknown & (np.abs(values - usual) > reach)
    return rows.append_column("outside", pa.array(outside)).select(columns)


def _usual(values: "Numbers", history: int, is_count: bool) -> "tuple[Numbers, Numbers]":
    """Return, at each point, the median of those before it and their spread; NaN at the first point."""
    history = min(history, len(values))
    before = _before(values, history)
    counts = np.minimum(np.arange(len(values)), history)
    usual, spread = np.empty_like(values), np.empty_like(values)
    points = max(1, NUMBERS_AT_ONCE // history)
    for start in range(0, len(values), points):
        some = slice(start, start + points)
        usual[some] = _medians(before[some], counts[some])
        spread[some] = _medians(np.abs(before[some] - usual[some, None]), counts[some]) * _DEVIATION
    least = (
        np.sqrt(np.maximum(usual, 1.0)) if is_count else np.maximum(abs(usual) * _VALUE_SPREAD_LEAST, 1e-9)
    )
    return usual, np.fmax(spread, least)


def _before(values: "Numbers", history: int) -> "Numbers":
    """Return a row for each point: the `history` values before it, filled with NaN."""
    padded = np.concatenate([np.full(history, np.nan), values])
    return np.lib.stride_tricks.sliding_window_view(padded, history)[: len(values)]


def _medians(rows: "Numbers", counts: Any) -> "Numbers":
    """Return the median of each row, which has `counts` numbers."""
    ascending = np.sort(rows, axis=1)  # NaN last
    at = np.arange(len(rows))
    lower, upper = ascending[at, np.maximum(counts - 1, 0) // 2], ascending[at, counts // 2]
    middle: Numbers = lower + (upper - lower) / 2
    return middle


def anomalies(banded: Frame) -> Frame:
    """Return the points outside of their bands, in order."""
    found = banded.filter(banded["outside"])
    return ordered(
        found.select([name for name in columns_of(found) if name != "outside"]),
        "start",
        *by(banded, *_NAMES, "measure"),
    )


def _micros(times: pa.ChunkedArray) -> "NDArray[np.int64]":
    return np.asarray(times.cast(pa.int64()).combine_chunks())

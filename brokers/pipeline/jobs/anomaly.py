"""What leaves its usual band: rates by name, and values that were read.

A series is one measure of one name, a point for each window of time. The usual value at a point is the
median of the `history` points before it, and their spread the median of the distances from that (times
1.4826: for normal noise that is the standard deviation). The band is the usual value plus and minus
`tolerance` spreads. Medians do not mind a few wild points, so an outbreak neither hides the next nor widens
the band for long; a new level is told of until it has filled half of the history, and then is the usual
one.

Two things keep quiet series quiet: a count is given the spread that chance alone gives it (its square root),
and a value that hardly moves a hundredth of itself. With `by_hour` a point is compared with the same hour of
the days before instead, for series that have a daily course.
"""

from typing import TYPE_CHECKING

from brokers.pipeline.jobs.where import by
from brokers.pipeline.jobs.windows import in_words, length

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

HISTORY = 60
LEAST = 20
"""With fewer points before it nothing is said of a point."""
TOLERANCE = 6.0
_DEVIATION = 1.4826
_VALUE_SPREAD_LEAST = 0.01
_NAMES = ("protocol", "name")


def rates(volumes: "DataFrame", window: str = "1 minute") -> "DataFrame":
    """The series of messages by window, from the decoded rows of the table `volumes`.

    A window without messages is a zero, from a name's first message to the last of any; the window in which
    that one came is not over, and is left out.
    """
    from pyspark.sql import functions as fn

    of = by(volumes, *_NAMES)
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
        "start", *of, fn.lit(f"messages in {in_words(window)}").alias("measure"), value
    )


def values(readings: "DataFrame", window: str = "1 minute") -> "DataFrame":
    """The series of the mean of what was read by window; `readings` has `time`, `protocol`, `name`, `value`.

    A window without readings is no point.
    """
    from pyspark.sql import functions as fn

    of = by(readings, *_NAMES)
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
    series: "DataFrame",
    *,
    history: int = HISTORY,
    least: int = LEAST,
    tolerance: float = TOLERANCE,
    by_hour: bool = False,
) -> "DataFrame":
    """Every point with its band: `usual`, `low`, `high` (null: too little history), and whether it is
    outside.

    `distance`: from the usual value, in spreads.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    each = by(series, *_NAMES, "measure")
    hour = [fn.hour("start")] if by_hour else []
    before = Window.partitionBy(*each, *hour).orderBy("start").rowsBetween(-history, -1)
    # Columns of windows stay columns: any other would be written out wherever it is named, in an array's
    # every element.
    known = series.withColumns(
        {
            "before": fn.collect_list("value").over(before),
            "middle": fn.percentile("value", 0.5).over(before),
            "points": fn.count("value").over(before),
        }
    )
    known = known.withColumn("usual", fn.when(fn.col("points") >= least, fn.col("middle")))
    away = fn.array_sort(fn.transform("before", lambda value: fn.abs(value - fn.col("middle"))))
    known = known.withColumn("away", away)
    is_count = fn.col("measure") != "value"
    least_spread = fn.when(is_count, fn.sqrt(fn.greatest("usual", fn.lit(1.0)))).otherwise(
        fn.greatest(fn.abs("usual") * _VALUE_SPREAD_LEAST, fn.lit(1e-9))
    )
    known = known.withColumn("spread", fn.greatest(_median("away") * _DEVIATION, least_spread))
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


def anomalies(banded: "DataFrame") -> "DataFrame":
    """The points outside of their bands, in order."""
    from pyspark.sql import functions as fn

    return banded.where(fn.col("outside")).drop("outside").orderBy("start", *by(banded, *_NAMES, "measure"))


def _median(column: str) -> "Column":
    """Of a sorted array; null of an empty one."""
    from pyspark.sql import functions as fn

    size, array = fn.size(column), fn.col(column)
    lower = fn.get(array, fn.floor((size - 1) / 2).cast("int"))
    upper = fn.get(array, fn.floor(size / 2).cast("int"))
    return fn.when(size > 0, (lower + upper) / 2)

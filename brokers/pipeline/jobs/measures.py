"""How much went through: messages and bytes by protocol, name and window of time."""

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs.frames import (
    Frame,
    by,
    grouped,
    microseconds,
    ordered,
    readable,
    union,
    with_start,
    with_text,
    with_value,
)
from brokers.pipeline.jobs.frames import by as names_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RATES = {"messages_per_second": "messages", "bytes_per_second": "bytes"}


def throughput(volumes: Frame, window: str = "1 minute") -> Frame:
    """`start`, `broker` (of several), `protocol`, `name`, `messages`, `bytes`, and both by the second.

    A row for each window with traffic, in order. `volumes`: rows of that table as they are decoded.
    """
    names = by(volumes, "protocol", "name")
    if not isinstance(volumes, pa.Table):
        return ordered(following(volumes, window), "start", *names)
    found = grouped(
        with_start(readable(volumes), "time", window),
        ["start", *names],
        messages=("messages", "sum"),
        bytes=("bytes", "sum"),
    )
    seconds = microseconds(window) / 1_000_000
    for rate, of in _RATES.items():
        found = found.append_column(rate, pc.divide(found[of].cast(pa.float64()), seconds))
    return ordered(found, "start", *names)


def following(volumes: "DataFrame", window: str = "1 minute", watermark: str | None = None) -> "DataFrame":
    """The same with Spark, in no order, and of a stream too.

    `watermark`, for a stream: how late a message may be; a window is complete, and given, once that time has
    passed behind its end.
    """
    from pyspark.sql import functions as fn

    sound = readable(volumes)
    if watermark is not None:
        sound = sound.withWatermark("time", watermark)
    names = by(volumes, "protocol", "name")
    span = fn.col("window.end").cast("double") - fn.col("window.start").cast("double")
    found: DataFrame = (
        sound.groupBy(fn.window("time", window), *names)
        .agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
        .select(
            fn.col("window.start").alias("start"),
            *names,
            "messages",
            "bytes",
            *((fn.col(of) / span).alias(rate) for rate, of in _RATES.items()),
        )
    )
    return found


MEASURES = ("until_delivered_ms", "in_queue_ms")
"""Of a life: from when it came to the first delivery, and to its end."""
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_ACCURACY = 10_000
"""Of Spark's: a rank is off by one in so many at most; up to so many messages percentiles are exact."""


def latency(lives: Frame, window: str | None = None) -> Frame:
    """`protocol`, `name`, `measure`, `messages`, `p50_ms` and so on, `max_ms`: a row a queue and measure.

    A message counts once it was delivered, or has left. `window`: by when it came, too, as `start`.
    """
    keys = [*(["start"] if window is not None else []), *names_of(lives, "protocol", "name"), "measure"]
    if not isinstance(lives, pa.Table):
        return ordered(_with_spark(lives, window), *keys)
    if window is not None:
        lives = with_start(with_value(lives, "produced"), "produced", window)
    measured = union(
        with_text(lives.select([*keys[:-1], name]).rename_columns([*keys[:-1], "ms"]), "measure", name)
        for name in MEASURES
    )
    found = grouped(with_value(measured, "ms"), keys, ms=("ms", "list"))
    each = [np.sort(values.values.to_numpy()) for values in found["ms"]]
    found = found.drop_columns("ms").append_column("messages", pa.array(map(len, each), pa.int64()))
    for percent in PERCENTILES:
        ranks = [values[max(math.ceil(percent / 100 * len(values)), 1) - 1] for values in each]
        found = found.append_column(f"p{percent:g}_ms", pa.array(ranks, pa.int64()))
    most = pa.array([values[-1] for values in each], pa.int64())
    return ordered(found.append_column("max_ms", most), *keys)


def _with_spark(lives: "DataFrame", window: str | None) -> "DataFrame":
    from pyspark.sql import functions as fn

    by = [fn.window("produced", window).alias("window")] if window is not None else []
    start = [fn.col("window.start").alias("start")] if window is not None else []
    measures = fn.explode(
        fn.array(*(fn.struct(fn.lit(name).alias("measure"), fn.col(name).alias("ms")) for name in MEASURES))
    )
    names = names_of(lives, "protocol", "name")
    ranks = [each / 100 for each in PERCENTILES]
    return (
        lives.select(*(["produced"] if by else []), *names, measures.alias("life"))
        .select("*", "life.*")
        .where(fn.col("ms").isNotNull())
        .groupBy(*by, *names, "measure")
        .agg(
            fn.count("ms").alias("messages"),
            fn.percentile_approx("ms", ranks, _ACCURACY).alias("ranks"),
            fn.max("ms").alias("max_ms"),
        )
        .select(
            *start,
            *names,
            "measure",
            "messages",
            *(fn.col("ranks")[place].alias(f"p{each:g}_ms") for place, each in enumerate(PERCENTILES)),
            "max_ms",
        )
    )

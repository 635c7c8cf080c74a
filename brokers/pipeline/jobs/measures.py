"""How much went through, by protocol, name and window; and how long messages stay in a queue."""

import math
from collections.abc import Sequence
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def throughput(volumes: Frame, window: str = "1 minute") -> Frame:
    """Return a row for each window with traffic, in order. `volumes`: decoded rows of that table.

    Columns: `start`, `broker` (if several), `protocol`, `name`, `messages`, `bytes`, and both by the second.
    """
    names = ["start", *by(volumes, "protocol", "name")]
    sound = with_start(readable(volumes), "time", window)
    sums = grouped(sound, names, messages=("messages", "sum"), bytes=("bytes", "sum"))
    return ordered(_with_rates(sums, window), *names)


def _with_rates(sums: Frame, window: str) -> Frame:
    seconds = microseconds(window) / 1_000_000
    for rate, of in (("messages_per_second", "messages"), ("bytes_per_second", "bytes")):
        if isinstance(sums, pa.Table):
            sums = sums.append_column(rate, pc.divide(sums[of].cast(pa.float64()), seconds))
        else:
            sums = sums.withColumn(rate, sums[of] / seconds)
    return sums


def following(volumes: "DataFrame", window: str, watermark: str) -> "DataFrame":
    """Return the same of a stream, in no order.

    `watermark`: how late a message may be. A window's row comes that long after its end.
    """
    from pyspark.sql import functions as fn

    names = by(volumes, "protocol", "name")
    sums = (
        readable(volumes)
        .withWatermark("time", watermark)
        .groupBy(fn.window("time", window), *names)  # by the window itself, which the watermark is known by
        .agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
        .select(fn.col("window.start").alias("start"), *names, "messages", "bytes")
    )
    found: DataFrame = _with_rates(sums, window)
    return found


MEASURES = ("until_delivered_ms", "in_queue_ms")
"""From a message's arrival to its first delivery, and to its end."""
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_ACCURACY = 10_000
"""A rank of Spark's is wrong by one in so many at most. Up to so many messages it is exact."""


def latency(lives: Frame, window: str | None = None) -> Frame:
    """Return a row for each queue and measure: `protocol`, `name`, `measure`, `messages`, `p50_ms` ...
    `max_ms`.

    A message counts once it was delivered, or has left. `window`: group by arrival, too, as `start`.
    """
    keys = [*(["start"] if window is not None else []), *by(lives, "protocol", "name"), "measure"]
    if window is not None:
        lives = with_start(with_value(lives, "produced"), "produced", window)
    if not isinstance(lives, pa.Table):
        return ordered(_with_spark(lives, keys), *keys)
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


def _with_spark(lives: "DataFrame", keys: Sequence[str]) -> "DataFrame":
    from pyspark.sql import functions as fn

    each = (fn.struct(fn.lit(name).alias("measure"), fn.col(name).alias("ms")) for name in MEASURES)
    ranks = [percent / 100 for percent in PERCENTILES]
    return (
        lives.select(*keys[:-1], fn.explode(fn.array(*each)).alias("life"))
        .select(*keys[:-1], "life.*")
        .where(fn.col("ms").isNotNull())
        .groupBy(*keys)
        .agg(
            fn.count("ms").alias("messages"),
            fn.percentile_approx("ms", ranks, _ACCURACY).alias("ranks"),
            fn.max("ms").alias("max_ms"),
        )
        .select(
            *(*keys, "messages"),
            *(fn.col("ranks")[place].alias(f"p{each:g}_ms") for place, each in enumerate(PERCENTILES)),
            "max_ms",
        )
    )

"""How much went through: messages and bytes by protocol, name and window of time."""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs.frames import Frame, by, grouped, microseconds, ordered, readable, with_start

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

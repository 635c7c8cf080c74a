"""How much went through: messages and bytes by protocol, name and window of time."""

from typing import TYPE_CHECKING

from brokers.pipeline.jobs.where import by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def throughput(volumes: "DataFrame", window: str = "1 minute", watermark: str | None = None) -> "DataFrame":
    """`start`, `broker` (of several), `protocol`, `name`, `messages`, `bytes`, and both by the second.

    A row for each window with traffic.

    `volumes`: rows of that table as they are decoded. `watermark`, for a stream: how late a message may be;
    a window is complete, and given, once that time has passed behind its end.
    """
    from pyspark.sql import functions as fn

    readable = volumes.where(fn.col("fault").isNull())
    if watermark is not None:
        readable = readable.withWatermark("time", watermark)
    names = by(volumes, "protocol", "name")
    span = fn.col("window.end").cast("double") - fn.col("window.start").cast("double")
    return (
        readable.groupBy(fn.window("time", window), *names)
        .agg(fn.sum("messages").alias("messages"), fn.sum("bytes").alias("bytes"))
        .select(
            fn.col("window.start").alias("start"),
            *names,
            "messages",
            "bytes",
            (fn.col("messages") / span).alias("messages_per_second"),
            (fn.col("bytes") / span).alias("bytes_per_second"),
        )
    )

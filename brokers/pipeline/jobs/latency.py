"""How long messages stay: percentiles of the time in a queue, from messages' lives."""

from typing import TYPE_CHECKING

from brokers.pipeline.jobs.where import by as names_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MEASURES = ("until_delivered_ms", "in_queue_ms")
"""Of a life: from when it came to the first delivery, and to its end."""
PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_ACCURACY = 10_000
"""A rank is off by one in so many at most; up to so many messages percentiles are exact."""


def latency(lives: "DataFrame", window: str | None = None) -> "DataFrame":
    """`protocol`, `name`, `measure`, `messages`, `p50_ms` and so on, `max_ms`: a row a queue and measure.

    A message counts once it was delivered, or has left. `window`: by when it came, too, as `start`.
    """
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
        .orderBy(*(["start"] if start else []), *names, "measure")
    )

"""What a report tells of, as small rows: Spark adds up, and no more comes back than a page can show."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from brokers.pipeline.jobs import anomaly, lag, latency, offers, tables, throughput
from brokers.pipeline.jobs.decode import decode
from brokers.pipeline.jobs.streaming import rows_of
from brokers.pipeline.jobs.where import Where
from shared.tables import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]

OTHERS = "(all others)"
NAMES_MAX = 6
"""Names of a protocol that are told apart over time."""
BARS_MAX = 20
SERIES_MAX = 6
WINDOWS_MAX = 300
_WINDOWS = (
    ("1 second", 1),
    ("10 seconds", 10),
    ("1 minute", 60),
    ("10 minutes", 600),
    ("1 hour", 3600),
    ("1 day", 86_400),
)


@attrs.frozen
class Figures:
    """All of it. `window`: of the rows by time. `totals`: by protocol and name, most messages first."""

    window: str
    totals: Sequence[Row]
    throughput: Sequence[Row]
    latency: Sequence[Row]
    outcomes: Mapping[str, Mapping[str, int]]
    lag: Sequence[Row]
    anomalies: Sequence[Row]
    bands: Sequence[Row]
    faults: Sequence[Row]


def figures(spark: "SparkSession", where: Where, window: str | None = None) -> Figures:
    """Read one data folder. `window`: None to choose one in which all of the time is a few hundred points."""
    volumes = tables.volumes(spark, where, offers.offered(VOLUMES)).persist()
    try:
        totals = rows_of(_totals(volumes))
        window = window or window_for(totals)
        series = anomaly.rates(volumes, window)
        for each in offers.with_column(VALUE):
            series = series.unionByName(anomaly.values(tables.decoded(spark, where, each), window))
        banded = anomaly.bands(series).persist()
        try:
            outside = rows_of(anomaly.anomalies(banded))
            bands = rows_of(_worst(banded, outside)) if outside else []
        finally:
            banded.unpersist()
        over_time = rows_of(
            throughput.throughput(_by_rank(volumes), window).orderBy("start", "protocol", "name")
        )
        faults = rows_of(_faults(volumes))
    finally:
        volumes.unpersist()
    lives = union_of(spark, where, LIVES).persist()
    try:
        waits = rows_of(latency.latency(lives))
        outcomes = rows_of(lives.groupBy("name", "outcome").count())
    finally:
        lives.unpersist()
    largest = {row["name"] for row in totals if row["protocol"] in {wait["protocol"] for wait in waits}}
    counts: dict[str, dict[str, int]] = {}
    for row in outcomes:
        counts.setdefault(row["name"], {})[row["outcome"]] = row["count"]
    kept = sorted(counts, key=lambda name: -sum(counts[name].values()))[:BARS_MAX]
    behind = sorted(lag.of_folders(spark, where), key=lambda row: -(row["messages"] or 0))
    return Figures(
        window=window,
        totals=totals,
        throughput=over_time,
        latency=[row for row in waits if row["name"] in largest and row["name"] in kept],
        outcomes={name: counts[name] for name in kept},
        lag=behind[:BARS_MAX],
        anomalies=outside,
        bands=bands,
        faults=faults,
    )


def union_of(spark: "SparkSession", where: Where, name: str) -> "DataFrame":
    """The tables of one name of all protocols."""
    return decode(spark, where, offers.offered(name))


def window_for(totals: Sequence[Row]) -> str:
    """A length of which the whole time has a few hundred at most."""
    if not totals:
        return _WINDOWS[0][0]
    seconds = (max(row["last"] for row in totals) - min(row["first"] for row in totals)).total_seconds()
    for window, size in _WINDOWS:
        if seconds <= size * WINDOWS_MAX:
            return window
    return _WINDOWS[-1][0]


def _totals(volumes: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as fn

    return (
        volumes.where(fn.col("fault").isNull())
        .groupBy("protocol", "name")
        .agg(
            fn.sum("messages").alias("messages"),
            fn.sum("bytes").alias("bytes"),
            fn.min("time").alias("first"),
            fn.max("time").alias("last"),
        )
        .orderBy(fn.desc("messages"), "protocol", "name")
        .limit(1000)
    )


def _by_rank(volumes: "DataFrame") -> "DataFrame":
    """The same rows, with the smaller names of each protocol as one."""
    from pyspark.sql import Window
    from pyspark.sql import functions as fn

    sums = (
        volumes.where(fn.col("fault").isNull())
        .groupBy("protocol", "name")
        .agg(fn.sum("messages").alias("sum"))
    )
    by_size = Window.partitionBy("protocol").orderBy(fn.desc("sum"), "name")
    largest = sums.withColumn("rank", fn.row_number().over(by_size)).where(fn.col("rank") <= NAMES_MAX)
    own = largest.select("protocol", "name", fn.col("name").alias("own"))
    return volumes.join(fn.broadcast(own), ["protocol", "name"], "left").withColumn(
        "name", fn.coalesce("own", fn.lit(OTHERS))
    )


def _worst(banded: "DataFrame", outside: Sequence[Row]) -> "DataFrame":
    """All points of the series that are farthest outside."""
    from pyspark.sql import functions as fn

    far: dict[tuple[str, str, str], float] = {}
    for row in outside:
        key = row["protocol"], row["name"], row["measure"]
        far[key] = max(far.get(key, 0.0), abs(row["distance"]))
    chosen = fn.lit(False)
    for protocol, name, measure in sorted(far, key=lambda key: -far[key])[:SERIES_MAX]:
        chosen = chosen | (
            (fn.col("protocol") == protocol)
            & fn.col("name").eqNullSafe(name)
            & (fn.col("measure") == measure)
        )
    return banded.where(chosen).orderBy("protocol", "name", "measure", "start")


def _faults(volumes: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as fn

    found = volumes.where(fn.col("fault").isNotNull())
    return (
        found.groupBy("log", "fault")
        .agg(fn.count("*").alias("records"))
        .orderBy(fn.desc("records"))
        .limit(20)
    )

"""What a report tells of, as small rows: added up with Spark or here, and no more than a page can show."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs import anomaly, lag, latency, offers, tables, throughput
from brokers.pipeline.jobs.decode import decode
from brokers.pipeline.jobs.frames import Frame, grouped, kept, ordered, readable, rows_of, union
from brokers.pipeline.jobs.offers import Offered
from brokers.pipeline.jobs.where import Where
from shared.tables.table import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]

OTHERS = "(all others)"
NAMES_MAX = 6
"""Names of a protocol that are told apart over time."""
BARS_MAX = 20
SERIES_MAX = 6
_TOTALS_MAX = 1000
_FAULTS_MAX = 20
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


def sources() -> Sequence[Offered]:
    """The tables that it takes."""
    return [
        *offers.offered(VOLUMES),
        *offers.with_column(VALUE),
        *offers.offered(LIVES),
        *lag.tables(),
    ]


def figures(spark: "SparkSession | None", where: Where, window: str | None = None) -> Figures:
    """Read one data folder. `window`: None to choose one in which all of the time is a few hundred points."""
    with kept(tables.volumes(spark, where, offers.offered(VOLUMES))) as volumes:
        totals = rows_of(_totals(volumes))
        window = window or window_for(totals)
        readings = [tables.decoded(spark, where, each) for each in offers.with_column(VALUE)]
        series = [anomaly.rates(volumes, window), *(anomaly.values(each, window) for each in readings)]
        with kept(anomaly.bands(union(series))) as banded:
            outside = rows_of(anomaly.anomalies(banded))
            bands = rows_of(_worst(banded, outside)) if outside else []
        over_time = rows_of(throughput.throughput(_by_rank(volumes), window))
        faults = rows_of(_faults(volumes))
    with kept(decode(spark, where, offers.offered(LIVES))) as lives:
        waits = rows_of(latency.latency(lives))
        outcomes = rows_of(_outcomes(lives))
    largest = {row["name"] for row in totals if row["protocol"] in {wait["protocol"] for wait in waits}}
    counts: dict[str, dict[str, int]] = {}
    for row in outcomes:
        counts.setdefault(row["name"], {})[row["outcome"]] = row["count"]
    busiest = sorted(counts, key=lambda name: -sum(counts[name].values()))[:BARS_MAX]
    behind = sorted(lag.of_folders(spark, where), key=lambda row: -(row["messages"] or 0))
    return Figures(
        window=window,
        totals=totals,
        throughput=over_time,
        latency=[row for row in waits if row["name"] in largest and row["name"] in busiest],
        outcomes={name: counts[name] for name in busiest},
        lag=behind,
        anomalies=outside,
        bands=bands,
        faults=faults,
    )


def window_for(totals: Sequence[Row]) -> str:
    """A length of which the whole time has a few hundred at most."""
    if not totals:
        return _WINDOWS[0][0]
    seconds = (max(row["last"] for row in totals) - min(row["first"] for row in totals)).total_seconds()
    for window, size in _WINDOWS:
        if seconds <= size * WINDOWS_MAX:
            return window
    return _WINDOWS[-1][0]


def _totals(volumes: Frame) -> Frame:
    if isinstance(volumes, pa.Table):
        found = grouped(
            readable(volumes),
            ["protocol", "name"],
            messages=("messages", "sum"),
            bytes=("bytes", "sum"),
            first=("time", "min"),
            last=("time", "max"),
        )
        largest = [("messages", "descending"), ("protocol", "ascending"), ("name", "ascending")]
        return found.sort_by(largest).slice(0, _TOTALS_MAX)
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
        .limit(_TOTALS_MAX)
    )


def _by_rank(volumes: Frame) -> Frame:
    """The same rows, with the smaller names of each protocol as one."""
    if isinstance(volumes, pa.Table):
        return _ranked(volumes)
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


def _ranked(volumes: pa.Table) -> pa.Table:
    sums = grouped(readable(volumes), ["protocol", "name"], sum=("messages", "sum"))
    largest = sums.sort_by([("sum", "descending"), ("name", "ascending")])
    names = volumes["name"]
    is_own = pa.chunked_array([pa.repeat(pa.scalar(False), len(volumes))])
    for protocol in sums["protocol"].unique():
        of = pc.equal(largest["protocol"], protocol)
        own = largest.filter(of)["name"].slice(0, NAMES_MAX).drop_null()
        mine = pc.and_(pc.equal(volumes["protocol"], protocol), pc.is_in(names, own.combine_chunks()))
        is_own = pc.or_(is_own, mine.fill_null(False))
    at = volumes.schema.get_field_index("name")
    return volumes.set_column(at, "name", pc.if_else(is_own, names, pa.scalar(OTHERS)))


def _worst(banded: Frame, outside: Sequence[Row]) -> Frame:
    """All points of the series that are farthest outside."""
    far: dict[tuple[str, str, str], float] = {}
    for row in outside:
        key = row["protocol"], row["name"], row["measure"]
        far[key] = max(far.get(key, 0.0), abs(row["distance"]))
    largest = sorted(far, key=lambda key: -far[key])[:SERIES_MAX]
    order = ("protocol", "name", "measure", "start")
    if isinstance(banded, pa.Table):
        keys = zip(*(banded[name].to_pylist() for name in order[:3]), strict=True)
        return ordered(banded.filter(pa.array([key in largest for key in keys])), *order)
    from pyspark.sql import functions as fn

    chosen = fn.lit(False)
    for protocol, name, measure in largest:
        chosen = chosen | (
            (fn.col("protocol") == protocol)
            & fn.col("name").eqNullSafe(name)
            & (fn.col("measure") == measure)
        )
    return ordered(banded.where(chosen), *order)


def _outcomes(lives: Frame) -> Frame:
    by = ["name", "outcome"]
    if isinstance(lives, pa.Table):
        return grouped(lives, by, count=("seq", "count"))
    return lives.groupBy(*by).count()


def _faults(volumes: Frame) -> Frame:
    by = ["log", "fault"]
    if isinstance(volumes, pa.Table):
        found = grouped(volumes.filter(volumes["fault"].is_valid()), by, records=("fault", "count"))
        return found.sort_by([("records", "descending")]).slice(0, _FAULTS_MAX)
    from pyspark.sql import functions as fn

    found = volumes.where(fn.col("fault").isNotNull())
    return (
        found.groupBy(*by).agg(fn.count("*").alias("records")).orderBy(fn.desc("records")).limit(_FAULTS_MAX)
    )

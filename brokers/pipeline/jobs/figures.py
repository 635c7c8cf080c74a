"""What a report tells of, as small rows: added up with Spark or here, and no more than a page can show."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from brokers.pipeline.jobs import anomaly, lag, latency, offers, tables, throughput
from brokers.pipeline.jobs.frames import (
    Frame,
    Row,
    by_group,
    grouped,
    is_one_of,
    kept,
    limited,
    ordered,
    readable,
    rows_of,
    union,
    with_value,
)
from brokers.pipeline.jobs.offers import Offered
from brokers.pipeline.jobs.where import Where
from shared.tables.table import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERS = "(all others)"
_NAMES = ["protocol", "name"]
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
    with kept(tables.read(spark, where, offers.offered(LIVES))) as lives:
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
    found = grouped(
        readable(volumes),
        _NAMES,
        messages=("messages", "sum"),
        bytes=("bytes", "sum"),
        first=("time", "min"),
        last=("time", "max"),
    )
    return limited(ordered(found, "-messages", *_NAMES), _TOTALS_MAX)


def _by_rank(volumes: Frame) -> Frame:
    """The same rows, with the smaller names of each protocol as one."""
    sums = grouped(readable(volumes), _NAMES, sum=("messages", "sum"))
    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    own = is_one_of(volumes, rows_of(by_group(sums, ["protocol"], _largest, schema)))
    if isinstance(volumes, pa.Table):
        at = volumes.schema.get_field_index("name")
        return volumes.set_column(at, "name", pc.if_else(own, volumes["name"], pa.scalar(OTHERS)))
    from pyspark.sql import functions as fn

    return volumes.withColumn("name", fn.when(own, volumes["name"]).otherwise(OTHERS))


def _largest(sums: pa.Table) -> pa.Table:
    """Which of a protocol's names have most messages."""
    return with_value(ordered(sums, "-sum", "name").slice(0, NAMES_MAX), "name").select(_NAMES)


def _worst(banded: Frame, outside: Sequence[Row]) -> Frame:
    """All points of the series that are farthest outside."""
    far: dict[tuple[Any, ...], float] = {}
    names = (*_NAMES, "measure")
    for row in outside:
        key = tuple(row[name] for name in names)
        far[key] = max(far.get(key, 0.0), abs(row["distance"]))
    largest = sorted(far, key=lambda key: -far[key])[:SERIES_MAX]
    chosen = is_one_of(banded, [dict(zip(names, key, strict=True)) for key in largest])
    return ordered(banded.filter(chosen), *names, "start")


def _outcomes(lives: Frame) -> Frame:
    return grouped(lives, ["name", "outcome"], count=("seq", "count"))


def _faults(volumes: Frame) -> Frame:
    found = grouped(with_value(volumes, "fault"), ["log", "fault"], records=("fault", "count"))
    return limited(ordered(found, "-records"), _FAULTS_MAX)

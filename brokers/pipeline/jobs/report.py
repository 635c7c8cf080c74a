"""Makes a report: one HTML page that needs no other file, and its pictures as SVG files beside it.

It is for readers who know their messages and not Spark. So each picture comes with words: what it shows, how
to read it, and what stands out. `figures` computes small rows, with Spark or here. `write` makes the page of
them and of the words in `report.html`.
"""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from brokers.escape import escape
from brokers.pipeline.jobs import anomaly, lag, measures, plots, tables
from brokers.pipeline.jobs.frames import (
    Frame,
    Row,
    by_group,
    grouped,
    is_one_of,
    kept,
    limited,
    microseconds,
    ordered,
    readable,
    rows_of,
    with_value,
)
from brokers.pipeline.jobs.job_input import JobInput
from brokers.pipeline.jobs.tables import Offered
from shared.tables.table import LIVES, VALUE, VOLUMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERS = "(all others)"
_NAMES = ["protocol", "name"]
NAMES_MAX = 6
"""Names of a protocol with rows of their own over time."""
BARS_MAX = 20
SERIES_MAX = 6
_TOTALS_MAX = 1000
_FAULTS_MAX = 20
WINDOWS_MAX = 300
_WINDOWS = ("1 second", "10 seconds", "1 minute", "10 minutes", "1 hour", "1 day")


@attrs.frozen
class Figures:
    """All rows. `window`: of the rows by time. `totals`: by protocol and name, most messages first."""

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
    """Return the tables that a report reads."""
    return [
        *tables.offered(VOLUMES),
        *tables.with_column(VALUE),
        *tables.offered(LIVES),
        *lag.sources(),
    ]


def figures(spark: "SparkSession | None", job_input: JobInput, window: str | None = None) -> Figures:
    """Read one data folder. `window`: None takes one of which the whole time has a few hundred."""
    with kept(tables.decoded(spark, job_input, tables.offered(VOLUMES))) as volumes:
        totals = rows_of(_totals(volumes))
        window = window or window_for(totals)
        readings = [tables.decoded(spark, job_input, [each]) for each in tables.with_column(VALUE)]
        with kept(anomaly.bands(anomaly.series(volumes, readings, window))) as banded:
            outside = rows_of(anomaly.anomalies(banded))
            bands = rows_of(_worst(banded, outside)) if outside else []
        over_time = rows_of(measures.throughput(_by_rank(volumes), window))
        faults = rows_of(_fault_counts(volumes))
    with kept(tables.read(spark, job_input, tables.offered(LIVES))) as lives:
        waits = rows_of(measures.latency(lives))
        outcomes = rows_of(grouped(lives, ["name", "outcome"], count=("seq", "count")))
    largest = {row["name"] for row in totals if row["protocol"] in {wait["protocol"] for wait in waits}}
    counts: dict[str, dict[str, int]] = {}
    for row in outcomes:
        counts.setdefault(row["name"], {})[row["outcome"]] = row["count"]
    busiest = sorted(counts, key=lambda name: -sum(counts[name].values()))[:BARS_MAX]
    behind = sorted(lag.of_folders(spark, job_input), key=lambda row: -(row["messages"] or 0))
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
    """Return a length of which the whole time has a few hundred at most."""
    if not totals:
        return _WINDOWS[0]
    whole = max(row["last"] for row in totals) - min(row["first"] for row in totals)
    fitting = (each for each in _WINDOWS if whole <= timedelta(microseconds=microseconds(each)) * WINDOWS_MAX)
    return next(fitting, _WINDOWS[-1])


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
    """Return the rows with the smaller names of each protocol as one name."""
    sums = grouped(readable(volumes), _NAMES, sum=("messages", "sum"))
    schema = pa.schema([(name, pa.string()) for name in _NAMES])
    own = is_one_of(volumes, rows_of(by_group(sums, ["protocol"], _largest, schema)))
    if isinstance(volumes, pa.Table):
        at = volumes.schema.get_field_index("name")
        return volumes.set_column(at, "name", pc.if_else(own, volumes["name"], pa.scalar(OTHERS)))
    from pyspark.sql import functions as fn

    return volumes.withColumn("name", fn.when(own, volumes["name"]).otherwise(OTHERS))


def _largest(sums: pa.Table) -> pa.Table:
    """Return a protocol's names with most messages."""
    return with_value(ordered(sums, "-sum", "name").slice(0, NAMES_MAX), "name").select(_NAMES)


def _worst(banded: Frame, outside: Sequence[Row]) -> Frame:
    """Return all points of the series that are farthest outside."""
    far: dict[tuple[Any, ...], float] = {}
    names = (*_NAMES, "measure")
    for row in outside:
        key = tuple(row[name] for name in names)
        far[key] = max(far.get(key, 0.0), abs(row["distance"]))
    largest = sorted(far, key=lambda key: -far[key])[:SERIES_MAX]
    chosen = is_one_of(banded, [dict(zip(names, key, strict=True)) for key in largest])
    return ordered(banded.filter(chosen), *names, "start")


def _fault_counts(volumes: Frame) -> Frame:
    found = grouped(with_value(volumes, "fault"), ["log", "fault"], records=("fault", "count"))
    return limited(ordered(found, "-records"), _FAULTS_MAX)


# -- the page

PAGE = "report.html"
TABLE_MAX = 15


def write(figures: Figures, of: str, to: Path, now: datetime) -> list[Path]:
    """Write the page and its pictures into the folder `to`, and return the files. `of`: what was read."""
    waits = [row for row in figures.latency if row["measure"] == "in_queue_ms"]
    series: dict[str, list[Row]] = {}
    for row in figures.bands:
        series.setdefault(f"{plots.shown(row['name'])}: {row['measure']}", []).append(row)
    outcomes: Counter[str] = Counter()
    for counts in figures.outcomes.values():
        outcomes.update(counts)
    pictures: dict[str, bytes] = {}
    if figures.throughput:
        pictures["throughput"] = plots.throughput(figures.throughput)
    if waits:
        pictures["latency"] = plots.latency(waits)
    if outcomes:
        pictures["outcomes"] = plots.outcomes(figures.outcomes)
    if figures.lag:
        pictures["lag"] = plots.lag(figures.lag[:BARS_MAX])
    if figures.anomalies:
        pictures["anomalies"] = plots.anomalies(list(series.items()))
    page = _template().render(
        figures=figures,
        of=of,
        now=now,
        pictures={name: base64.b64encode(svg).decode() for name, svg in pictures.items()},
        table_max=TABLE_MAX,
        is_steep=plots.is_steep(figures.throughput),
        waits=waits,
        outcomes=outcomes,
        meanings={name: _MEANINGS[name] for name in plots.OUTCOMES if outcomes[name]},
        stretches=stretches(figures.anomalies, figures.window),
        names=len({_series(row) for row in figures.anomalies}),
        drawn=len(series),
    )
    to.mkdir(parents=True, exist_ok=True)
    (to / PAGE).write_text(page, encoding="utf-8")
    for name, svg in pictures.items():
        (to / f"{name}.svg").write_bytes(svg)
    return [to / PAGE, *(to / f"{name}.svg" for name in pictures)]


def _template() -> Template:
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.globals["counted"] = lambda count, one, many: f"{count:,} {one if count == 1 else many}"
    templates.filters |= {
        "commas": "{:,}".format,
        "short": "{:,.6g}".format,
        "time": "{:%Y-%m-%d %H:%M:%S}".format,
        "percent": lambda part, whole: f"{100 * part / whole:.3g} %",
        "size": _size,
        "span": plots.span,
        "one_line": lambda text: type(text)(" ".join(text.split())),  # a text, or HTML
    }
    return templates.get_template(PAGE)


def _shown(value: Any) -> Any:
    """Return a value as the page has it. Names come from clients, so what does not print is escaped."""
    if value is None:
        return "-"
    return value if isinstance(value, Markup) else escape(str(value))


_MEANINGS = {
    "acknowledged": "a consumer has done the work and said so",
    "waiting": "was never given to a consumer yet",
    "held": "a consumer has it and has not answered yet",
    "returned": "was given back, and goes out again",
    "dead-lettered": "could not be done and was put aside in another queue",
    "redriven": "was taken back out of there to be tried again",
    "expired": "was too old, and dropped",
    "exhausted": "was tried too often, and dropped",
    "purged": "was thrown away by an administrator",
}


def stretches(anomalies: Sequence[Row], window: str) -> list[tuple[Row, list[Row]]]:
    """Put points together that follow each other, of one name and on one side, with the farthest of them.

    The stretch that goes farthest comes first.
    """
    step = timedelta(microseconds=microseconds(window))
    found: list[list[Row]] = []
    for row in sorted(anomalies, key=lambda row: (*_series(row), row["start"])):
        last = found[-1][-1] if found else None
        goes_on = (
            last is not None
            and _series(last) == _series(row)
            and row["start"] - last["start"] <= step
            and (last["distance"] > 0) == (row["distance"] > 0)
        )
        if goes_on:
            found[-1].append(row)
        else:
            found.append([row])
    worst = [(max(rows, key=lambda row: abs(row["distance"])), rows) for rows in found]
    return sorted(worst, key=lambda each: -abs(each[0]["distance"]))


def _series(row: Row) -> tuple[str, str, str]:
    return row["protocol"], row["name"] or "", row["measure"]


def _size(count: int) -> str:
    """Return bytes in a readable unit."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"

"""Makes a report: one HTML page about what passed through a data folder, for readers who need not know Spark.

`figures` asks the views of a session (`catalog.py`). In each part the largest names have a row of their own,
and all others are one row. So what leaves Spark, and the page, stay small however many names there are.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from brokers.escape import escape
from brokers.pipeline.catalog import QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Mapping[str, Any]

LARGEST = 50
"""Names with rows of their own, in each part of the page."""
POINTS_MAX = 300
"""Points of time in the picture."""
_STEPS = (1, 10, 60, 600, 3600, 86_400)

_TOTALS = """
SELECT protocol, name, sum(messages) AS messages, sum(bytes) AS bytes, min(time) AS first, max(time) AS last
FROM volumes WHERE fault IS NULL GROUP BY protocol, name
"""
_OVER_TIME = """
SELECT protocol, floor(unix_seconds(time) / {step}) * {step} AS start, sum(messages) AS messages
FROM volumes WHERE fault IS NULL GROUP BY ALL ORDER BY protocol, start
"""
_FAULTS = """
SELECT log, fault, count(*) AS records FROM volumes WHERE fault IS NOT NULL GROUP BY log, fault
ORDER BY records DESC, log, fault LIMIT {most}
"""
_LIVES = """
SELECT * EXCEPT (name), IF(name IN (SELECT name FROM (
    SELECT name, count(*) AS messages FROM lives GROUP BY name ORDER BY messages DESC, name LIMIT {most}
  )), name, '(all others)') AS name
FROM lives
"""
_OUTCOMES = (
    "SELECT name, outcome, count(*) AS messages FROM lives GROUP BY name, outcome ORDER BY messages DESC"
)


@attrs.frozen
class Figures:
    """All rows. `step`: the seconds of a point of `over_time`."""

    totals: Sequence[Row]
    step: int
    over_time: Sequence[Row]
    latency: Sequence[Row]
    outcomes: Sequence[Row]
    lag: Sequence[Row]
    faults: Sequence[Row]


def figures(spark: "SparkSession") -> Figures:
    """Ask the views of a session."""
    totals = _largest(spark, _TOTALS, "protocol", "name", first="min", last="max")
    step = _step(totals)
    spark.sql(_LIVES.format(most=LARGEST)).createOrReplaceTempView("largest_lives")
    latency = (QUERIES / "latency.sql").read_text().replace("FROM lives", "FROM largest_lives")
    return Figures(
        totals=totals,
        step=step,
        over_time=_rows(spark, _OVER_TIME.format(step=step)),
        latency=_rows(spark, latency),
        outcomes=_rows(spark, _OUTCOMES.replace("FROM lives", "FROM largest_lives")),
        lag=_largest(spark, (QUERIES / "lag.sql").read_text(), "protocol", "reader", "name", seconds="max"),
        faults=_rows(spark, _FAULTS.format(most=LARGEST)),
    )


def _rows(spark: "SparkSession", query: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spark.sql(query).toArrow().to_pylist()
    return rows


def _largest(spark: "SparkSession", query: str, *names: str, **more: str) -> list[dict[str, Any]]:
    """Return the rows of a query with most messages, and behind them all others as one.

    `names`: the columns that tell rows apart. `more`: further columns, and how those of the others are put
    together.
    """
    ordered = ", ".join(names)
    columns = {"messages": "sum", "bytes": "sum", **more}
    put = ", ".join(f"{how}({column}) AS {column}" for column, how in columns.items())
    found = _rows(
        spark,
        f"""
        WITH found AS ({query}),
        ranked AS (
          SELECT *, row_number() OVER (ORDER BY messages DESC, {ordered}) AS place FROM found
        ),
        named AS (
          SELECT least(place, {LARGEST + 1}) AS place, {ordered}, {", ".join(columns)} FROM ranked
        )
        SELECT place, count(*) AS names, {", ".join(f"any_value({name}) AS {name}" for name in names)}, {put}
        FROM named GROUP BY place ORDER BY place
        """,
    )
    for row in found:
        if row["place"] > LARGEST:
            row |= dict.fromkeys(names, "") | {names[-1]: f"({row['names']:,} others)"}
    return found


def _step(totals: Sequence[Row]) -> int:
    """Return the seconds of a point, of which the whole time has a few hundred at most."""
    if not totals:
        return _STEPS[0]
    whole = max(row["last"] for row in totals) - min(row["first"] for row in totals)
    return next((step for step in _STEPS if whole <= timedelta(seconds=step) * POINTS_MAX), _STEPS[-1])


# -- the page

_WIDTH, _HEIGHT = 900, 120


def page(figures: Figures, of: str, now: datetime) -> str:
    """Return the page. `of`: what was read."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    templates.filters |= {"commas": "{:,}".format, "time": "{:%Y-%m-%d %H:%M:%S}".format, "size": _size}
    by_protocol: dict[str, list[Row]] = {}
    for row in figures.over_time:
        by_protocol.setdefault(row["protocol"], []).append(row)
    return templates.get_template("report.html").render(
        figures=figures,
        of=of,
        now=now,
        pictures={protocol: picture(rows, figures.step) for protocol, rows in by_protocol.items()},
        meanings={
            name: text
            for name, text in _MEANINGS.items()
            if any(row["outcome"] == name for row in figures.outcomes)
        },
    )


def picture(rows: Sequence[Row], step: int) -> Markup:
    """Return messages over time as SVG: a bar for each step, of which those without messages are bare."""
    start = min(row["start"] for row in rows)
    steps = (max(row["start"] for row in rows) - start) // step + 1
    most = max(row["messages"] for row in rows)
    wide = _WIDTH / steps
    bars = "".join(
        f'<rect x="{(row["start"] - start) / step * wide:.2f}" width="{max(wide - 0.5, 0.5):.2f}" '
        f'y="{_HEIGHT - high:.2f}" height="{high:.2f}"/>'
        for row in rows
        for high in [max(_HEIGHT * row["messages"] / most, 0.5)]
    )
    return Markup(f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" fill="#0072b2">{bars}</svg>')


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


def _size(count: int) -> str:
    """Return bytes in a readable unit."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"

"""Makes a report: one HTML page that needs no other file, and its pictures as SVG files beside it.

It is for readers who know their messages and not Spark. So each picture comes with words: what it shows, how
to read it, and what stands out. `figures` computes small rows, with Spark or here; `write` makes the page.
"""

import base64
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from brokers.escape import escape
from brokers.pipeline.jobs import anomaly, lag, measures, offers, plots, tables
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
"""Names of a protocol with rows of their own over time."""
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
        *offers.offered(VOLUMES),
        *offers.with_column(VALUE),
        *offers.offered(LIVES),
        *lag.tables(),
    ]


def figures(spark: "SparkSession | None", where: Where, window: str | None = None) -> Figures:
    """Read one data folder. `window`: None takes one of which the whole time has a few hundred."""
    with kept(tables.volumes(spark, where, offers.offered(VOLUMES))) as volumes:
        totals = rows_of(_totals(volumes))
        window = window or window_for(totals)
        readings = [tables.decoded(spark, where, each) for each in offers.with_column(VALUE)]
        series = [anomaly.rates(volumes, window), *(anomaly.values(each, window) for each in readings)]
        with kept(anomaly.bands(union(series))) as banded:
            outside = rows_of(anomaly.anomalies(banded))
            bands = rows_of(_worst(banded, outside)) if outside else []
        over_time = rows_of(measures.throughput(_by_rank(volumes), window))
        faults = rows_of(_fault_counts(volumes))
    with kept(tables.read(spark, where, offers.offered(LIVES))) as lives:
        waits = rows_of(measures.latency(lives))
        outcomes = rows_of(grouped(lives, ["name", "outcome"], count=("seq", "count")))
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
    """Return a length of which the whole time has a few hundred at most."""
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


PAGE = "report.html"
TABLE_MAX = 15
LONG = 24
"""A cell with more characters may be broken anywhere."""


@attrs.frozen
class Section:
    """`picture`: SVG, and its file's name without the ending. `rows`: a table, of which the page has the
    first rows; `order` says which these are."""

    title: str
    shows: str
    reading: str
    found: str
    picture: tuple[str, bytes] | None = None
    rows: Sequence[Row] = ()
    order: str = ""


def write(figures: Figures, of: str, to: Path, now: datetime) -> list[Path]:
    """Write the page and its pictures into the folder `to`, and return the files. `of`: what was read."""
    to.mkdir(parents=True, exist_ok=True)
    found = sections(figures)
    files = []
    for section in found:
        if section.picture is not None:
            name, svg = section.picture
            (to / f"{name}.svg").write_bytes(svg)
            files.append(to / f"{name}.svg")
    (to / PAGE).write_text(page(figures, found, of, now), encoding="utf-8")
    return [to / PAGE, *files]


def sections(figures: Figures) -> list[Section]:
    return [
        _throughput(figures),
        _latency(figures),
        _outcomes(figures),
        _lag(figures),
        _anomalies(figures),
        *([_faults(figures)] if figures.faults else []),
    ]


_STEEP = (
    "Where names differ much the scale is one of powers of ten, so that small ones can be seen: from line to "
    "line it is ten times as much. "
)


def _throughput(figures: Figures) -> Section:
    rows = figures.throughput
    table = [
        {
            "protocol": row["protocol"],
            "name": row["name"],
            "messages": row["messages"],
            "size": _size(row["bytes"]),
            "first": _time(row["first"]),
            "last": _time(row["last"]),
        }
        for row in figures.totals
    ]
    if not rows:
        return Section("How much went through", "Messages over time.", "", "Nothing did.")
    busiest = max(rows, key=lambda row: row["messages"])
    largest = figures.totals[0]
    return Section(
        "How much went through",
        "How many messages came in each second, over time; one panel for each protocol, one line for each "
        "of the names (topics, queues, exchanges) that most messages were sent to.",
        "Time runs from left to right. A line that is high means much traffic, one on the floor none. "
        f"Each point is the mean of {figures.window}. {_STEEP if plots.is_steep(rows) else ''}"
        "The table below has the same in sums.",
        f"{largest['name']} ({largest['protocol']}) had most messages, {largest['messages']:,}. The busiest "
        f"{figures.window} began at {_time(busiest['start'])}, with {busiest['messages']:,} messages "
        f"to {busiest['name']}.",
        ("throughput", plots.throughput(rows)),
        table,
        "most messages",
    )


def _latency(figures: Figures) -> Section:
    rows = [row for row in figures.latency if row["measure"] == "in_queue_ms"]
    title = "How long messages stayed in their queues"
    shows = (
        "For each queue, the time from when a message came until it left, by being acknowledged or otherwise."
    )
    if not rows:
        return Section(title, shows, "", "No message has left a queue, or there is no queue.")
    slow = max(rows, key=lambda row: row["p50_ms"])
    worst = max(rows, key=lambda row: row["max_ms"])
    return Section(
        title,
        shows,
        "Each line is a queue. The first mark is the middle: half of its messages were faster. The next "
        "say how long it took until 9 of 10, and 99 of 100, were through; the line ends at the slowest. "
        "Marks close together mean that all took about as long; a long line that some waited much longer "
        "than most.",
        _slowest(slow)
        + f" The slowest message of all stayed {plots.span(worst['max_ms'])} in {worst['name']}.",
        ("latency", plots.latency(rows)),
        [
            {
                "queue": row["name"],
                "messages that left": row["messages"],
                "half within": plots.span(row["p50_ms"]),
                "9 of 10 within": plots.span(row["p90_ms"]),
                "99 of 100 within": plots.span(row["p99_ms"]),
                "slowest": plots.span(row["max_ms"]),
            }
            for row in rows
        ],
    )


def _slowest(row: Row) -> str:
    if row["p50_ms"] < 1:
        return "Of every queue half of the messages left within a millisecond."
    half = plots.span(row["p50_ms"])
    return f"In {row['name']} it took longest: half of the messages stayed {half} or longer."


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


def _outcomes(figures: Figures) -> Section:
    sums: Counter[str] = Counter()
    for counts in figures.outcomes.values():
        sums.update(counts)
    title, shows = "What became of the messages", "For each queue, what happened to its messages in the end."
    if not sums:
        return Section(title, shows, "", "There is no queue.")
    total = sums.total()
    done = sums["acknowledged"]
    dead = sums["dead-lettered"] + sums["expired"] + sums["exhausted"]
    meanings = "; ".join(f"{name}: {_MEANINGS[name]}" for name in plots.OUTCOMES if sums[name])
    return Section(
        title,
        shows,
        "Each bar is a queue, and all of its messages are 100 percent; the number behind its name says "
        "how many these are. The longer a colour, the more of them ended so. "
        f"{meanings[0].upper()}{meanings[1:]}.",
        f"Of {total:,} messages {done:,} ({_percent(done, total)}) were acknowledged"
        + (
            f", and {dead:,} ({_percent(dead, total)}) failed or grew too old."
            if dead
            else ", and none failed."
        ),
        ("outcomes", plots.outcomes(figures.outcomes)),
    )


def _lag(figures: Figures) -> Section:
    title = "Who is behind"
    shows = (
        "For each reader (a group that reads a topic, a session that messages are kept for), what is unread."
    )
    if not figures.lag:
        return Section(title, shows, "", "No reader has left its place.")
    worst = figures.lag[0]
    return Section(
        title,
        shows,
        "Each bar is a reader; the longer, the more messages wait for it. No bar: it has read all there "
        "is. Where they differ much, from line to line it is ten times as many. A bar that grows from "
        "report to report is a reader that cannot keep up, or has stopped.",
        f"{worst['reader']} is behind most, by {worst['messages']:,} messages ({_size(worst['bytes'])})."
        if worst["messages"]
        else "Everybody has read all there is.",
        ("lag", plots.lag(figures.lag[:BARS_MAX])),
        [
            {
                "reader": row["reader"],
                "reads": row["name"],
                "messages": row["messages"],
                "size": "-" if row["bytes"] is None else _size(row["bytes"]),
                "behind": "-" if row["seconds"] is None else plots.span(1000 * row["seconds"]),
            }
            for row in figures.lag
        ],
        "most unread",
    )


def _anomalies(figures: Figures) -> Section:
    title = "What was not as usual"
    shows = (
        "Rates and measured values that left the band in which they usually are. What is usual is learnt "
        "from the points before, for each name by itself."
    )
    if not figures.anomalies:
        return Section(
            title, shows, "", "Nothing: everything stayed in its usual band, as far as there is one yet."
        )
    series: dict[str, list[Row]] = {}
    for row in figures.bands:
        series.setdefault(f"{plots.shown(row['name'])}: {row['measure']}", []).append(row)
    far = max(figures.anomalies, key=lambda row: abs(row["distance"]))
    above = "above" if far["distance"] > 0 else "below"
    count, found = len(figures.anomalies), stretches(figures.anomalies, figures.window)
    names = len({_series(row) for row in figures.anomalies})
    drawn = f" The pictures are of {len(series)} of {names:,} names." if len(series) < names else ""
    return Section(
        title,
        shows,
        "Time runs from left to right. The line is what was measured, the pale band where it usually is "
        "at that time, and a red point a moment at which it was outside. The band begins once enough "
        "points are known. One red point is an outbreak; a row of them that ends is a new level that has "
        "become usual. The table has a row for each row of points.",
        f"{_count(count, 'point is', 'points are')} outside, in {_count(len(found), 'row', 'rows')} of "
        f"{_count(names, 'name', 'names')}. The farthest is {far['name']} at "
        f"{_time(far['start'])}: {far['value']:,.6g}, {above} its band of {far['low']:,.6g} to "
        f"{far['high']:,.6g}.{drawn}",
        ("anomalies", plots.anomalies(list(series.items()))),
        [
            {
                "from": _time(rows[0]["start"]),
                "to": _time(rows[-1]["start"]),
                "points": len(rows),
                "name": worst["name"],
                "what": worst["measure"],
                "farthest": f"{worst['value']:,.6g}",
                "usual": f"{worst['low']:,.6g} to {worst['high']:,.6g}",
            }
            for worst, rows in found
        ],
        "the farthest",
    )


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


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _faults(figures: Figures) -> Section:
    count = sum(row["records"] for row in figures.faults)
    return Section(
        "What could not be read",
        "Records that are not what their log should hold. They are left out of everything above.",
        "",
        f"{count:,} records, by log and reason:",
        None,
        figures.faults,
    )


# -- the page


def page(figures: Figures, found: Sequence[Section], of: str, now: datetime) -> str:
    totals = figures.totals
    messages, size = sum(row["messages"] for row in totals), sum(row["bytes"] for row in totals)
    period = (
        f"from {_time(min(row['first'] for row in totals))} to {_time(max(row['last'] for row in totals))}"
        if totals
        else "none yet"
    )
    lead = (
        f"{messages:,} messages ({_size(size)}) to {_count(len(totals), 'name', 'names')}, {period}. "
        f"All times are UTC. Read from {of} at {_time(now)}."
    )
    return _PAGE.format(
        lead=_text(lead),
        contents="".join(
            f'<li><a href="#part{n}">{_text(each.title)}</a></li>' for n, each in enumerate(found)
        ),
        parts="\n".join(_part(number, each) for number, each in enumerate(found)),
    )


def _part(number: int, section: Section) -> str:
    parts = [f'<section id="part{number}"><h2>{_text(section.title)}</h2>', f"<p>{_text(section.shows)}</p>"]
    if section.picture is not None:
        name, svg = section.picture
        source = base64.b64encode(svg).decode()
        alt = html.escape(f"{section.title}: {escape(section.found)}")
        image = f'<img id="{name}" alt="{alt}" src="data:image/svg+xml;base64,{source}">'
        parts.append(f'<div class="wide">{image}</div>')
    if section.reading:
        parts.append(f'<p class="reading"><b>How to read it.</b> {_text(section.reading)}</p>')
    parts.append(f'<p class="found"><b>What stands out.</b> {_text(section.found)}</p>')
    if section.rows:
        some = section.rows[:TABLE_MAX]
        if len(some) < len(section.rows):
            parts.append(f"<p>{len(some)} of {len(section.rows):,}, {_text(section.order)} first:</p>")
        parts.append(_table(some))
    return "\n".join([*parts, "</section>"])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    right = {name for name in columns if all(isinstance(row[name], int) for row in rows)}

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{_class(cell, name in right)}>{_text(cell)}</{tag}>"
            for name, cell in zip(columns, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", [_cell(row[name]) for name in columns]) for row in rows)
    table = f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _class(cell: str, is_number: bool) -> str:
    if is_number:
        return " class=number"
    return " class=long" if len(cell) > LONG else ""


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _text(text: str) -> str:
    return html.escape(escape(text))


def _size(count: int) -> str:
    """Return bytes in a readable unit."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M:%S}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What passed through the brokers</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.7rem; margin-bottom: .3rem; }}
h2 {{ font-size: 1.25rem; margin: 2.5rem 0 .3rem; border-top: 1px solid #ddd; padding-top: 1.2rem; }}
.wide {{ overflow-x: auto; }}
img {{ width: 100%; min-width: 40rem; height: auto; }}
.reading {{ color: #444; }}
.found {{ background: #f3f7fa; border-left: 4px solid #0072b2; padding: .5rem .8rem; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #eee;
  white-space: nowrap; }}
.long {{ white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }}
p {{ overflow-wrap: anywhere; }}
.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
<h1>What passed through the brokers</h1>
<p>{lead}</p>
<ol>{contents}</ol>
{parts}
</body>
</html>
"""

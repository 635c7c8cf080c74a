"""A report: one HTML page that needs nothing else, and its pictures as PNG files beside it.

It is for readers who know their messages and not Spark. So each picture comes with what it shows, how to read
it, and what stands out in it, in words.
"""

import base64
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from brokers.escape import escape
from brokers.pipeline import plots
from brokers.pipeline.jobs.figures import Figures, Row

PAGE = "report.html"
TABLE_MAX = 15


@attrs.frozen
class Section:
    """`picture`: PNG, and its file's name without the ending. `rows`: a table below it."""

    title: str
    shows: str
    reading: str
    found: str
    picture: tuple[str, bytes] | None = None
    rows: Sequence[Row] = ()


def write(figures: Figures, of: str, to: Path, now: datetime) -> list[Path]:
    """Write the page and its pictures into the folder `to`; returns the files. `of`: what was read."""
    to.mkdir(parents=True, exist_ok=True)
    found = sections(figures)
    files = []
    for section in found:
        if section.picture is not None:
            name, png = section.picture
            (to / f"{name}.png").write_bytes(png)
            files.append(to / f"{name}.png")
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
        for row in figures.totals[:TABLE_MAX]
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
        f"Each point is the mean of {figures.window}. The table below has the same in sums.",
        f"{largest['name']} ({largest['protocol']}) had most messages, {largest['messages']:,}. The busiest "
        f"{figures.window} began at {_time(busiest['start'])}, with {busiest['messages']:,} messages "
        f"to {busiest['name']}.",
        ("throughput", plots.throughput(rows)),
        table,
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
        "is. A bar that grows from report to report is a reader that cannot keep up, or has stopped.",
        f"{worst['reader']} is behind most, by {worst['messages']:,} messages ({_size(worst['bytes'])})."
        if worst["messages"]
        else "Everybody has read all there is.",
        ("lag", plots.lag(figures.lag)),
        [
            {
                "reader": row["reader"],
                "reads": row["name"],
                "messages": row["messages"],
                "size": "-" if row["bytes"] is None else _size(row["bytes"]),
                "behind": "-" if row["seconds"] is None else plots.span(1000 * row["seconds"]),
            }
            for row in figures.lag[:TABLE_MAX]
        ],
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
    return Section(
        title,
        shows,
        "Time runs from left to right. The line is what was measured, the pale band where it usually is "
        "at that time, and a red point a moment at which it was outside. The band begins once enough "
        "points are known. One red point is an outbreak; a row of them that ends is a new level that has "
        "become usual.",
        f"{len(figures.anomalies):,} points are outside. The farthest is {far['name']} at "
        f"{_time(far['start'])}: {far['value']:,.6g}, {above} its band of {far['low']:,.6g} to "
        f"{far['high']:,.6g}.",
        ("anomalies", plots.anomalies(list(series.items()))),
        [
            {
                "when": _time(row["start"]),
                "name": row["name"],
                "what": row["measure"],
                "measured": f"{row['value']:,.6g}",
                "usual": f"{row['low']:,.6g} to {row['high']:,.6g}",
            }
            for row in sorted(figures.anomalies, key=lambda row: -abs(row["distance"]))[:TABLE_MAX]
        ],
    )


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
    names = len(totals)
    lead = (
        f"{messages:,} messages ({_size(size)}) to {names:,} {'name' if names == 1 else 'names'}, {period}. "
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
        name, png = section.picture
        source = base64.b64encode(png).decode()
        alt = html.escape(f"{section.title}: {_plain(section.found)}")
        parts.append(f'<img id="{name}" alt="{alt}" src="data:image/png;base64,{source}">')
    if section.reading:
        parts.append(f'<p class="reading"><b>How to read it.</b> {_text(section.reading)}</p>')
    parts.append(f'<p class="found"><b>What stands out.</b> {_text(section.found)}</p>')
    if section.rows:
        parts.append(_table(section.rows))
    return "\n".join([*parts, "</section>"])


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    right = {name for name in columns if all(isinstance(row[name], int) for row in rows)}

    def line(tag: str, cells: Sequence[str]) -> str:
        parts = (
            f"<{tag}{' class=number' if name in right else ''}>{_text(cell)}</{tag}>"
            for name, cell in zip(columns, cells, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    body = "".join(line("td", [_cell(row[name]) for name in columns]) for row in rows)
    return f"<table><thead>{line('th', columns)}</thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _plain(text: str) -> str:
    return escape(text)


def _text(text: str) -> str:
    return html.escape(_plain(text))


def _size(count: int) -> str:
    """Bytes as people say them."""
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
img {{ width: 100%; height: auto; }}
.reading {{ color: #444; }}
.found {{ background: #f3f7fa; border-left: 4px solid #0072b2; padding: .5rem .8rem; }}
table {{ border-collapse: collapse; font-size: .92rem; }}
th, td {{ text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #eee;
  overflow-wrap: anywhere; }}
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

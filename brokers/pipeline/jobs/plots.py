"""Draws the report's pictures as SVG, without a display, in one style.

Names come from clients. A picture cuts long names, and escapes what does not print or what matplotlib takes
for mathematics. Names stay text, so a browser draws them with its own fonts.
"""

import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib import dates, ticker
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from brokers.pipeline.jobs.frames import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

LINES_MAX = 7
"""Names with a line of their own. All other names are one line."""
NAME_MAX = 32
LOG_FROM = 20
"""If the largest is so many times the smallest, the scale has powers of ten, so that small ones are seen."""
_INCHES_WIDE = 10.0
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "brokers",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "legend.fontsize": 9,
}
# Okabe and Ito's colours, which people who do not tell red from green can tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#666666")
OUTCOMES = {
    "acknowledged": "#009e73",
    "waiting": "#9ecae1",
    "held": "#56b4e9",
    "returned": "#f0e442",
    "dead-lettered": "#d55e00",
    "redriven": "#cc79a7",
    "expired": "#e69f00",
    "exhausted": "#8c510a",
    "purged": "#666666",
}
"""How messages ended or stand, in the order in which bars are stacked."""


def shown(name: str | None) -> str:
    """Return a name as a picture may have it."""
    text = name or "-"
    if sum(map(_cells, text)) > NAME_MAX:
        while sum(map(_cells, text)) >= NAME_MAX:
            text = text[:-1]
        text += "…"
    # Wide characters are not in the font, which takes them for narrow ones. Spaces make up for that.
    room = "\u00a0" * sum(_cells(each) - 1 for each in text)
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    text = text.replace("$", r"\$") + room
    return " " + text if text.startswith("_") else text  # a legend leaves out names with `_` in front


def _cells(character: str) -> int:
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def is_steep(rows: Sequence[Row]) -> bool:
    """Whether the names of a protocol need a scale of powers of ten."""
    protocols = {row["protocol"] for row in rows}
    return any(_steep(_lines([row for row in rows if row["protocol"] == each])) for each in protocols)


def _steep(lines: Mapping[str, Mapping[datetime, float]]) -> bool:
    return _is_wide([max(points.values(), default=0.0) for points in lines.values()])


def _is_wide(values: Iterable[float]) -> bool:
    """Whether values need a scale of powers of ten."""
    some = [value for value in values if value > 0]
    return bool(some) and max(some) >= LOG_FROM * min(some)


@matplotlib.rc_context(_STYLE)
def throughput(rows: Sequence[Row]) -> bytes:
    """Draw messages a second: a line for each name, a panel for each protocol. Rows of `measures`."""
    protocols = sorted({row["protocol"] for row in rows})
    starts: list[Any] = with_silences([row["start"] for row in rows], _window(rows))
    figure, panels = _panels(len(protocols), 2.6)
    for axes, protocol in zip(panels, protocols, strict=True):
        mine = [row for row in rows if row["protocol"] == protocol]
        lines = _lines(mine)
        for number, (name, points) in enumerate(lines.items()):
            values = [points.get(start, 0.0) for start in starts]
            marker = "o" if len(starts) < 12 else None
            axes.plot(starts, values, color=_COLOURS[number], label=name, linewidth=1.6, marker=marker)
        axes.set_title(protocol, loc="left", fontweight="bold")
        axes.set_ylabel("messages a second")
        if _steep(lines):
            floor = min(value for points in lines.values() for value in points.values() if value > 0)
            _by_tens(axes.set_yscale, axes.yaxis, floor)
        axes.set_ylim(bottom=0)
        _by_time(axes, starts)
        _legend(axes)
    return _svg(figure)


def with_silences(starts: Iterable[datetime], window: timedelta) -> list[datetime]:
    """Return the starts of windows, with the first and the last window of each silence between them.

    Without these a line would slope through a silence as if something had come.
    """
    found = set(starts)
    for before, after in pairwise(sorted(found)):
        if after - before > 1.5 * window:
            found |= {before + window, after - window}
    return sorted(found)


def _window(rows: Sequence[Row]) -> timedelta:
    """Return the windows' length: messages divided by their rate."""
    lengths = (row["messages"] / row["messages_per_second"] for row in rows if row["messages"])
    return timedelta(seconds=next(lengths, 0))


@matplotlib.rc_context(_STYLE)
def latency(rows: Sequence[Row]) -> bytes:
    """Draw each queue's percentiles on a line; rows of `measures.latency`, of one measure."""
    figure, (axes,) = _panels(1, 0.9 + 0.45 * len(rows))
    for place, row in enumerate(reversed(rows)):
        ends = _ends(row)
        axes.plot([ends[0], ends[-1]], [place, place], color="#bbbbbb", linewidth=3, zorder=1)
        for end, (name, colour, marker) in zip(ends, _RANKS, strict=True):
            label = name if place == 0 else None
            axes.scatter(end, place, color=colour, marker=marker, s=55, zorder=2, label=label)
    axes.set_yticks(range(len(rows)), [shown(row["name"]) for row in reversed(rows)])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda ms, _: span(ms)))
    ticks = ticks_ms(min(_ends(row)[0] for row in rows), max(_ends(row)[-1] for row in rows))
    axes.set_xlim(ticks[0] / 1.1, ticks[-1] * 1.1)
    axes.xaxis.set_major_locator(ticker.FixedLocator(ticks))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.set_xlabel("time in the queue (equal steps to the right are equal times as long)")
    axes.grid(axis="y", visible=False)
    _legend(axes)
    return _svg(figure)


def _ends(row: Row) -> list[float]:
    return [max(row[key], 0.5) for key in ("p50_ms", "p90_ms", "p99_ms", "max_ms")]


_TENS_MS = (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000)
_TICKS_MS = sorted(
    {
        *_TENS_MS,
        *(step * ten for ten in (1, 10, 100, 1000, 10_000, 60_000, 600_000) for step in (2, 5)),
        *(3_600_000 * hours for hours in (2, 5)),
        *(86_400_000 * days for days in (2, 5, 20, 50, 100, 365, 3650)),
        *(0.5, 864_000_000 * 1000),
    }
)
TICKS_MAX = 8


def ticks_ms(low: float, high: float) -> list[float]:
    """Return lengths of time for an axis: one below all, those between, one above; at least two."""
    for ticks in (_TICKS_MS, sorted({_TICKS_MS[0], *_TENS_MS, _TICKS_MS[-1]})):
        first = max(number for number, each in enumerate(ticks) if each <= low or not number)
        last = next((number for number, each in enumerate(ticks) if each >= high), len(ticks) - 1)
        found = list(ticks[first : max(last, first + 1) + 1])
        if len(found) <= TICKS_MAX:
            break
    return found


_RANKS = (
    ("half are faster", "#0072b2", "o"),
    ("9 of 10 are faster", "#e69f00", "D"),
    ("99 of 100 are faster", "#d55e00", "s"),
    ("the slowest", "#666666", "|"),
)


@matplotlib.rc_context(_STYLE)
def outcomes(counts: Mapping[str, Mapping[str, int]]) -> bytes:
    """Draw a bar for each queue, divided by how its messages ended or stand."""
    figure, (axes,) = _panels(1, 0.9 + 0.42 * len(counts))
    names = sorted(counts, reverse=True)
    left = [0.0] * len(names)
    for outcome, colour in OUTCOMES.items():
        shares = [100 * counts[name].get(outcome, 0) / sum(counts[name].values()) for name in names]
        if any(shares):
            axes.barh(range(len(names)), shares, left=left, color=colour, label=outcome, height=0.65)
            left = [done + share for done, share in zip(left, shares, strict=True)]
    labels = [f"{shown(name)} ({sum(counts[name].values()):,})" for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of the queue's messages")
    axes.grid(axis="y", visible=False)
    _legend(axes)
    return _svg(figure)


@matplotlib.rc_context(_STYLE)
def lag(rows: Sequence[Row]) -> bytes:
    """Draw a bar for each reader: the messages that it has not read."""
    figure, (axes,) = _panels(1, 0.9 + 0.42 * len(rows))
    places = range(len(rows))
    counts = [row["messages"] for row in reversed(rows)]
    messages = [count or 0 for count in counts]
    axes.barh(places, messages, color=_COLOURS[0], height=0.65)
    for place, count in zip(places, counts, strict=True):
        text = "damage hides how many" if count is None else f"{count:,}"
        where: Any = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(text, (count or 0, place), fontsize=9, **where)
    axes.set_yticks(places, [f"{shown(row['reader'])} in {shown(row['name'])}" for row in reversed(rows)])
    most = max([*messages, 1])
    if _is_wide(messages):
        _by_tens(axes.set_xscale, axes.xaxis, 1)
        axes.set_xlim(0, 4 * most)
    else:
        axes.set_xlim(0, 1.12 * most)
    axes.set_xlabel("messages not read yet")
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.grid(axis="y", visible=False)
    return _svg(figure)


@matplotlib.rc_context(_STYLE)
def anomalies(series: Sequence[tuple[str, Sequence[Row]]]) -> bytes:
    """Draw a panel for each series: its points, its band, and what is outside; rows of `anomaly.bands`."""
    figure, panels = _panels(len(series), 2.2)
    for axes, (title, rows) in zip(panels, series, strict=True):
        starts = [row["start"] for row in rows]
        banded = [row for row in rows if row["high"] is not None]
        axes.fill_between(
            [row["start"] for row in banded],
            [row["low"] for row in banded],
            [row["high"] for row in banded],
            color="#cfe3f1",
            label="usual band",
        )
        axes.plot(starts, [row["value"] for row in rows], color=_COLOURS[0], linewidth=1.3, label="measured")
        outside = [row for row in rows if row["outside"]]
        axes.scatter(
            [row["start"] for row in outside],
            [row["value"] for row in outside],
            color="#d55e00",
            s=36,
            zorder=3,
            label="outside",
        )
        axes.set_title(title, loc="left", fontweight="bold")
        _by_time(axes, starts)
    _legend(panels[0])
    return _svg(figure)


def span(ms: float) -> str:
    """Return a length of time in a readable unit."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def _lines(rows: Sequence[Row]) -> dict[str, dict[datetime, float]]:
    """Return the points of the names with most messages, and of all others together."""
    sums: dict[str, int] = {}
    for row in rows:
        sums[row["name"] or "-"] = sums.get(row["name"] or "-", 0) + row["messages"]
    largest = sorted(sums, key=lambda name: (-sums[name], name))
    own = {name: shown(name) for name in largest[:LINES_MAX]}
    rest = f"{len(sums) - len(own)} others"
    found: dict[str, dict[datetime, float]] = {label: {} for label in own.values()}
    for row in rows:
        points = found.setdefault(own.get(row["name"] or "-", rest), {})
        points[row["start"]] = points.get(row["start"], 0.0) + row["messages_per_second"]
    return found


def _panels(count: int, inches_high: float) -> "tuple[Figure, list[Axes]]":
    figure = Figure(figsize=(_INCHES_WIDE, max(inches_high, 1.6) * count), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, list(figure.subplots(count, 1, squeeze=False)[:, 0])


def _legend(axes: "Axes") -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _by_tens(set_scale: Callable[..., None], axis: "Axis", floor: float) -> None:
    """Set a scale of powers of ten that has a zero. Below the power of `floor` it is linear."""
    set_scale("symlog", linthresh=10 ** math.ceil(math.log10(floor)), linscale=1)
    axis.set_minor_locator(ticker.NullLocator())


def _by_time(axes: "Axes", starts: Sequence[datetime]) -> None:
    locator = dates.AutoDateLocator(minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.6g}"))
    if len(starts) == 1:
        minute = timedelta(minutes=1)
        ends = (starts[0] - minute, starts[0] + minute)
        axes.set_xlim(*(float(dates.date2num(end)) for end in ends))  # type: ignore[no-untyped-call]


def _svg(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a browser has other fonts
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()

"""Draws a sweep's ratios as a PNG: a row of panels for each peer, a panel for each size.

In a panel each bar is a point. It stands on the line at 1, which is the peer. A bar up is ahead, a bar down
behind, by the factor that is written below it. Bars stand together by clients, and have a colour for each
number of names. A short black line shows where a server without a broker is (`bare.py`).
"""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from shared.units import readable
from tests.bench.sweep import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which people who do not tell red from green can tell apart.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442")
_PEER = "#d55e00"
_BARS_WIDTH = 0.8
"""The width of all bars of one number of clients. These numbers are 1 apart."""
_FARTHEST = 32.0
"""What is farther from 1 leaves the panel, so that the rest can be seen; its number stays."""
_WIDTH = 8.0
"""In inches, at least: room for the title and the legend."""
_TITLE = "Messages a second, as a ratio to another server's under the same load on the same machine"
_HINT = "A bar up is ahead of that server, a bar down behind it: 2 is twice its rate, 0.5 is half."


def draw(rows: Iterable[Row]) -> bytes:
    """The PNG."""
    held = io.BytesIO()
    figure_of(rows).savefig(held, format="png", dpi=100)
    return held.getvalue()


def figure_of(rows: Iterable[Row]) -> Figure:
    """A figure of the rows that have a peer; where none has one, of all."""
    all_rows = list(rows)
    shown = [row for row in all_rows if row["ratio"]] or all_rows
    by_panel: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
    for row in shown:
        panel = row["protocol"], row["mode"], row["baseline"]
        by_panel.setdefault(panel, {}).setdefault(row["size"], []).append(row)
    sizes, names, clients = (sorted({row[each] for row in shown}) for each in ("size", "names", "clients"))
    wide = max((0.3 * len(names) * len(clients) + 0.5) * len(sizes) + 0.9, _WIDTH)
    figure = Figure(figsize=(wide, 1.35 * len(by_panel) + 1.3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(by_panel), len(sizes), squeeze=False, sharey="row")
    for line, ((protocol, mode, baseline), by_size) in zip(panels, by_panel.items(), strict=True):
        line[0].set_ylabel(f"{protocol}\n{mode}\nbeside\n{baseline}", rotation=0, ha="right", va="center")
        for axes, size in zip(line, sizes, strict=True):
            if size in by_size:
                _panel(axes, by_size[size], names, clients)
                axes.set_title(f"messages of {readable(size, 'bytes')}", fontsize=9)
            else:
                axes.set_visible(False)
    figure.suptitle(f"{_TITLE}\n{_HINT}", fontsize=10)
    colours = [Patch(color=_colour(at), label=f"names: {each:,}") for at, each in enumerate(names)]
    peer = Line2D([], [], color=_PEER, linewidth=1.5, label="the other server (1)")
    floor = Line2D([], [], color="black", linewidth=2, label="a bare loop of system calls, no broker")
    figure.legend(
        handles=[*colours, peer, floor], loc="outside lower center", ncols=len(names) + 2, fontsize=9
    )
    return figure


def _colour(at: int) -> str:
    return _COLOURS[at % len(_COLOURS)]


def _number(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _panel(axes: "Axes", rows: Iterable[Row], names: Sequence[int], clients: Sequence[int]) -> None:
    width = _BARS_WIDTH / len(names)
    ends = [0.5, 2.0]
    for row in rows:
        if not row["ratio"]:
            continue
        at = names.index(row["names"])
        middle = clients.index(row["clients"]) - _BARS_WIDTH / 2 + width * (at + 0.5)
        axes.bar(middle, row["ratio"] - 1, width * 0.9, bottom=1, color=_colour(at))
        axes.text(
            middle, 0.03, _number(row["ratio"]), transform=axes.get_xaxis_transform(), ha="center", fontsize=7
        )
        ends.append(row["ratio"])
        if row["floor_ratio"]:
            floor = row["ratio"] / row["floor_ratio"]
            axes.hlines(floor, middle - width / 2, middle + width / 2, color="black", linewidth=2)
            ends.append(floor)
    axes.set_yscale("log")
    axes.axhline(1, color=_PEER, linewidth=1.5)
    low, high = max(min(ends), 1 / _FARTHEST), min(max(ends), _FARTHEST)
    axes.set_yticks([1 / 16, 1 / 4, 1, 4, 16], ["1/16", "1/4", "1", "4", "16"])
    axes.minorticks_off()
    axes.set_ylim(low / (high / low) ** 0.25, high * 1.2)
    axes.tick_params(labelsize=8)
    axes.set_xticks(range(len(clients)), [f"{each:,}" for each in clients])
    axes.set_xlim(-0.6, len(clients) - 0.4)
    axes.set_xlabel("clients", fontsize=8)

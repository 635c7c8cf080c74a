"""Draws a sweep's ratios as a PNG: a row of panels for each peer, a panel for each size.

A panel has a column for each number of clients and a row for each number of names. Blue is ahead of the peer,
orange behind it, white as fast; the number in a cell is the ratio of the rates.
"""

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure

from shared.units import readable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from brokers.bench.sweep import Row

# Okabe and Ito's colours, which people who do not tell red from green can tell apart.
_COLOURS = LinearSegmentedColormap.from_list("ratios", ["#d55e00", "#ffffff", "#0072b2"], bad="#dddddd")
_FARTHEST = 4.0
"""From this ratio on, and from 1 divided by it down, a colour is the fullest."""


def draw(rows: Iterable["Row"]) -> bytes:
    """The PNG."""
    held = io.BytesIO()
    figure_of(rows).savefig(held, format="png", dpi=150)
    return held.getvalue()


def figure_of(rows: Iterable["Row"]) -> Figure:
    by_panel: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
    for row in rows:
        by_panel.setdefault((row.protocol, row.mode, row.baseline), {}).setdefault(row.size, []).append(row)
    columns = max(map(len, by_panel.values()))
    first = next(iter(next(iter(by_panel.values())).values()))
    names, clients = sorted({row.names for row in first}), sorted({row.clients for row in first})
    wide, high = max(0.62 * len(clients) + 0.7, 2.2), 0.42 * len(names) + 1.15
    figure = Figure(figsize=(wide * columns + 0.6, high * len(by_panel) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(by_panel), columns, squeeze=False)
    for line, (key, by_size) in zip(panels, by_panel.items(), strict=True):
        protocol, mode, baseline = key
        line[0].set_ylabel(f"{protocol} {mode}\nbeside {baseline}\n\nnames")
        for axes in line[len(by_size) :]:
            axes.set_visible(False)
        for axes, (size, found) in zip(line, by_size.items(), strict=False):
            _panel(axes, found, names, clients)
            axes.set_title(readable(size, "bytes"), fontsize=10)
    figure.suptitle("messages a second, as a ratio to the peer's (above 1: ahead)", fontsize=11)
    return figure


def _panel(axes: "Axes", rows: Iterable["Row"], names: list[int], clients: list[int]) -> None:
    cells: list[list[float]] = [[float("nan")] * len(clients) for _ in names]
    for row in rows:
        if row.ratio:
            y, x = names.index(row.names), clients.index(row.clients)
            cells[y][x] = row.ratio
            dark = not 1 / 2.4 < row.ratio < 2.4
            axes.text(
                x, y, f"{row.ratio:.2g}", ha="center", va="center", color="white" if dark else "black", size=9
            )
    axes.imshow(
        cells, cmap=_COLOURS, norm=LogNorm(1 / _FARTHEST, _FARTHEST, clip=True), origin="lower", aspect="auto"
    )
    axes.set_xticks(range(len(clients)), [f"{each:,}" for each in clients])
    axes.set_yticks(range(len(names)), [f"{each:,}" for each in names])
    axes.set_xlabel("clients")

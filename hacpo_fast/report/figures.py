"""Every chart of the page as a picture of its own, in the size of a column of a paper. Needs matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_fast.report.charts import Chart, Group
from hacpo_fast.report.data import COLUMNS, agents_of
from hacpo_fast.report.series import COMMON, RunSeries
from hacpo_fast.run.curve_data import Series, in_columns
from hacpo_fast.run.palette import AGENTS, PHASES, agent_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, DPI = 3.5, 2.2, 300
"""Inches, as wide as a column, without the legend; pixels per inch."""
LEGEND_ROW = 0.145
"""Inches of a row of the legend, which stands below: curves leave no corner free."""
LEGEND_LETTERS = 64
"""Letters for which a row of the legend has room."""
OWN_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.handlelength": 2.2,
    "legend.borderaxespad": 0.1,
    "legend.borderpad": 0,
    "axes.formatter.use_mathtext": True,
    "axes.formatter.limits": (-3, 5),
    "figure.constrained_layout.h_pad": 0.02,
}
RUN_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def draw_figures(
    series: Sequence[RunSeries], groups: Sequence[Group], names: Sequence[str], folder: Path
) -> list[Path]:
    """Writes `folder`/<name>.png for every chart that is not constant, and times[-<run>].png; returns their paths.

    series, names: of the runs from which `groups` were made. Curves look as on the page.
    """
    import matplotlib

    from hacpo_fast.run.panels import STYLE

    folder.mkdir(parents=True, exist_ok=True)
    agents = agents_of(series)
    paths = []
    with matplotlib.rc_context(STYLE | OWN_STYLE):
        for group in groups:
            for chart in group.charts:
                if chart.constant() is None:
                    paths.append(_save(_curves(chart, agents, names), folder, chart.name))
        for each, name in zip(series, names, strict=True):
            if each.time:
                paths.append(_save(_times(each), folder, "times" if len(series) == 1 else f"times-{name}"))
    return paths


def _curves(chart: Chart, agents: Sequence[str], names: Sequence[str]) -> Figure:
    from matplotlib.ticker import PercentFormatter

    from hacpo_fast.run.panels import trace, widened

    labels = [
        " · ".join(part for part in (names[line.run] if len(names) > 1 else "", line.agent) if part)
        for line in chart.lines
    ]
    figure, axes = _blank(labels if any(labels) else [])
    size, unit = _unit(chart)
    drawn = [Series(line.series.steps, [value / size for value in line.series.values]) for line in chart.lines]
    for line, label, series, wider in zip(chart.lines, labels, drawn, widened(drawn), strict=True):
        colour, dashes = look(line.run, line.agent, agents, len(names))
        steps, values = series
        if line.spread:
            low, high = ([v + sign * s for v, s in zip(values, line.spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        known = series.known() if chart.name.startswith("validation.") else series
        trace(axes, known, colour, dashes, wider)
        axes.plot([], [], color=colour, linestyle=dashes, label=label or None)
    if chart.name.endswith("_ratio_mean"):
        axes.axhline(1.0, color="#888888", linewidth=0.8, zorder=0)
        axes.ticklabel_format(axis="y", useOffset=False)
    if chart.kind == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_title(chart.title)
    axes.set_ylabel(unit)
    return _with_legend(figure, axes, labels)


def look(run: int, agent: str, agents: Sequence[str], runs: int) -> tuple[str, Any]:
    """Colour and dashes of a curve: colours are agents and dashes are runs, but for several runs of a single agent.

    Where colours begin anew, dashes go on.
    """
    if agent == COMMON:
        return "#555555", RUN_DASHES[run % len(RUN_DASHES)]
    coloured, dashed = agents.index(agent), run
    if len(agents) == 1 and runs > 1:
        coloured, dashed = dashed, coloured
    return agent_colour(coloured), RUN_DASHES[(dashed + coloured // len(AGENTS)) % len(RUN_DASHES)]


def _unit(chart: Chart) -> tuple[float, str]:
    """What the values are divided by, and what stands beside the axis then."""
    if chart.kind != "bytes":
        return 1, chart.unit
    power = min(int(math.log2(max(max(chart.values()), 1))) // 10, len(BYTES) - 1)
    return 1024**power, BYTES[power]


def _times(series: RunSeries) -> Figure:
    columns = {name: in_columns(each, COLUMNS) for name, each in series.time.items()}
    figure, axes = _blank(list(columns))
    steps = next(iter(columns.values())).steps
    floor = [0.0] * len(steps)
    width = (steps[1] - steps[0] if len(steps) > 1 else 1) * (0.86 if len(steps) < COLUMNS / 2 else 1)
    for name, each in columns.items():
        axes.bar(steps, each.values, width, floor, color=PHASES.get(name, PHASES["other"]), label=name, linewidth=0)
        floor = [below + value for below, value in zip(floor, each.values, strict=True)]
    axes.set_title("Time per step")
    axes.set_ylabel("seconds")
    axes.grid(axis="x", visible=False)
    return _with_legend(figure, axes, list(columns))


def _blank(labels: Sequence[str]) -> tuple[Figure, Axes]:
    # No pyplot: it would choose a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(labels) / _columns(labels)) if labels else 0
    figure = Figure(figsize=(WIDTH, HEIGHT + LEGEND_ROW * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _with_legend(figure: Figure, axes: Axes, labels: Sequence[str]) -> Figure:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    axes.set_xlabel("training step")
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside lower center", ncols=_columns(labels))
    return figure


def _columns(labels: Sequence[str]) -> int:
    """Of the legend, as many as fit."""
    return max(1, min(len(labels), LEGEND_LETTERS // (max(map(len, labels)) + 8)))


def _save(figure: Figure, folder: Path, name: str) -> Path:
    path = folder / (re.sub(r"[^A-Za-z0-9@_-]+", "-", name).strip("-") + ".png")
    figure.savefig(path, dpi=DPI, format="png")
    return path

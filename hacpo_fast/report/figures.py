"""Every chart of the page as a picture of its own, in the size of a column of a paper. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hacpo_fast.report.charts import Chart, Group
from hacpo_fast.report.series import COMMON, RunSeries
from hacpo_fast.run.palette import PHASES, agent_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE, DPI = (3.5, 2.3), 300
"""Inches, as wide as a column; pixels per inch."""
RUN_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
COLUMNS = 120
"""Most columns of a chart of times."""


def draw_figures(
    series: Sequence[RunSeries], groups: Sequence[Group], names: Sequence[str], folder: Path
) -> list[Path]:
    """Writes `folder`/<name>.png for every chart that is not constant, and times[-<run>].png; returns their paths.

    series, names: of the runs from which `groups` were made. Colours are agents, dashes are runs, as on the page.
    """
    import matplotlib

    from hacpo_fast.run.panels import STYLE

    folder.mkdir(parents=True, exist_ok=True)
    agents = list(dict.fromkeys(agent for each in series for agent in each.agents))
    paths = []
    with matplotlib.rc_context(STYLE | {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7}):
        for group in groups:
            for chart in group.charts:
                if chart.constant() is None:
                    figure, axes = _blank()
                    _curves(axes, chart, agents, names)
                    paths.append(_save(figure, folder, chart.name))
        for each, name in zip(series, names, strict=True):
            if each.time:
                figure, axes = _blank()
                _times(axes, each)
                paths.append(_save(figure, folder, "times" if len(series) == 1 else f"times-{name}"))
    return paths


def _blank() -> tuple[Figure, Axes]:
    # No pyplot: it would choose a backend for the whole process.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def _curves(axes: Axes, chart: Chart, agents: Sequence[str], names: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    from hacpo_fast.run.panels import trace

    for line in chart.lines:
        colour = "#555555" if line.agent == COMMON else agent_colour(agents.index(line.agent))
        label = " · ".join(part for part in (names[line.run] if len(names) > 1 else "", line.agent) if part)
        steps, values = line.series
        if line.spread:
            low, high = ([v + sign * s for v, s in zip(values, line.spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        dashes = RUN_DASHES[line.run % len(RUN_DASHES)]
        trace(axes, line.series.known() if chart.name.startswith("validation.") else line.series, colour, dashes)
        axes.plot([], [], color=colour, linestyle=dashes, label=label or None)
    if chart.name.endswith("_ratio_mean"):
        axes.axhline(1.0, color="#888888", linewidth=0.8, zorder=0)
        axes.ticklabel_format(axis="y", useOffset=False)
    if chart.kind == "share":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_title(chart.title)
    axes.set_ylabel(chart.about)
    axes.set_xlabel("training step")
    if any(line.agent for line in chart.lines) or len(names) > 1:
        axes.legend(handlelength=2.2, borderaxespad=0.2)


def _times(axes: Axes, series: RunSeries) -> None:
    from matplotlib.ticker import MaxNLocator

    from hacpo_fast.run.curve_data import in_columns

    columns = {name: in_columns(each, COLUMNS) for name, each in series.time.items()}
    steps = next(iter(columns.values())).steps
    floor = [0.0] * len(steps)
    width = (steps[1] - steps[0] if len(steps) > 1 else 1) * (0.86 if len(steps) < COLUMNS / 2 else 1)
    for name, each in columns.items():
        axes.bar(steps, each.values, width, floor, color=PHASES.get(name, PHASES["other"]), label=name, linewidth=0)
        floor = [below + value for below, value in zip(floor, each.values, strict=True)]
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    axes.set_title("Seconds per step")
    axes.set_xlabel("training step")
    axes.grid(axis="x", visible=False)
    axes.legend(handlelength=0.9)


def _save(figure: Figure, folder: Path, name: str) -> Path:
    path = folder / (re.sub(r"[^A-Za-z0-9@_-]+", "-", name).strip("-") + ".png")
    figure.savefig(path, dpi=DPI, format="png")
    return path

"""curves.png: a run at a glance, for a README or a report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.run.curve_data import RunCurves
from hacpo_fast.run.telemetry import read_metrics

WIDTH, DPI = 9.0, 160
"""Inches, and pixels per inch: text of 9 points is readable where the picture is shown 900 pixels wide."""
BIG, SMALL = 2.9, 1.8
"""Heights of the first panel and of the others, in inches."""


def draw_curves(source: str | Path | Iterable[dict[str, Any]], output: str | Path, title: str | None = None) -> Path:
    """Draw `source` (folder of a run, its metrics.jsonl, or the records themselves) as a PNG; returns its path.

    Only panels that the records have something for are drawn. UserError if that is none.
    """
    records, name = (read_metrics(source), source) if isinstance(source, str | Path) else (source, "the records")
    curves = RunCurves(records)
    # Loaded here: matplotlib takes long to import. No pyplot: it would choose a backend for the whole process.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from hacpo_fast.run.panels import STYLE, chosen, legend, name_steps

    panels = chosen(curves)
    if not panels:
        raise UserError(f"nothing to draw in {name}: no step has ended yet")
    big, *small = panels
    rows = [small[at : at + 2] for at in range(0, len(small), 2)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, BIG + SMALL * len(rows)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(1 + len(rows), 2, height_ratios=[BIG, *[SMALL] * len(rows)])
        axes = figure.add_subplot(grid[0, :])
        big(axes, curves)
        name_steps(axes)
        for row, pair in enumerate(rows, start=1):
            for column, panel in enumerate(pair):
                # A last panel without a neighbour takes the whole row.
                axes = figure.add_subplot(grid[row, column] if len(pair) == 2 else grid[row, :])
                panel(axes, curves)
                if row == len(rows):
                    name_steps(axes)
        legend(figure, curves, title)
        output = Path(output)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=DPI, format="png")
    return output

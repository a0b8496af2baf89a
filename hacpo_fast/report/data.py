"""All that the page shows, as one JSON document; page/*.js reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hacpo_fast.report.charts import Chart, Group, Line
from hacpo_fast.report.labels import short_labels
from hacpo_fast.report.reading import Run, Table
from hacpo_fast.report.samples import embedded_samples
from hacpo_fast.report.series import RunSeries, words
from hacpo_fast.report.settings import differences, setting_lines
from hacpo_fast.report.summary import result_rows, run_facts
from hacpo_fast.report.thin import evenly, kept_points
from hacpo_fast.run.curve_data import Series, in_columns, smooth
from hacpo_fast.run.jsonl import strict

POINTS = 2000
"""Most points of a curve: more than a screen has pixels."""
ALL_POINTS = 120_000
"""Most points of all curves together (about 2 MB), as far as that leaves every curve FEWEST."""
FEWEST = 200
FEW = 40
"""Steps up to which noise is not smoothed, as in curves.png."""
COLUMNS = 120
"""Most columns of the chart of times."""


def page_data(
    runs: Sequence[Run], series: Sequence[RunSeries], groups: Sequence[Group], tables: Sequence[Table]
) -> dict[str, Any]:
    """The document, free of NaN; `series` and `groups` are made of `runs`."""
    lines = sum(len(chart.lines) for group in groups for chart in group.charts)
    most = min(POINTS, max(FEWEST, ALL_POINTS // max(lines, 1)))
    labels = short_labels([run.name for run in runs])
    return strict(
        {
            "agents": agents_of(series),
            "runs": [
                {"label": label} | run_facts(run, each) | _axes(each)
                for label, run, each in zip(labels, runs, series, strict=True)
            ],
            "results": [row for run, each in enumerate(series) for row in result_rows(run, each)],
            "groups": [
                {"title": group.title, "charts": [_chart(chart, most) for chart in group.charts]} for group in groups
            ],
            "times": [each for run, one in enumerate(series) if (each := _times(run, one))],
            "numbers": _numbers(groups),
            "words": [
                {"run": at, "agent": agent, "name": name, "value": value}
                for at, run in enumerate(runs)
                for (agent, name), value in words(run.records).items()
            ],
            "tables": [table._asdict() for table in tables],
            "samples": [embedded_samples(run, len(runs)) for run in runs],
            "settings": [[list(line) for line in setting_lines(run.config)] for run in runs],
            "differences": differences([run.config for run in runs]) if len(runs) > 1 else [],
            "environments": [run.environment for run in runs],
        }
    )


def agents_of(series: Sequence[RunSeries]) -> list[str]:
    """Names of all agents, in the order of their colours."""
    return list(dict.fromkeys(agent for each in series for agent in each.agents))


def _axes(series: RunSeries) -> dict[str, Any]:
    """Other x axes than the step: (step, value) of the hours and of each agent's optimiser updates, to interpolate."""
    clock = _picked(series.clock, evenly(len(series.clock.steps), POINTS))
    updates = {
        agent: _picked(curve.known(), evenly(len(curve.known().steps), POINTS))
        for agent, curve in series.metrics.get("updates", {}).items()
    }
    return {"hours": clock, "updates": updates}


def _picked(series: Series, places: Sequence[int]) -> list[list[float]]:
    return [[series.steps[place] for place in places], [_short(series.values[place]) for place in places]]


def _chart(chart: Chart, most: int) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": chart.title,
        "about": chart.caption,
        "kind": chart.kind,
        "constant": chart.constant(),
        "lines": [_line(line, most) for line in chart.lines],
    }


def _line(line: Line, most: int) -> dict[str, Any]:
    """At most `most` points; of a long curve also its trend, from all points."""
    values = line.series.values
    edges = [
        [value + sign * std for value, std in zip(values, line.spread, strict=True)] if line.spread else values
        for sign in (-1, 1)
    ]
    places = kept_points([values, *edges] if line.spread else [values], most)
    data = {"run": line.run, "agent": line.agent}
    data["x"], data["y"] = _picked(line.series, places)
    if line.spread:
        data["spread"] = [_short(line.spread[place]) for place in places]
    if len(line.series.known().steps) > FEW:
        trend = Series(line.series.steps, smooth(values, len(values) // 20 * 2 + 1))
        data["trend"] = _picked(trend, evenly(len(values), 300))
    if len(places) < len(values):
        data["of"] = len(values)
    return data


def _times(run: int, series: RunSeries) -> dict[str, Any] | None:
    if not series.time:
        return None
    columns = {name: in_columns(each, COLUMNS) for name, each in series.time.items()}
    count = len(next(iter(series.time.values())).steps)
    return {
        "run": run,
        "steps": next(iter(columns.values())).steps,
        "mean_of": math.ceil(count / COLUMNS),
        "phases": {name: [_short(value) for value in each.values] for name, each in columns.items()},
        "totals": {name: math.fsum(each.values) for name, each in series.time.items()},
    }


def _numbers(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """First, last, lowest and highest value of every curve."""
    return [
        {
            "name": chart.name, "title": chart.title, "about": chart.caption, "kind": chart.kind,
            "run": line.run, "agent": line.agent,
            "first": known[0], "last": known[-1], "low": min(known), "high": max(known),
            "mean": math.fsum(known) / len(known),
        }
        for group in groups
        for chart in group.charts
        for line in chart.lines
        if (known := line.series.known().values)
    ]  # fmt: skip


def _short(value: float) -> float:
    """Eight digits: own ratios differ from 1 in the fifth."""
    return value if isinstance(value, int) else float(f"{value:.8g}")

"""All numbers of a run as series over its steps, whatever they are called."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hacpo_fast.report.reading import Run
from hacpo_fast.run.curve_data import RunCurves, Series

COMMON = ""
"""Stands for an agent where a number is of the run as a whole."""


class RunSeries:
    """Series of one run; nested records are flattened ("memory.cache")."""

    def __init__(self, run: Run) -> None:
        steps = [record for record in run.records if "agents" in record]
        curves = RunCurves(run.records)
        self.agents = curves.agents
        self.time = curves.time()
        self.metrics: dict[str, dict[str, Series]] = {}
        """By name, then by agent (`COMMON` for numbers of the run)."""
        for record in steps:
            common = {key: value for key, value in record.items() if key not in ("step", "agents", "time")}
            for owner, values in {COMMON: common, **record["agents"]}.items():
                for name, value in numbers(values):
                    series = self.metrics.setdefault(name, {}).setdefault(owner, Series([], []))
                    series.steps.append(record["step"])
                    series.values.append(value)
        self.metrics = {
            name: {owner: each for owner, each in owners.items() if each.known().steps}
            for name, owners in self.metrics.items()
        }
        self.scores: dict[tuple[str, str], dict[str, Series]] = {}
        """By way of sampling and score, then by agent."""
        for record in run.records:
            for agent, samplings in record.get("validation", {}).items():
                for sampling, scores in samplings.items():
                    for name, value in numbers(scores):
                        series = self.scores.setdefault((sampling, name), {}).setdefault(agent, Series([], []))
                        series.steps.append(record["step"])
                        series.values.append(value)
        self.clock = _clock(run.records)


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(name, number) of everything in `values` that is a number or its absence (None: NaN)."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, int | float):
            yield f"{prefix}{name}", math.nan if value is None else value


def words(records: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """(agent, name) -> the last value of what is neither number nor section: text, lists."""
    found = {}
    for record in records:
        common = {key: value for key, value in record.items() if key not in ("agents", "validation")}
        for owner, values in {COMMON: common, **record.get("agents", {})}.items():
            for name, value in values.items():
                if value is not None and not isinstance(value, int | float | Mapping):
                    found[owner, name] = str(value)
    return found


def _clock(records: list[dict[str, Any]]) -> Series:
    """Hours of computing up to the end of each step, validations included; empty where no time was taken."""
    clock, spent = {}, 0.0
    for record in records:
        seconds = record.get("time", {}).get("total")
        if seconds is None and "agents" in record:
            return Series([], [])
        spent += seconds or 0.0
        clock[record["step"]] = spent / 3600
    return Series(list(clock), list(clock.values()))

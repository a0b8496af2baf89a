"""What became of a run, in a few numbers."""

from __future__ import annotations

import math
from typing import Any

from hacpo_fast.report.reading import Run
from hacpo_fast.report.series import RunSeries
from hacpo_fast.run.cells import headline
from hacpo_fast.run.curve_data import Series


def run_facts(run: Run, series: RunSeries) -> dict[str, Any]:
    """Name, progress and time of a run."""
    config = run.config
    steps = [record["step"] for record in run.records if "agents" in record]
    totals = [record.get("time", {}).get("total") or 0.0 for record in run.records]
    task = config.get("task") or {}
    return {
        "name": run.name,
        "folder": str(run.folder),
        "agents": series.agents,
        "algorithm": (config.get("algorithm") or {}).get("name"),
        "task": task.get("name"),
        "reward_max": ((config.get("algorithm") or {}).get("advantage") or {}).get("reward_max", 1.0),
        "ranges": _clip_ranges(config.get("algorithm") or {}),
        "steps": max(steps, default=0),
        "planned": (config.get("run") or {}).get("steps"),
        "finished": run.finished,
        "seconds": math.fsum(totals) or None,
        "seconds_per_step": _mean([record["time"].get("total") for record in run.records if _timed_step(record)]),
        "started": next((start.get("started") for start in run.environment), None),
        "resumed": [start["after_step"] for start in run.environment[1:] if start.get("after_step")],
    }


def result_rows(run: int, series: RunSeries) -> list[dict[str, Any]]:
    """One row per agent: its main score at the start, at the end and at its best, and means of the last tenth."""
    rows = []
    score = _main_score(series)
    for agent in series.agents:
        row: dict[str, Any] = {"run": run, "agent": agent}
        known = series.scores[score].get(agent, Series([], [])).known() if score else Series([], [])
        if score and known.values:
            best = max(range(len(known.values)), key=known.values.__getitem__)
            row |= {
                "score": f"{score[1]}, {score[0]}",
                "start": known.values[0], "start_step": known.steps[0],
                "final": known.values[-1], "final_step": known.steps[-1],
                "best": known.values[best], "best_step": known.steps[best],
            }  # fmt: skip
        for name in ("accuracy", "reward", "entropy", "response_tokens"):
            row[name] = last_tenth(series.metrics.get(name, {}).get(agent))
        row["updates"] = _last(series.metrics.get("updates", {}).get(agent))
        for name in ("generated_tokens_per_second", "trained_tokens_per_second"):
            curve = series.metrics.get(name, {}).get(agent)
            row[name] = _mean(curve.known().values) if curve else None
        rows.append(row)
    return rows


def last_tenth(series: Series | None) -> float | None:
    """Mean of the last tenth of the known values, of one at least."""
    known = series.known().values if series else []
    return _mean(known[-max(len(known) // 10, 1) :])


def _main_score(series: RunSeries) -> tuple[str, str] | None:
    if not series.scores:
        return None
    sampling = next(iter(series.scores))[0]
    return sampling, headline({score: None for way, score in series.scores if way == sampling})


def _clip_ranges(algorithm: dict[str, Any]) -> dict[str, list[float]]:
    """By metric: the ratios between which nothing is clipped, as far as one range holds for all updates."""
    ranges = {}
    low, high = algorithm.get("own_clip_low"), algorithm.get("own_clip_high")
    if low is not None and high is not None and algorithm.get("name") != "grpo":
        ranges["own_ratio_mean"] = [1 - low, 1 + high]
    low, high = algorithm.get("cross_lower"), algorithm.get("cross_upper")
    if low is not None and high is not None and algorithm.get("name") == "hacpo" and algorithm.get("cross_clip", True):
        ranges["cross_ratio_mean"] = [low, high]
    return ranges


def _timed_step(record: dict[str, Any]) -> bool:
    return "agents" in record and record.get("time", {}).get("total") is not None


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _last(series: Series | None) -> float | None:
    return series.values[-1] if series and series.values else None

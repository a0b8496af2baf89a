"""Which numbers are drawn together, under which name, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hacpo_fast.report.series import COMMON, RunSeries
from hacpo_fast.run.cells import shown_scores
from hacpo_fast.run.curve_data import Series


class Figure(NamedTuple):
    """One number that runs are known to have."""

    metric: str
    title: str
    unit: str
    """Of what, or in which unit: behind a percentage or beside an axis."""
    about: str = ""
    kind: str = "number"
    """How it is written: share (as percents), number, count, seconds, bytes."""
    spread: str | None = None
    """Name of the standard deviation that is drawn around it."""


TAUGHT = "of others' responses that teach"
CATALOGUE: dict[str, tuple[Figure, ...]] = {
    "Learning": (
        Figure("accuracy", "Training accuracy", "of own responses", "with the highest reward", "share"),
        Figure("reward", "Training reward", "mean over own responses"),
        Figure("capability", "Capability", "moving average", "own rewards of recent steps"),
        Figure("no_signal_share", "Prompts without signal", "of prompts", "all rewards equal, or dropped", "share"),
        Figure("live_share", "Responses that teach", "of responses", "with a gradient, unless it is clipped", "share"),
    ),
    "Ratios": (
        Figure(
            "own_ratio_mean", "Own ratio", "mean ± deviation",
            "own responses that teach, before clipping", spread="own_ratio_std",
        ),
        Figure(
            "cross_ratio_mean", "Cross ratio", "mean ± deviation",
            "others' responses that teach, before clipping", spread="cross_ratio_std",
        ),
        Figure("own_clip_low", "Own, clipped below", "of own responses that teach", kind="share"),
        Figure("own_clip_high", "Own, clipped above", "of own responses that teach", kind="share"),
        Figure("cross_live", "Cross, live", TAUGHT, "not clipped", "share"),
        Figure("cross_clip_low", "Cross, clipped below", TAUGHT, "ratio below the range", "share"),
        Figure("cross_clip_high", "Cross, clipped above", TAUGHT, "ratio above the range", "share"),
        Figure("cross_lower", "Cross, lower bound", "ratio", "at the first update of a step"),
    ),
    "Optimisation": (
        Figure("entropy", "Entropy", "nats per token", "estimated from the sampled tokens"),
        Figure("grad_norm", "Gradient norm", "mean over updates", "before it is limited"),
        Figure("loss", "Loss", "mean over updates", "minus the objective, its height says little"),
        Figure("kl", "KL to the initial policy", "nats per token", "mean over own responses"),
        Figure("mismatch", "Engine mismatch", "nats per token", "mean |difference| of the policy's log-probs"),
        Figure("importance_weight", "Importance weight", "mean", "policy over engine"),
        Figure("lr", "Learning rate", "of AdamW"),
        Figure("updates", "Optimiser updates", "so far", kind="count"),
        Figure("skipped_updates", "Skipped updates", "per step", "the gradient was not finite", "count"),
        Figure("screened_share", "Screened out", "of responses", "scored, found clipped, not trained on", "share"),
    ),
    "Responses": (
        Figure("response_tokens", "Response length", "tokens", "mean over own responses", "count"),
        Figure("truncated_share", "Cut off", "of own responses", "at the longest allowed length", "share"),
        Figure("unscorable_share", "Not scorable", "of responses that teach", "too long or not in its tokens", "share"),
        Figure("prompts", "Prompts", "per step", kind="count"),
        Figure("dropped_prompts", "Dropped prompts", "per step", "a reward failed, nobody learns from them", "count"),
        Figure("reward_errors", "Reward errors", "per step", "own responses whose check failed", "count"),
        Figure("reward_p95_seconds", "Time of a check", "seconds", "95 % of the rewards took less", "seconds"),
    ),
    "Throughput": (
        Figure("generated_tokens_per_second", "Generated tokens", "tokens per second", "while sampling", "count"),
        Figure("trained_tokens_per_second", "Trained tokens", "tokens per second", "while learning", "count"),
    ),
}  # fmt: skip
OTHER_TOPICS = {"Time by agent": "time.", "Memory": "memory", "Further": ""}
"""Groups of numbers that the catalogue does not know, by what their names hold; the first that fits counts."""


class Line(NamedTuple):
    """A curve of a chart."""

    run: int
    agent: str
    """`COMMON` for a number of the run as a whole."""
    series: Series
    spread: list[float] | None = None
    """Standard deviation at every point."""


@dataclass(frozen=True)
class Chart:
    """One picture: the same number of all runs and agents."""

    name: str
    title: str
    unit: str
    about: str
    kind: str
    lines: list[Line]

    @property
    def caption(self) -> str:
        return "; ".join(part for part in (self.unit, self.about) if part)

    def values(self) -> Iterable[float]:
        return (value for line in self.lines for value in line.series.values if math.isfinite(value))

    def constant(self) -> float | None:
        """The value it has throughout, if it never changes."""
        values = list(self.values())
        return values[0] if len(values) > 1 and min(values) == max(values) else None


@dataclass(frozen=True)
class Group:
    title: str
    charts: list[Chart] = field(default_factory=list)


def chart_groups(series: Sequence[RunSeries]) -> list[Group]:
    """All charts of runs, by topic. Every number that a run wrote is in one of them, known or not."""
    groups = [Group("Validation", _validation(series))]
    drawn: set[str] = set()
    for title, figures in CATALOGUE.items():
        charts = [_chart(series, figure) for figure in figures]
        groups.append(Group(title, [chart for chart in charts if chart.lines]))
        drawn |= {name for figure in figures for name in (figure.metric, figure.spread) if name}
    names = dict.fromkeys(name for each in series for name in each.metrics if name not in drawn)
    others: dict[str, list[Chart]] = {topic: [] for topic in OTHER_TOPICS}
    for name in names:
        topic = next(topic for topic, part in OTHER_TOPICS.items() if part in name)
        others[topic].append(_chart(series, _unknown(name)))
    groups += [Group(topic, charts) for topic, charts in others.items()]
    return [group for group in groups if group.charts]


def _validation(series: Sequence[RunSeries]) -> list[Chart]:
    """The scores that stand for each way of sampling first."""
    pairs = list(dict.fromkeys(pair for each in series for pair in each.scores))
    by_sampling: dict[str, list[str]] = {}
    for sampling, score in pairs:
        if score != "problems":
            by_sampling.setdefault(sampling, []).append(score)
    charts = []
    for sampling, scores in by_sampling.items():
        first = list(dict.fromkeys(shown_scores(dict.fromkeys(scores))))
        for score in [*first, *(score for score in scores if score not in first)]:
            lines = [
                Line(run, agent, curve)
                for run, each in enumerate(series)
                for agent, curve in each.scores.get((sampling, score), {}).items()
                if curve.known().steps
            ]
            chart = Chart(f"validation.{sampling}.{score}", f"Validation {score}", sampling, "", "number", lines)
            if lines and all(0 <= value <= 1 for value in chart.values()):
                chart = replace(chart, kind="share")
            if lines and not any(_same(chart, other) for other in charts):
                charts.append(chart)
    return charts


def _same(chart: Chart, other: Chart) -> bool:
    """Rewards of 0 and 1 make the mean reward of greedy answers another name of their accuracy."""
    return chart.unit == other.unit and chart.lines == other.lines


def _chart(series: Sequence[RunSeries], figure: Figure) -> Chart:
    lines = []
    for run, each in enumerate(series):
        spreads = each.metrics.get(figure.spread or "", {})
        for agent, curve in each.metrics.get(figure.metric, {}).items():
            if agent == COMMON and len(each.metrics[figure.metric]) > 1:
                continue  # every agent has its own
            spread = dict(zip(*spreads[agent], strict=True)) if agent in spreads else None
            around = [spread.get(step, math.nan) for step in curve.steps] if spread else None
            lines.append(Line(run, agent, curve, around))
    return Chart(figure.metric, figure.title, figure.unit, figure.about, figure.kind, lines)


def _unknown(name: str) -> Figure:
    """A number that the catalogue does not know."""
    title = name.replace("_", " ").replace(".", " · ").capitalize()
    if name.startswith("time."):
        return Figure(name, title, "seconds per step", kind="seconds")
    if name.startswith("peak_memory"):
        return Figure(name, title, "", "largest in the phase; on a CPU, of the whole process", "bytes")
    if name.endswith("bytes"):
        return Figure(name, title, "", kind="bytes")
    return Figure(name, title, "", kind="share" if name.endswith("_share") else "number")

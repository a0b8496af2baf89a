"""Records of a run, turned into series over training steps."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from hacpo_fast.run.cells import headline
from hacpo_fast.run.palette import phases


class Series(NamedTuple):
    """Values over training steps; NaN where a step has none."""

    steps: list[int]
    values: list[float]

    def known(self) -> Series:
        """Without the steps that have no value."""
        kept = [(step, value) for step, value in zip(*self, strict=True) if math.isfinite(value)]
        return Series([step for step, _ in kept], [value for _, value in kept])


class RunCurves:
    """What can be drawn of a run."""

    def __init__(self, records: Iterable[dict[str, Any]]) -> None:
        records = list(records)
        self._steps = [record for record in records if "agents" in record]
        self._validations = [record for record in records if "validation" in record]
        by_agent = [record["agents"] for record in self._steps] + [each["validation"] for each in self._validations]
        self.agents = list(dict.fromkeys(agent for each in by_agent for agent in each))

    def span(self) -> tuple[int, int]:
        """First and last step of all records."""
        steps = [record["step"] for record in [*self._steps, *self._validations]]
        return min(steps), max(steps)

    def metric(self, agent: str, name: str) -> Series:
        steps = [record["step"] for record in self._steps]
        return Series(steps, [_number(record["agents"].get(agent, {}).get(name)) for record in self._steps])

    def has(self, name: str) -> bool:
        return any(self.metric(agent, name).known().steps for agent in self.agents)

    def samplings(self) -> list[str]:
        """Names of the ways in which answers were sampled for validation, in order."""
        results = [result for record in self._validations for result in record["validation"].values()]
        return list(dict.fromkeys(name for result in results for name in result))

    def score(self, sampling: str) -> str:
        """The score that is drawn for it: accuracy or avg@k."""
        results = [result for record in self._validations for result in record["validation"].values()]
        return next(headline(result[sampling]) for result in results if sampling in result)

    def validation(self, agent: str, sampling: str) -> Series:
        score = self.score(sampling)
        return Series(
            [record["step"] for record in self._validations],
            [_number(each["validation"].get(agent, {}).get(sampling, {}).get(score)) for each in self._validations],
        )

    def time(self) -> dict[str, Series]:
        """Seconds per step by phase; phases that took none are left out."""
        steps = [record["step"] for record in self._steps if "time" in record]
        spent = [phases(record["time"]) for record in self._steps if "time" in record]
        names = dict.fromkeys(name for each in spent for name in each)
        series = {name: Series(steps, [each.get(name, 0.0) for each in spent]) for name in names}
        return {name: each for name, each in series.items() if any(each.values)}


def smooth(values: list[float], window: int) -> list[float]:
    """Mean over `window` values around each, fewer at the ends and around NaN."""
    half = window // 2
    around = ([v for v in values[max(at - half, 0) : at + half + 1] if math.isfinite(v)] for at in range(len(values)))
    return [math.fsum(each) / len(each) if each else math.nan for each in around]


def in_columns(series: Series, most: int) -> Series:
    """Means over stretches of equal length, so that at most `most` values are left."""
    size = math.ceil(len(series.steps) / most)
    starts = range(0, len(series.steps), size)
    middles = [series.steps[start : start + size] for start in starts]
    parts = [series.values[start : start + size] for start in starts]
    return Series([sum(m) / len(m) for m in middles], [math.fsum(p) / len(p) for p in parts])


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else math.nan

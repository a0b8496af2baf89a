"""How a number of a record looks in a cell, and which of them the terminal shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from hacpo_fast.run.rollout_log import RolloutSample
from hacpo_fast.run.text import printable

Metrics = Mapping[str, Any]
"""What a record says about one agent."""

ABSENT = "-"


def number(value: float | None, spec: str = ".3f") -> str:
    return ABSENT if value is None else format(value, spec)


def percent(value: float | None, digits: int = 1) -> str:
    return ABSENT if value is None else f"{half_up(100 * value, digits)} %"


def half_up(value: float, digits: int, sign: str = "") -> str:
    """With halves away from 0, as in reports: `format` gives 95.2 and 95.8 for 95.25 and 95.75. sign: "+" or ""."""
    if not math.isfinite(value):
        return format(value, f"{sign}.{digits}f")
    return format(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP), f"{sign}f")


def count(value: float | None) -> str:
    """Three digits or so: 312, 4.1k, 12k."""
    if value is None or not math.isfinite(value):
        return number(value, ".0f")
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{1 if abs(value) < 10 * size else 0}f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    """48 s, 12:05, 3:00:12."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def spread(metrics: Metrics, kind: str) -> str:
    """Ratio before clipping: its mean and, where known, its standard deviation. Own ratios stay within 1e-3 of 1."""
    mean, std = metrics.get(f"{kind}_ratio_mean"), metrics.get(f"{kind}_ratio_std")
    spec = ".4f" if kind == "own" else ".3f"
    return number(mean, spec) + (f" ±{number(std, spec)}" if std is not None else "")


def clipped(metrics: Metrics, kind: str) -> str:
    """Shares of the ratios below and above the range."""
    low, high = metrics.get(f"{kind}_clip_low"), metrics.get(f"{kind}_clip_high")
    if low is None and high is None:
        return ABSENT
    return f"{number(low and 100 * low, '.1f')} | {number(high and 100 * high, '.1f')} %"


def loss(metrics: Metrics) -> str:
    return "no signal" if silent(metrics) else number(metrics.get("loss"), ".2e")


def silent(metrics: Metrics) -> bool:
    """Whether the loss is 0 because no prompt had anything to learn from."""
    return (metrics.get("no_signal_share") or 0.0) >= 1.0 and not metrics.get("loss")


def no_signal(share: float, dropped: bool = False) -> str:
    or_dropped = " or were dropped" if dropped else ""
    return f"no learning signal: {100 * share:.0f} % of the prompts had equal rewards{or_dropped}"


def by_agent(record: Mapping[str, Any]) -> dict[str, Metrics]:
    """Metrics by agent; an agent that does not give its own share of prompts without signal has the record's."""
    common = {"no_signal_share": record.get("no_signal_share")}
    return {name: common | metrics for name, metrics in record["agents"].items()}


class Row(NamedTuple):
    label: str
    cell: Callable[[Metrics], str]
    """Gives `ABSENT` where an agent does not have it; a row without any cell is not shown."""


def _tokens(metrics: Metrics) -> str:
    length, cut = metrics.get("response_tokens"), metrics.get("truncated_share")
    return count(length) + (f", {100 * cut:.0f} % cut" if cut else "")


def _pair(first: str, second: str) -> str:
    return ABSENT if first == second == ABSENT else f"{first} | {second}"


def _speed(metrics: Metrics) -> str:
    return _pair(*(count(metrics.get(f"{kind}_tokens_per_second")) for kind in ("generated", "trained")))


def _if_any(key: str) -> Callable[[Metrics], str]:
    """Counts of what should not happen are shown once it does."""
    return lambda metrics: str(metrics[key]) if metrics.get(key) else ABSENT


GROUPS = (
    (
        Row("reward", lambda m: number(m.get("reward"))),
        Row("accuracy", lambda m: percent(m.get("accuracy"))),
        Row("capability", lambda m: number(m.get("capability"))),
        Row("equal rewards", lambda m: percent(m.get("no_signal_share"))),
    ),
    (
        Row("own ratio", lambda m: spread(m, "own")),
        Row("  clip low|high", lambda m: clipped(m, "own")),
        Row("cross ratio", lambda m: spread(m, "cross")),
        Row("  clip low|high", lambda m: clipped(m, "cross")),
        Row("  live", lambda m: percent(m.get("cross_live"))),
    ),
    (
        Row("loss", loss),
        Row("kl", lambda m: number(m.get("kl"), ".2e")),
        Row("entropy", lambda m: number(m.get("entropy"))),
        Row("gradient norm", lambda m: number(m.get("grad_norm"), ".3g")),
        Row("updates | lr", lambda m: _pair(number(m.get("updates"), "d"), number(m.get("lr"), ".1e"))),
        Row("mismatch", lambda m: number(m.get("mismatch"), ".1e")),
    ),
    (
        Row("tokens", _tokens),
        Row("tok/s gen|train", _speed),
        Row("reward errors", _if_any("reward_errors")),
        Row("dropped prompts", _if_any("dropped_prompts")),
        Row("skipped updates", _if_any("skipped_updates")),
    ),
)


def headline(scores: Mapping[str, Any]) -> str:
    """Name of the score that stands for a validation: accuracy, or else avg@k."""
    if "accuracy" in scores:
        return "accuracy"
    return next((name for name in scores if name.startswith("avg@")), next(iter(scores)))


def shown_scores(scores: Mapping[str, Any]) -> list[str]:
    """The headline, and pass@k for the largest k beside it."""
    chances = [name for name in scores if name.startswith("pass@")]
    return [headline(scores), *chances[-1:]]


def change(value: float | None, first: float | None) -> str:
    """In percentage points since the first validation."""
    return "" if value is None or first is None else half_up(100 * value - 100 * first, 1, "+")


def verdict(sample: RolloutSample) -> str:
    """What became of one response, in one line."""
    parts = [f"step {sample.step}", sample.agent, f"reward {number(sample.reward, '.2f')}"]
    if sample.advantages:
        parts.append("advantage " + ", ".join(f"{name} {value:+.2f}" for name, value in sample.advantages.items()))
    if sample.truncated:
        parts.append("cut off")
    if sample.dropped:
        parts.append("dropped")
    if sample.error:
        parts.append("error: " + printable(sample.error, limit=120))
    return " · ".join(parts)

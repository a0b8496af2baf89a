"""Means over seeds and how far they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Quantile .975 of Student's t by degrees of freedom, 1 to 30: half the width of a 95 % interval in standard errors.
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Estimate(NamedTuple):
    """mean of n values; half: half the width of its 95 % interval, NaN for a single value."""

    mean: float
    half: float
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """Student's t interval of the mean of independent `values`, of which there must be at least one.

    Beyond 30 degrees of freedom the quantile of 30 is used, which is a little wide.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, math.nan, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    quantile = T_QUANTILES[min(n - 1, len(T_QUANTILES)) - 1]
    return Estimate(mean, quantile * math.sqrt(variance / n), n)


def paired(values: dict[int, float], reference: dict[int, float]) -> Estimate | None:
    """values - reference over the seeds that both have: agents, problems and their order are the same in both runs, so
    what differs between seeds cancels. None where they share no seed."""
    shared = sorted(values.keys() & reference.keys())
    return estimate([values[seed] - reference[seed] for seed in shared]) if shared else None

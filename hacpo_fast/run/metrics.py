"""Means that do not depend on how a step was cut into micro-batches, and scores of several samples per problem."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Accumulator:
    """Weighted means and standard deviations of named quantities, gathered piece by piece.

    Only sums are kept (of the weights, the values and their squares, in float64), so any split of the same values gives
    the same result; a mean of means never occurs. Sums stay on the device of their values until they are read: adding
    does not wait for a GPU.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, name: str, values: Any, weight: Any = 1.0) -> None:
        """Count `values` (a number, an array or a tensor of any shape) under `name`.

        `weight` (>= 0) is one number for every value or has the shape of `values`. A value of weight 0 does not count,
        be it NaN; a mean of n things counts right with weight n, but then hides the spread within the n.
        """
        value = torch.as_tensor(values).detach().double()
        weight = torch.as_tensor(weight, dtype=torch.float64, device=value.device).detach()
        value, weight = torch.broadcast_tensors(value, weight)
        value = torch.where(weight > 0, value, 0.0)
        sums = torch.stack([weight.sum(), (weight * value).sum(), (weight * value * value).sum()])
        if name in self._sums:
            sums = self._sums[name] + sums.to(self._sums[name].device)
        self._sums[name] = sums

    def means(self) -> dict[str, float]:
        """Mean by name; names without any weight are left out, for they have no mean."""
        return {name: total / weight for name, (weight, total, _) in self._read().items()}

    def spreads(self) -> dict[str, float]:
        """Population standard deviation by name, as `means`."""
        return {
            # Rounding can push the variance of equal values a little below 0. NaN comes first, or max would drop it.
            name: math.sqrt(max(squares / weight - (total / weight) ** 2, 0.0)) if math.isfinite(squares) else math.nan
            for name, (weight, total, squares) in self._read().items()
        }

    def totals(self) -> dict[str, float]:
        """Sum of weight x value by name, 0 for names without any weight: for counts rather than means."""
        return {name: sums.tolist()[1] for name, sums in self._sums.items()}

    def _read(self) -> dict[str, list[float]]:
        return {name: row for name, sums in self._sums.items() if (row := sums.tolist())[0] > 0}


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right, given that c of n were: 1 - C(n-c, k) / C(n, k).

    Unbiased for k <= n (Chen et al., arXiv 2107.03374, Eq. 1); exact integers, so no n is too large.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}")
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def summarise_samples(rewards: Any, reward_max: float = 1.0) -> dict[str, float]:
    """Scores of `rewards` [problems, n], n responses to each problem; right is a reward of at least `reward_max`.

    n = 1: "accuracy" (share right) and "reward" (mean). n > 1: "avg@n" (mean reward), "pass@k" (unbiased; k = 1, 2, 4,
    ... up to n; pass@1 is the share right) and "best@n" (mean of each problem's highest reward). And always "problems".
    """
    rewards = torch.as_tensor(rewards, dtype=torch.float64)
    if rewards.ndim != 2 or rewards.numel() == 0:
        raise ValueError(f"rewards must be [problems, n] and not empty, not {list(rewards.shape)}")
    problems, n = rewards.shape
    right = (rewards >= reward_max).sum(dim=1).tolist()
    mean = rewards.mean().item()
    if n == 1:
        return {"accuracy": sum(right) / problems, "reward": mean, "problems": problems}
    scores = {f"avg@{n}": mean}
    for k in (2**power for power in range(n.bit_length())):
        scores[f"pass@{k}"] = math.fsum(pass_at_k(n, c, k) for c in right) / problems
    return scores | {f"best@{n}": rewards.amax(dim=1).mean().item(), "problems": problems}

"""From the algorithm's settings to the arguments of `hacpo_kernels.policy_loss` (Eq. 11-14)."""

from __future__ import annotations

import math
from typing import Any

from hacpo_fast.config import AlgorithmConfig


def loss_arguments(algorithm: AlgorithmConfig, updates_done: int) -> dict[str, Any]:
    """Keyword arguments of the loss for an update that follows `updates_done` others in the same step.

    The range in which other agents' responses count narrows with every update (stepwise clipping): its lower end is
    min(1, cross_lower + updates_done * cross_lower_step).
    """
    if algorithm.name == "grpo":
        return {
            "level": "token",
            "own_clip_low": algorithm.token_clip_low,
            "own_clip_high": algorithm.token_clip_high,
            "log_ratio_clamp": algorithm.log_ratio_clamp,
        }
    lower = min(1.0, algorithm.cross_upper, algorithm.cross_lower + updates_done * algorithm.cross_lower_step)
    return {
        "level": "sequence",
        "own_clip_low": algorithm.own_clip_low,
        "own_clip_high": algorithm.own_clip_high,
        "cross_clip_lower": lower if algorithm.cross_clip else 0.0,
        "cross_clip_upper": algorithm.cross_upper if algorithm.cross_clip else math.inf,
        "alpha": algorithm.alpha,
        "log_ratio_clamp": algorithm.log_ratio_clamp,
    }

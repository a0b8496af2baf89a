"""The learning rate over the training steps of a run."""

from __future__ import annotations

import math
from typing import Literal


def lr_factor(step: int, steps: int, warmup: int, schedule: Literal["constant", "linear", "cosine"]) -> float:
    """What the learning rate of training step `step` (from 0) is multiplied by, in (0, 1].

    It rises linearly over the first `warmup` steps and is 1 at step `warmup`; no step is spent at a rate of 0. Then it
    stays, or falls on a line or a half cosine that reaches 0 just after the last of `steps` steps.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))

"""What policy_loss reports besides the loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class PolicyLossStats(NamedTuple):
    """Per-sequence quantities behind a policy loss, all [N] and detached.

    An empty sequence has mean_logprob 0, log_ratio 0, ratio 1, objective 0, and is neither clipped nor live.
    """

    mean_logprob: Tensor
    """Mean log-probability (nats) of the sequence's tokens under the policy being trained."""
    log_ratio: Tensor
    """mean_logprob - source_mean_logprobs, before any clamp (nats per token)."""
    ratio: Tensor
    """exp(log_ratio) after the clamp of the log-ratio, before any clip (Eq. 11, 48, 51)."""
    objective: Tensor
    """The sequence's term J; the loss is -sum(J) / denominator."""
    clipped_low: Tensor
    """bool: the lower clip acts (own: only where the advantage is negative). Level "token": on at least one token."""
    clipped_high: Tensor
    """bool: the upper clip acts (own: only where the advantage is positive). Level "token": on at least one token."""
    live: Tensor
    """bool: the sequence contributes a gradient."""


def empty_stats(advantages: Tensor, dtype: torch.dtype) -> PolicyLossStats:
    """Uninitialised statistics of responses with these advantages [N], numbers in `dtype`."""
    values = (advantages.new_empty(advantages.shape, dtype=dtype) for _ in range(4))
    flags = (advantages.new_empty(advantages.shape, dtype=torch.bool) for _ in range(3))
    return PolicyLossStats(*values, *flags)

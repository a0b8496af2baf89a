"""A penalty for leaving the initial policy."""

from __future__ import annotations

import torch
from torch import Tensor


def k3_penalty(token_logprobs: Tensor, reference: Tensor, cu_seqlens: Tensor, chosen: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference), mean over a response's tokens, summed over the chosen responses: [].

    With r = reference - policy log-prob of a sampled token, k3 is exp(r) - r - 1: never negative, and unbiased where
    the policy sampled the token (Schulman, "Approximating KL divergence", 2020). So only the policy's own responses
    are to be chosen, [N] bool; of the others `reference` may hold anything.

    token_logprobs, reference: [T]; cu_seqlens: [N + 1] integer. Differentiable in token_logprobs.
    """
    lengths = cu_seqlens.diff().long()
    weight = torch.repeat_interleave(chosen / lengths.clamp(min=1), lengths)
    log_ratio = torch.where(weight > 0, reference - token_logprobs, 0.0)
    return (weight * (log_ratio.exp() - log_ratio - 1)).sum()

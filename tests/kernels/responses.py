"""Packed responses for policy_loss, and one call of it with its gradient."""

from __future__ import annotations

import torch

from hacpo_kernels import policy_loss
from hacpo_kernels.arguments import Objective

DEFAULTS = Objective(3e-4, 4e-4, 0.8, 1.0, 1.0, 10.0, denominator=2.0)


def batch(lengths, log_ratios, advantages, *, own=True, capability=1.0, dtype=torch.float64, seed=0):
    """Positional arguments of policy_loss for sequences whose log-ratios are as given."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(lengths)
    token_logprobs = -torch.rand(tokens, generator=generator, dtype=torch.float64)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    means = torch.tensor(
        [part.mean().item() if len(part) else 0.0 for part in token_logprobs.split(lengths)], dtype=torch.float64
    )
    sequences = len(lengths)
    own = [own] * sequences if isinstance(own, bool) else own
    capability = [capability] * sequences if isinstance(capability, float) else capability
    return (
        token_logprobs.to(dtype),
        cu_seqlens,
        (means - torch.tensor(log_ratios, dtype=torch.float64)).to(dtype),
        torch.tensor(advantages, dtype=dtype),
        torch.tensor(own, dtype=torch.bool),
        torch.tensor(capability, dtype=dtype),
    )


def run(arguments, **options):
    """(loss, stats, gradient of token_logprobs)"""
    token_logprobs = arguments[0].detach().requires_grad_()
    loss, stats = policy_loss(token_logprobs, *arguments[1:], **options)
    loss.backward()
    return loss.detach(), stats, token_logprobs.grad

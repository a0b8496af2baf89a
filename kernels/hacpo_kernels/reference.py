"""The operators written the plain way: everything materialised, gradients from autograd, one sequence at a time.

What the fast implementations are tested against, and the place to read what they compute.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from .arguments import Head, Objective, Responses
from .dispatch import compute_dtype
from .stats import PolicyLossStats


def linear_logprob(head: Head, return_entropy: bool) -> Tensor | tuple[Tensor, Tensor]:
    """See `hacpo_kernels.linear_logprob`. Holds several [T, V] tensors."""
    head.check_values()
    dtype = head.dtype
    with torch.autocast(head.hidden.device.type, enabled=False):
        logits = head.hidden.to(dtype) @ head.weight.to(dtype).T
    if head.bias is not None:
        logits = logits + head.bias.to(dtype)
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    temperature = head.temperature
    if isinstance(temperature, Tensor):
        temperature = temperature.to(dtype)[:, None]
    logprobs = torch.log_softmax(logits / temperature, dim=1)
    logprob = logprobs.gather(1, head.targets.long()[:, None]).squeeze(1)
    if not return_entropy:
        return logprob
    # A token masked by a bias of -inf has p = 0 and log p = -inf; it adds nothing to the entropy, and not NaN.
    entropy = -(logprobs.exp() * logprobs.clamp(min=torch.finfo(dtype).min)).sum(1)
    return logprob, entropy


def policy_loss(token_logprobs: Tensor, responses: Responses, objective: Objective) -> tuple[Tensor, PolicyLossStats]:
    """See `hacpo_kernels.policy_loss`. Loops over the responses on the host."""
    responses.check_values(token_logprobs.shape[0])
    dtype, clamp = compute_dtype(token_logprobs), objective.log_ratio_clamp
    token_logprobs = token_logprobs.to(dtype)
    rows = []
    for n, (start, stop) in enumerate(pairwise(responses.cu_seqlens.tolist())):
        if start == stop:  # an empty response has no ratio, and no part in the loss but its place in the denominator
            zero = token_logprobs.new_zeros(())
            rows.append((zero, zero, zero + 1, zero, False, False, False))
            continue
        tokens = token_logprobs[start:stop]
        mean_logprob = tokens.mean()
        log_ratio = mean_logprob - responses.source_mean_logprobs[n].to(dtype)  # Eq. 11, 48, 51
        ratio = log_ratio.clamp(-clamp, clamp).exp()
        advantage = responses.advantages[n].to(dtype)

        if responses.source_token_logprobs is not None:  # level "token"
            token_log_ratio = tokens - responses.source_token_logprobs[start:stop].to(dtype)
            token_ratio = token_log_ratio.clamp(-clamp, clamp).exp()
            terms, low, high = _own_terms(token_ratio, advantage, objective)
            # Nothing defines a cross response here; where values can be checked it does not come so far.
            term = terms.mean() if responses.is_own[n] else terms.mean() * float("nan")
            unclamped = token_log_ratio.abs() <= clamp
        elif responses.is_own[n]:
            term, low, high = _own_terms(ratio, advantage, objective)
            unclamped = log_ratio.abs() <= clamp
        else:  # Eq. 12-13, 50, 52
            lower, upper = objective.cross_clip_lower, objective.cross_clip_upper
            clipped = ratio.clamp(lower, upper)
            advantage = advantage * responses.capability_ratio[n].to(dtype)
            term = clipped * clipped.detach() ** objective.alpha * advantage
            low, high = ratio < lower, ratio > upper
            unclamped = log_ratio.abs() <= clamp
        if advantage == 0:
            term = 0 * tokens.sum()
        live = (unclamped & ~low & ~high).any() & (advantage != 0)
        rows.append((mean_logprob, log_ratio, ratio, term, low.any(), high.any(), live))

    denominator = max(len(rows), 1) if objective.denominator is None else objective.denominator
    loss = -sum((row[3] for row in rows), token_logprobs.sum() * 0) / denominator  # Eq. 14, 53
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    values = [_column(column, dtype, token_logprobs.device) for column in columns[:4]]
    flags = [_column(column, torch.bool, token_logprobs.device) for column in columns[4:]]
    return loss, PolicyLossStats(*values, *flags)


def linear_policy_loss(
    head: Head, responses: Responses, objective: Objective
) -> tuple[Tensor, Tensor, PolicyLossStats]:
    """See `hacpo_kernels.linear_policy_loss`."""
    token_logprobs = linear_logprob(head, return_entropy=False)
    loss, stats = policy_loss(token_logprobs, responses, objective)
    return loss, token_logprobs.detach(), stats


def _own_terms(ratio: Tensor, advantage: Tensor, objective: Objective) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's pessimistic minimum, and where the clip made it constant (Eq. 47)."""
    lower, upper = 1 - objective.own_clip_low, 1 + objective.own_clip_high
    terms = torch.minimum(ratio * advantage, ratio.clamp(lower, upper) * advantage)
    return terms, (advantage < 0) & (ratio < lower), (advantage > 0) & (ratio > upper)


def _column(values: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(
        [value.item() if isinstance(value, Tensor) else value for value in values], dtype=dtype, device=device
    )

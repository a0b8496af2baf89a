"""The operators written the plain way: everything materialised, gradients from autograd, one sequence at a time.

What the fast implementations are tested against, and the place to read what they compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import check_cu_seqlens_values, check_positive_values, check_target_values
from .dispatch import compute_dtype
from .stats import PolicyLossStats


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    logit_softcap: float | None = None,
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """See `hacpo_kernels.linear_logprob`. Holds several [T, V] tensors."""
    check_target_values(targets, weight.shape[0])
    dtype = compute_dtype(hidden, weight)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = hidden.to(dtype) @ weight.to(dtype).T
    if bias is not None:
        logits = logits + bias.to(dtype)
    if logit_softcap is not None:
        logits = logit_softcap * torch.tanh(logits / logit_softcap)
    if isinstance(temperature, Tensor):
        check_positive_values("temperature", temperature)
        temperature = temperature.to(dtype)[:, None]
    logprobs = torch.log_softmax(logits / temperature, dim=1)
    logprob = logprobs.gather(1, targets.long()[:, None]).squeeze(1)
    if not return_entropy:
        return logprob
    # A token masked by a bias of -inf has p = 0 and log p = -inf; it adds nothing to the entropy, and not NaN.
    entropy = -(logprobs.exp() * logprobs.clamp(min=torch.finfo(dtype).min)).sum(1)
    return logprob, entropy


def policy_loss(
    token_logprobs: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    *,
    level: str = "sequence",
    own_clip_low: float = 3e-4,
    own_clip_high: float = 4e-4,
    cross_clip_lower: float = 0.8,
    cross_clip_upper: float = 1.0,
    alpha: float = 1.0,
    log_ratio_clamp: float = 10.0,
    denominator: float | None = None,
    source_token_logprobs: Tensor | None = None,
) -> tuple[Tensor, PolicyLossStats]:
    """See `hacpo_kernels.policy_loss`. Loops over the sequences on the host."""
    check_cu_seqlens_values(cu_seqlens, token_logprobs.shape[0])
    dtype = compute_dtype(token_logprobs)
    token_logprobs = token_logprobs.to(dtype)
    rows = []
    for n, (start, stop) in enumerate(zip(cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:], strict=True)):
        if start == stop:  # an empty sequence has no ratio, and no part in the loss but its place in the denominator
            zero = token_logprobs.new_zeros(())
            rows.append((zero, zero, zero + 1, zero, False, False, False))
            continue
        sequence = token_logprobs[start:stop]
        mean_logprob = sequence.mean()
        log_ratio = mean_logprob - source_mean_logprobs[n].to(dtype)  # Eq. 11, 48, 51
        ratio = log_ratio.clamp(-log_ratio_clamp, log_ratio_clamp).exp()
        advantage = advantages[n].to(dtype)

        if level == "token" and is_own[n]:
            token_log_ratio = sequence - source_token_logprobs[start:stop].to(dtype)
            token_ratio = token_log_ratio.clamp(-log_ratio_clamp, log_ratio_clamp).exp()
            terms, low, high = _own_objective(token_ratio, advantage, own_clip_low, own_clip_high)
            objective = terms.mean()
            unclamped = token_log_ratio.abs() <= log_ratio_clamp
        elif level == "token":
            raise ValueError('level="token" is defined for own responses only, but is_own has False in it')
        elif is_own[n]:
            objective, low, high = _own_objective(ratio, advantage, own_clip_low, own_clip_high)
            unclamped = log_ratio.abs() <= log_ratio_clamp
        else:  # Eq. 12-13, 50, 52
            clipped = ratio.clamp(cross_clip_lower, cross_clip_upper)
            advantage = advantage * capability_ratio[n].to(dtype)
            objective = clipped * clipped.detach() ** alpha * advantage
            low, high = ratio < cross_clip_lower, ratio > cross_clip_upper
            unclamped = log_ratio.abs() <= log_ratio_clamp
        if advantage == 0:
            objective = 0 * sequence.sum()
        live = (unclamped & ~low & ~high).any() & (advantage != 0)
        rows.append((mean_logprob, log_ratio, ratio, objective, low.any(), high.any(), live))

    if denominator is None:
        denominator = max(len(rows), 1)
    loss = -sum((row[3] for row in rows), token_logprobs.sum() * 0) / denominator  # Eq. 14, 53
    columns = list(zip(*rows, strict=True)) if rows else [()] * 7
    values = [_column(column, dtype, token_logprobs.device) for column in columns[:4]]
    flags = [_column(column, torch.bool, token_logprobs.device) for column in columns[4:]]
    return loss, PolicyLossStats(*values, *flags)


def linear_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    logit_softcap: float | None = None,
    **settings,
) -> tuple[Tensor, Tensor, PolicyLossStats]:
    """See `hacpo_kernels.linear_policy_loss`; settings are those of `policy_loss`."""
    token_logprobs = linear_logprob(hidden, weight, targets, bias, temperature, logit_softcap)
    loss, stats = policy_loss(
        token_logprobs, cu_seqlens, source_mean_logprobs, advantages, is_own, capability_ratio, **settings
    )
    return loss, token_logprobs.detach(), stats


def _own_objective(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's pessimistic minimum, and where the clip made it constant (Eq. 47)."""
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return objective, (advantage < 0) & (ratio < 1 - low), (advantage > 0) & (ratio > 1 + high)


def _column(values: tuple, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(
        [value.item() if isinstance(value, Tensor) else value for value in values], dtype=dtype, device=device
    )

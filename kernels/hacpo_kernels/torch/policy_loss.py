"""policy_loss in vectorised torch operations: reductions over packed tokens, the rest per sequence, no host wait."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..dispatch import compute_dtype


class Surrogate(NamedTuple):
    """Clipped surrogates of sequences or tokens, elementwise."""

    value: Tensor
    live: Tensor
    clipped_low: Tensor
    clipped_high: Tensor

    @property
    def slope(self) -> Tensor:
        """d value / d log-ratio. Within the clip every value is a constant times the ratio, so it is its own slope."""
        return torch.where(self.live, self.value, 0)


def forward(
    token_logprobs: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    source_token_logprobs: Tensor | None,
    own_clip_low: float,
    own_clip_high: float,
    cross_clip_lower: float,
    cross_clip_upper: float,
    alpha: float,
    log_ratio_clamp: float,
    denominator: float,
) -> tuple[Tensor, ...]:
    """(loss [], d loss / d token_logprobs [T], then the seven fields of PolicyLossStats [N]), float32 or float64.

    Arguments as in the public operator; source_token_logprobs stands for level "token".
    """
    dtype = compute_dtype(token_logprobs)
    token_logprobs, source_mean_logprobs, advantages, capability_ratio = (
        tensor.to(dtype) for tensor in (token_logprobs, source_mean_logprobs, advantages, capability_ratio)
    )
    segments = Segments(cu_seqlens, token_logprobs.shape[0])
    mean_logprob = segments.mean(token_logprobs)
    log_ratio = torch.where(segments.nonempty, mean_logprob - source_mean_logprobs, 0)
    ratio = log_ratio.clamp(-log_ratio_clamp, log_ratio_clamp).exp()
    own_clip = (own_clip_low, own_clip_high, log_ratio_clamp)

    if source_token_logprobs is None:
        weighted = torch.where(is_own, advantages, advantages * capability_ratio)
        weighted = torch.where(segments.nonempty, weighted, 0)
        own = _own(log_ratio, weighted, *own_clip)
        cross = _cross(log_ratio, weighted, cross_clip_lower, cross_clip_upper, alpha, log_ratio_clamp)
        terms = Surrogate(*(torch.where(is_own, *pair) for pair in zip(own, cross, strict=True)))
        objective, flags = terms.value, [flag & segments.nonempty for flag in (terms.clipped_low, terms.clipped_high)]
        live = terms.live
        token_slope = segments.spread(terms.slope / segments.divisor)
    else:
        token_log_ratio = token_logprobs - source_token_logprobs.to(dtype)
        terms = _own(token_log_ratio, segments.spread(advantages), *own_clip)
        # Nothing defines a cross response here, and its value cannot be checked without waiting for the device.
        objective = torch.where(is_own, segments.mean(terms.value), float("nan"))
        flags = [segments.any(flag) for flag in (terms.clipped_low, terms.clipped_high)]
        live = segments.any(terms.live)
        token_slope = terms.slope / segments.spread(segments.divisor)

    loss = -objective.sum() / denominator
    return loss, token_slope / -denominator, mean_logprob, log_ratio, ratio, objective, *flags, live


class Segments:
    """Reductions over and broadcasts into packed sequences, none of which looks at a value on the host."""

    def __init__(self, cu_seqlens: Tensor, tokens: int) -> None:
        self.offsets = cu_seqlens.long()
        lengths = self.offsets.diff()
        self.nonempty = lengths > 0
        self.divisor = lengths.clamp(min=1)
        sequences = torch.arange(lengths.shape[0], device=lengths.device)
        self.sequence_of_token = torch.repeat_interleave(sequences, lengths, output_size=tokens)

    def sum(self, values: Tensor) -> Tensor:
        """[T] -> [N] in float64: a long response's sum in float32 would lose more than the own clip is wide.

        Sequential per segment, so deterministic, unlike an atomic scatter; unlike a difference of running sums, the
        result depends on its own tokens alone.
        """
        return torch.segment_reduce(values.double(), "sum", offsets=self.offsets, unsafe=True, initial=0.0)

    def mean(self, values: Tensor) -> Tensor:
        return (self.sum(values) / self.divisor).to(values.dtype)

    def any(self, flags: Tensor) -> Tensor:
        return self.sum(flags) > 0

    def spread(self, values: Tensor) -> Tensor:
        """[N] -> [T]: every token gets its sequence's value."""
        return values[self.sequence_of_token]


def _own(log_ratio: Tensor, advantage: Tensor, low: float, high: float, clamp: float) -> Surrogate:
    """min(s * A, clip(s) * A): the clip acts above for A > 0, below for A < 0 (Eq. 47)."""
    ratio = log_ratio.clamp(-clamp, clamp).exp()
    clipped_low = (advantage < 0) & (ratio < 1 - low)
    clipped_high = (advantage > 0) & (ratio > 1 + high)
    bounded = torch.where(clipped_low, 1 - low, torch.where(clipped_high, 1 + high, ratio))
    return _surrogate(bounded, advantage, log_ratio, clamp, clipped_low, clipped_high)


def _cross(log_ratio: Tensor, advantage: Tensor, lower: float, upper: float, alpha: float, clamp: float) -> Surrogate:
    """c * stop_gradient(c)^alpha * A with c = clip(s), whatever the sign of A (Eq. 12-13, 50, 52)."""
    ratio = log_ratio.clamp(-clamp, clamp).exp()
    power = ratio.clamp(lower, upper) ** (1 + alpha)
    return _surrogate(power, advantage, log_ratio, clamp, ratio < lower, ratio > upper)


def _surrogate(
    factor: Tensor, advantage: Tensor, log_ratio: Tensor, clamp: float, clipped_low: Tensor, clipped_high: Tensor
) -> Surrogate:
    # Without a signal the value is 0 even if the factor overflowed: no 0 * inf.
    value = torch.where(advantage != 0, factor * advantage, 0)
    live = (log_ratio.abs() <= clamp) & ~clipped_low & ~clipped_high & (advantage != 0)
    return Surrogate(value, live, clipped_low, clipped_high)

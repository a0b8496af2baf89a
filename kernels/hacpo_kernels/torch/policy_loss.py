"""policy_loss in vectorised torch operations: reductions over packed tokens, the rest per sequence, no host wait."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..arguments import Objective, Responses
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


def forward(token_logprobs: Tensor, responses: Responses, objective: Objective) -> tuple[Tensor, ...]:
    """(loss [], d loss / d token_logprobs [T], then the seven fields of PolicyLossStats [N]), float32 or float64."""
    dtype = compute_dtype(token_logprobs)
    token_logprobs, source_mean_logprobs, advantages, capability_ratio = (
        tensor.to(dtype)
        for tensor in (
            token_logprobs, responses.source_mean_logprobs, responses.advantages, responses.capability_ratio
        )
    )  # fmt: skip
    is_own, clamp = responses.is_own, objective.log_ratio_clamp
    segments = Segments(responses.cu_seqlens, token_logprobs.shape[0])
    mean_logprob = segments.mean(token_logprobs)
    log_ratio = torch.where(segments.nonempty, mean_logprob - source_mean_logprobs, 0)
    ratio = log_ratio.clamp(-clamp, clamp).exp()

    if responses.source_token_logprobs is None:  # level "sequence"
        weighted = torch.where(is_own, advantages, advantages * capability_ratio)
        weighted = torch.where(segments.nonempty, weighted, 0)
        own, cross = _own(log_ratio, weighted, objective), _cross(log_ratio, weighted, objective)
        terms = Surrogate(*(torch.where(is_own, *pair) for pair in zip(own, cross, strict=True)))
        term, flags = terms.value, [flag & segments.nonempty for flag in (terms.clipped_low, terms.clipped_high)]
        live = terms.live
        token_slope = segments.spread(terms.slope / segments.divisor)
    else:
        token_log_ratio = token_logprobs - responses.source_token_logprobs.to(dtype)
        terms = _own(token_log_ratio, segments.spread(advantages), objective)
        # Nothing defines a cross response here, and its value cannot be checked without waiting for the device.
        term = torch.where(is_own, segments.mean(terms.value), float("nan"))
        flags = [segments.any(flag) for flag in (terms.clipped_low, terms.clipped_high)]
        live = segments.any(terms.live)
        token_slope = terms.slope / segments.spread(segments.divisor)

    loss = -term.sum() / objective.denominator
    return loss, token_slope / -objective.denominator, mean_logprob, log_ratio, ratio, term, *flags, live


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


def _own(log_ratio: Tensor, advantage: Tensor, objective: Objective) -> Surrogate:
    """min(s * A, clip(s) * A): the clip acts above for A > 0, below for A < 0 (Eq. 47)."""
    clamp, lower, upper = objective.log_ratio_clamp, 1 - objective.own_clip_low, 1 + objective.own_clip_high
    ratio = log_ratio.clamp(-clamp, clamp).exp()
    clipped_low = (advantage < 0) & (ratio < lower)
    clipped_high = (advantage > 0) & (ratio > upper)
    bounded = torch.where(clipped_low, lower, torch.where(clipped_high, upper, ratio))
    return _surrogate(bounded, advantage, log_ratio, clamp, clipped_low, clipped_high)


def _cross(log_ratio: Tensor, advantage: Tensor, objective: Objective) -> Surrogate:
    """c * stop_gradient(c)^alpha * A with c = clip(s), whatever the sign of A (Eq. 12-13, 50, 52)."""
    clamp, lower, upper = objective.log_ratio_clamp, objective.cross_clip_lower, objective.cross_clip_upper
    ratio = log_ratio.clamp(-clamp, clamp).exp()
    power = ratio.clamp(lower, upper) ** (1 + objective.alpha)
    return _surrogate(power, advantage, log_ratio, clamp, ratio < lower, ratio > upper)


def _surrogate(
    factor: Tensor, advantage: Tensor, log_ratio: Tensor, clamp: float, clipped_low: Tensor, clipped_high: Tensor
) -> Surrogate:
    # Without a signal the value is 0 even if the factor overflowed: no 0 * inf.
    value = torch.where(advantage != 0, factor * advantage, 0)
    live = (log_ratio.abs() <= clamp) & ~clipped_low & ~clipped_high & (advantage != 0)
    return Surrogate(value, live, clipped_low, clipped_high)

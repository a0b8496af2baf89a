"""policy_loss in Triton: one program per response, which reads its tokens, decides, and writes their gradient.

Responses of any length are walked block by block. Sums are in float64 and in a fixed order, and nothing is added
atomically, so results are equal bit for bit from run to run. Nothing is read on the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import Objective, Responses
from ..stats import empty_stats

BLOCK = 1024  # tokens; most responses take one to four turns
WARPS = 4


def forward(token_logprobs: Tensor, responses: Responses, objective: Objective) -> tuple[Tensor, ...]:
    """(loss [], d loss / d token_logprobs [T], then the seven fields of PolicyLossStats [N]), all float32 or bool."""
    sequences, tokens = responses.advantages.shape[0], token_logprobs.shape[0]
    token_logprobs = token_logprobs.contiguous()
    source = responses.source_token_logprobs
    columns = [column.contiguous() for column in responses[:5]]
    loss = token_logprobs.new_empty((), dtype=torch.float32)
    gradient = token_logprobs.new_empty(tokens, dtype=torch.float32)
    stats = empty_stats(responses.advantages, torch.float32)
    with torch.cuda.device_of(token_logprobs):
        if sequences > 0:
            policy_loss_kernel[(sequences,)](
                token_logprobs,
                token_logprobs if source is None else source.contiguous(),
                *columns,
                gradient,
                *stats,
                tokens,
                1 - objective.own_clip_low,
                1 + objective.own_clip_high,
                objective.cross_clip_lower,
                objective.cross_clip_upper,
                1 + objective.alpha,
                objective.log_ratio_clamp,
                objective.denominator,
                TOKEN_LEVEL=source is not None,
                BLOCK=BLOCK,
                num_warps=WARPS,
            )
        loss_kernel[(1,)](stats.objective, loss, sequences, objective.denominator, BLOCK=BLOCK, num_warps=WARPS)
    return loss, gradient, *stats


@triton.jit
def _ratio(log_ratio, clamp):
    """exp of the clamped log-ratio; NaN stays NaN, since it compares false with everything."""
    return tl.exp(tl.where(log_ratio > clamp, clamp, tl.where(log_ratio < -clamp, -clamp, log_ratio)))


@triton.jit
def _own(log_ratio, advantage, lower, upper, clamp):
    """(value, live, clipped low, clipped high) of min(s * A, clip(s) * A)."""
    ratio = _ratio(log_ratio, clamp)
    low = (advantage < 0) & (ratio < lower)
    high = (advantage > 0) & (ratio > upper)
    bounded = tl.where(low, lower, tl.where(high, upper, ratio))
    value = tl.where(advantage != 0, bounded * advantage, 0.0)  # no 0 * inf
    live = (tl.abs(log_ratio) <= clamp) & (advantage != 0) & (low == 0) & (high == 0)
    return value, live, low, high


@triton.jit
def _cross(log_ratio, advantage, lower, upper, power, clamp):
    """(value, live, clipped low, clipped high) of clip(s)^power * A."""
    ratio = _ratio(log_ratio, clamp)
    low = ratio < lower
    high = ratio > upper
    bounded = tl.where(low, lower, tl.where(high, upper, ratio))
    value = tl.where(advantage != 0, tl.exp(tl.log(bounded) * power) * advantage, 0.0)
    live = (tl.abs(log_ratio) <= clamp) & (advantage != 0) & (low == 0) & (high == 0)
    return value, live, low, high


@triton.jit(do_not_specialize=["tokens"])
def policy_loss_kernel(
    logprobs,  # [T]
    source_logprobs,  # [T], read at token level only
    cu_seqlens,  # [N + 1]
    source_means,  # [N], as are all that follow but the gradient
    advantages,
    is_own,
    capability_ratio,
    gradient,  # [T] float32, d loss / d logprobs
    mean_out,
    log_ratio_out,
    ratio_out,
    objective_out,
    low_out,
    high_out,
    live_out,
    tokens,
    own_lower,
    own_upper,
    cross_lower,
    cross_upper,
    power,
    clamp,
    denominator,
    TOKEN_LEVEL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    # Boundaries cannot be checked without making the host wait, so they are kept inside the tensors here.
    begin = tl.minimum(tl.maximum(tl.load(cu_seqlens + n).to(tl.int64), 0), tokens)
    end = tl.minimum(tl.maximum(tl.load(cu_seqlens + (n + 1)).to(tl.int64), begin), tokens)
    length = end - begin
    nonempty = length > 0
    divisor = tl.maximum(length, 1)
    own = tl.load(is_own + n) != 0
    advantage = tl.load(advantages + n).to(tl.float32)
    lanes = tl.arange(0, BLOCK).to(tl.int64)

    total = tl.zeros([BLOCK], tl.float64)
    value_total = tl.zeros([BLOCK], tl.float64)
    any_low = tl.zeros([BLOCK], tl.int32)
    any_high = tl.zeros([BLOCK], tl.int32)
    any_live = tl.zeros([BLOCK], tl.int32)
    for start in range(begin, end, BLOCK):
        at = start + lanes
        inside = at < end
        logprob = tl.load(logprobs + at, inside, 0.0).to(tl.float32)
        total += logprob.to(tl.float64)
        if TOKEN_LEVEL:
            source = tl.load(source_logprobs + at, inside, 0.0).to(tl.float32)
            advantage_here = tl.zeros([BLOCK], tl.float32) + advantage  # the interpreter wants equal shapes under &
            value, live, low, high = _own(logprob - source, advantage_here, own_lower, own_upper, clamp)
            slope = tl.where(live, value, 0.0) / divisor.to(tl.float32)
            tl.store(gradient + at, slope / -denominator, inside)
            value_total += tl.where(inside, value, 0.0).to(tl.float64)
            any_low |= (low & inside).to(tl.int32)
            any_high |= (high & inside).to(tl.int32)
            any_live |= (live & inside).to(tl.int32)

    mean = (tl.sum(total) / divisor.to(tl.float64)).to(tl.float32)
    log_ratio = tl.where(nonempty, mean - tl.load(source_means + n).to(tl.float32), 0.0)
    tl.store(mean_out + n, mean)
    tl.store(log_ratio_out + n, log_ratio)
    tl.store(ratio_out + n, _ratio(log_ratio, clamp))
    if TOKEN_LEVEL:
        # Nothing defines a response of another model here.
        objective = (tl.sum(value_total) / divisor.to(tl.float64)).to(tl.float32)
        tl.store(objective_out + n, tl.where(own, objective, float("nan")))
        tl.store(low_out + n, tl.max(any_low) != 0)
        tl.store(high_out + n, tl.max(any_high) != 0)
        tl.store(live_out + n, tl.max(any_live) != 0)
    else:
        weighted = tl.where(own, advantage, advantage * tl.load(capability_ratio + n).to(tl.float32))
        weighted = tl.where(nonempty, weighted, 0.0)
        own_value, own_live, own_low, own_high = _own(log_ratio, weighted, own_lower, own_upper, clamp)
        value, live, low, high = _cross(log_ratio, weighted, cross_lower, cross_upper, power, clamp)
        value = tl.where(own, own_value, value)
        live = tl.where(own, own_live, live)
        tl.store(objective_out + n, value)
        tl.store(low_out + n, tl.where(own, own_low, low) & nonempty)
        tl.store(high_out + n, tl.where(own, own_high, high) & nonempty)
        tl.store(live_out + n, live)
        slope = tl.where(live, value, 0.0) / divisor.to(tl.float32) / -denominator
        for start in range(begin, end, BLOCK):
            at = start + lanes
            tl.store(gradient + at, tl.zeros([BLOCK], tl.float32) + slope, at < end)


@triton.jit(do_not_specialize=["sequences"])
def loss_kernel(objective, loss, sequences, denominator, BLOCK: tl.constexpr):
    """-sum(objective [N]) / denominator, by one program: always in the same order."""
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, sequences, BLOCK):
        at = tl.cast(start, tl.int64) + lanes
        total += tl.load(objective + at, at < sequences, 0.0).to(tl.float64)
    tl.store(loss, (-tl.sum(total) / denominator).to(tl.float32))

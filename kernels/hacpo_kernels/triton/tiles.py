"""What Triton kernels do to a tile of float32 logits that cuBLAS wrote.

The products route of linear_logprob reads each tile for its statistics, and in backward turns it into its gradient. In
linear_policy_loss the statistics pass also keeps the exponentials, and their gradient is made from those.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .logits import LOG2_E, cap, logit_gradient, online_update


@triton.jit
def _scaled(logits, bias, at, columns, scale, softcap, BIAS: tl.constexpr, SOFTCAP: tl.constexpr):
    """Base-2 logits of one row at positions `at`; -inf past the end."""
    z = tl.load(logits + at, at < columns, -float("inf"))
    if BIAS:
        z += tl.load(bias + at, at < columns, 0.0).to(tl.float32)
    if SOFTCAP:
        z = cap(z, softcap)
    return tl.where(at < columns, z * scale, -float("inf"))


@triton.jit(do_not_specialize=["part", "parts"])
def statistics_kernel(
    logits,  # [rows, columns] float32: hidden @ weight.T for a slice of the vocabulary
    bias,  # [V]
    targets,  # [rows], as all [rows] that follow
    row_scale,  # float32, log2(e) / temperature
    maximum_out,  # [rows, parts] float32, base 2, as are the next two; this slice is number `part`
    total_out,
    weighted_out,
    target_logit,  # float32, base 2; written where the target lies in the slice
    kept,  # [rows, columns], with KEEP: 2^(z - the slice's own maximum)
    first_vocab,
    columns,
    stride_logits,
    stride_kept,
    part,
    parts,
    scale,  # log2(e) / temperature where that is one number
    softcap,
    BIAS: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Running max and sums of one row of the tile, and its target's logit if that is in it."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    target = tl.load(targets + row).to(tl.int64) - first_vocab
    if ROW_SCALE:
        scale = tl.load(row_scale + row)
    # Each lane runs its own sums, which are combined once at the end.
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    at_target = tl.full([BLOCK], -float("inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        at = tl.cast(start, tl.int64) + lanes
        z = _scaled(
            logits + row * stride_logits,
            bias + tl.cast(first_vocab, tl.int64),
            at,
            columns,
            scale,
            softcap,
            BIAS,
            SOFTCAP,
        )
        at_target = tl.where(at == target, z, at_target)
        maximum, total, weighted = online_update(z[:, None], maximum, total, weighted, ENTROPY)
    largest = tl.max(maximum)
    safe = tl.where(largest == -float("inf"), 0.0, largest)
    shrink = tl.exp2(maximum - safe)
    out = row * parts + part
    tl.store(maximum_out + out, largest)
    tl.store(total_out + out, tl.sum(total * shrink))
    if ENTROPY:
        shift = tl.where(maximum == -float("inf"), 0.0, maximum - safe)
        tl.store(weighted_out + out, tl.sum(shrink * (weighted + total * shift)))
    if (target >= 0) & (target < columns):
        # NaN has to pass: a sum over one value and zeros keeps it, a maximum would not.
        tl.store(target_logit + row, tl.sum(tl.where(lanes == target % BLOCK, at_target, 0.0)))
    if KEEP:  # read again, from cache: the maximum was not known the first time
        for start in range(0, columns, BLOCK):
            at = tl.cast(start, tl.int64) + lanes
            z = _scaled(
                logits + row * stride_logits,
                bias + tl.cast(first_vocab, tl.int64),
                at,
                columns,
                scale,
                softcap,
                BIAS,
                SOFTCAP,
            )
            tl.store(kept + row * stride_kept + at, tl.exp2(z - safe).to(kept.dtype.element_ty), at < columns)


@triton.jit
def tile_gradient_kernel(
    logits,  # [rows, columns] float32
    bias,  # [V]
    targets,  # [rows], as all [rows] that follow
    row_scale,  # log2(e) / temperature
    logsumexp,
    entropy,
    grad_logprob,
    grad_entropy,
    out,  # [rows, columns], may be the logits themselves
    first_vocab,
    columns,
    stride_logits,
    stride_out,
    scale,
    softcap,
    BIAS: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gradient of the logits in part of a row of the tile."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    inside = at < columns
    z = tl.load(logits + row * stride_logits + at, inside, 0.0)
    if BIAS:
        z += tl.load(bias + (first_vocab + at), inside, 0.0).to(tl.float32)
    if SOFTCAP:
        z = cap(z, softcap)
        slope = 1.0 - (z / softcap) * (z / softcap)
    if ROW_SCALE:
        scale = tl.load(row_scale + row)
    row_grad = tl.load(grad_logprob + row)
    row_entropy = row_grad  # not read without ENTROPY
    row_grad_entropy = row_grad
    if ENTROPY:
        row_entropy = tl.load(entropy + row)
        row_grad_entropy = tl.load(grad_entropy + row)
    at_target = at == tl.load(targets + row).to(tl.int64) - first_vocab
    row_logsumexp = tl.load(logsumexp + row)
    result = logit_gradient(z * scale, row_logsumexp, at_target, row_grad, row_grad_entropy, row_entropy, ENTROPY)
    if SOFTCAP:
        result *= slope
    tl.store(out + row * stride_out + at, result.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["part", "parts"])
def kept_gradient_kernel(
    kept,  # [chunk rows, columns]: 2^(z - maximum)
    live,  # [rows] int64: the row of `kept` that each row of the result is of
    targets,  # [chunk rows], as all that follow up to `out`
    maximum,  # [chunk rows, parts] float32, base 2; this slice is number `part`
    logsumexp,  # float32, natural
    logprob,  # float32
    row_scale,  # float32, log2(e) / temperature
    grad_logprob,  # float32, divided by the temperature already
    out,  # [rows, columns]
    first_vocab,
    columns,
    stride_kept,
    stride_out,
    part,
    parts,
    scale,
    softcap,
    ROW_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """grad * (onehot - p) in part of a row, with p = kept * 2^(maximum - logsumexp)."""
    out_row = tl.program_id(0).to(tl.int64)
    row = tl.load(live + out_row)
    at = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    exps = tl.load(kept + row * stride_kept + at, at < columns, 0.0).to(tl.float32)
    row_maximum = tl.load(maximum + (row * parts + part))
    row_logsumexp = tl.load(logsumexp + row) * LOG2_E
    grad = tl.load(grad_logprob + row)
    # At the target 1 - p would cancel if p came from 16 bits; it has its own logprob.
    row_logprob = tl.load(logprob + row)
    at_target = at == tl.load(targets + row).to(tl.int64) - first_vocab
    result = -grad * exps * tl.exp2(row_maximum - row_logsumexp)
    result = tl.where(at_target, grad * (1.0 - tl.exp(row_logprob)), result)
    if SOFTCAP:
        if ROW_SCALE:
            scale = tl.load(row_scale + row)
        z = tl.where(exps > 0, row_maximum + tl.log2(exps), row_maximum)
        z = tl.where(at_target, row_logsumexp + row_logprob * LOG2_E, z)
        share = z / (scale * softcap)
        result *= tl.maximum(1.0 - share * share, 0.0)
    tl.store(out + out_row * stride_out + at, result.to(out.dtype.element_ty), at < columns)

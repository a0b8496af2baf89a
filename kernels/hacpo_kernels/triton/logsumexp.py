"""Forward of the fused route: row-wise logsumexp (and mean logit) of hidden @ weight.T that never leaves the chip.

A program holds one block of rows and walks over a split of the vocabulary; a second kernel combines the splits' partial
results of each row in a fixed order. The target's logit is a dot product of its own: picking it out of the tile would
cost more registers than there are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .logits import LN_2, cap, online_update


@triton.jit(do_not_specialize=["tokens", "splits", "tiles_per_split"])
def logsumexp_kernel(
    hidden,  # [T, H] pointer, or tensor descriptor with blocks of ROWS x DEPTH
    weight,  # [V, H] pointer, or tensor descriptor with blocks of COLUMNS x DEPTH
    bias,  # [V]
    row_scale,  # [T] float32, log2(e) / temperature
    maximum_out,  # [T, splits] float32, base 2, as are the next two
    total_out,
    weighted_out,
    tokens,
    vocab,
    width,
    stride_hidden,
    stride_weight,
    splits,
    tiles_per_split,
    scale,  # log2(e) / temperature where that is one number
    softcap,
    TMA: tl.constexpr,
    BIAS: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    # GROUP row blocks run side by side over the same columns, so that the weight is read from cache.
    row_blocks = tl.cdiv(tokens, ROWS)
    group = tl.program_id(0) // (GROUP * splits)
    within = tl.program_id(0) % (GROUP * splits)
    group_rows = tl.minimum(row_blocks - group * GROUP, GROUP)
    first_row = (group * GROUP + within % group_rows) * ROWS
    split = within // group_rows
    first_tile = split * tiles_per_split
    last_tile = tl.minimum(first_tile + tiles_per_split, tl.cdiv(vocab, COLUMNS))

    rows = first_row + tl.arange(0, ROWS)
    depth = tl.arange(0, DEPTH).to(tl.int64)
    if ROW_SCALE:
        scale_here = tl.load(row_scale + rows.to(tl.int64), rows < tokens, 1.0)
    maximum = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS], tl.float32)
    if not TMA:
        # Rows past the end repeat the last one: cheaper than a mask, and their results are not stored.
        hidden_rows = hidden + tl.minimum(rows, tokens - 1).to(tl.int64)[:, None] * stride_hidden + depth[None, :]

    for tile in range(first_tile, last_tile):
        first_column = tile * COLUMNS
        columns = first_column + tl.arange(0, COLUMNS)
        z = tl.zeros([ROWS, COLUMNS], tl.float32)
        if TMA:
            for k in range(0, width, DEPTH):
                left = hidden.load([first_row, k])
                right = weight.load([first_column, k])
                z = tl.dot(left, right.T, z, input_precision="ieee")
        else:
            weight_columns = weight + tl.minimum(columns, vocab - 1).to(tl.int64)[None, :] * stride_weight
            weight_columns += depth[:, None]
            for k in range(0, width, DEPTH):
                left = tl.load(hidden_rows + tl.cast(k, tl.int64), depth[None, :] < width - k, 0.0)
                right = tl.load(weight_columns + tl.cast(k, tl.int64), depth[:, None] < width - k, 0.0)
                z = tl.dot(left, right, z, input_precision="ieee")
        if BIAS:
            z += tl.load(bias + columns.to(tl.int64), columns < vocab, 0.0).to(tl.float32)[None, :]
        if SOFTCAP:
            z = cap(z, softcap)
        if ROW_SCALE:
            z *= scale_here[:, None]
        else:
            z *= scale
        z = tl.where(columns[None, :] < vocab, z, -float("inf"))
        maximum, total, weighted = online_update(z, maximum, total, weighted, ENTROPY)

    at = rows.to(tl.int64) * splits + split
    tl.store(maximum_out + at, maximum, rows < tokens)
    tl.store(total_out + at, total, rows < tokens)
    if ENTROPY:
        tl.store(weighted_out + at, weighted, rows < tokens)


@triton.jit(do_not_specialize=["parts"])
def combine_kernel(
    maximum_in,  # [T, parts] float32, base 2, as are the next two
    total_in,
    weighted_in,
    target_logit,  # [T] float32, base 2; without DOT
    hidden,  # with DOT
    weight,
    bias,
    targets,  # [T]
    row_scale,  # [T] float32, log2(e) / temperature
    logprob_out,  # [T] float32, natural, as are the next two
    logsumexp_out,
    entropy_out,
    parts,
    vocab,
    width,
    stride_hidden,
    stride_weight,
    scale,
    softcap,
    DOT: tl.constexpr,
    BIAS: tl.constexpr,
    ROW_SCALE: tl.constexpr,
    SOFTCAP: tl.constexpr,
    ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: its partial results to logprob, logsumexp and entropy."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK).to(tl.int64)
    if DOT:
        target = tl.load(targets + row).to(tl.int64)
        inside = (target >= 0) & (target < vocab)
        products = tl.zeros([BLOCK], tl.float32)
        hidden_row = hidden + row * stride_hidden
        weight_row = weight + tl.where(inside, target, 0) * stride_weight
        for k in range(0, width, BLOCK):
            at = tl.cast(k, tl.int64) + lanes
            left = tl.load(hidden_row + at, at < width, 0.0).to(tl.float32)
            products += left * tl.load(weight_row + at, at < width, 0.0).to(tl.float32)
        z = tl.sum(products)
        if BIAS:
            z += tl.load(bias + tl.where(inside, target, 0)).to(tl.float32)
        if SOFTCAP:
            z = cap(z, softcap)
        if ROW_SCALE:
            z *= tl.load(row_scale + row)
        else:
            z *= scale
        z = tl.where(inside, z, float("nan"))  # never a plausible number for a target that does not exist
    else:
        z = tl.load(target_logit + row)

    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    for part in range(0, parts, BLOCK):
        at = tl.cast(part, tl.int64) + lanes
        largest = tl.maximum(largest, tl.load(maximum_in + row * parts + at, at < parts, -float("inf")))
    maximum = tl.max(largest)
    safe = tl.where(maximum == -float("inf"), 0.0, maximum)
    total = tl.zeros([BLOCK], tl.float32)
    weighted = tl.zeros([BLOCK], tl.float32)
    for part in range(0, parts, BLOCK):
        at = tl.cast(part, tl.int64) + lanes
        part_maximum = tl.load(maximum_in + row * parts + at, at < parts, -float("inf"))
        part_total = tl.load(total_in + row * parts + at, at < parts, 0.0)
        shrink = tl.exp2(part_maximum - safe)
        total += part_total * shrink
        if ENTROPY:
            shift = tl.where(part_maximum == -float("inf"), 0.0, part_maximum - safe)
            weighted += shrink * (tl.load(weighted_in + row * parts + at, at < parts, 0.0) + part_total * shift)
    sum_of_exps = tl.sum(total)
    log2_sum = tl.log2(sum_of_exps)
    # The target's own rounding may put it a hair above the sum it is part of; a probability is at most 1.
    logprob = ((z - maximum) - log2_sum) * LN_2
    tl.store(logprob_out + row, tl.where(logprob > 0, 0.0, logprob))
    tl.store(logsumexp_out + row, (maximum + log2_sum) * LN_2)
    if ENTROPY:
        tl.store(entropy_out + row, (log2_sum - tl.sum(weighted) / sum_of_exps) * LN_2)

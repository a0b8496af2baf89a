"""Gradient of the logits, tile by tile: recomputed from hidden @ weight.T in the fused route."""

from __future__ import annotations

import triton
import triton.language as tl

from .logits import cap, logit_gradient


@triton.jit(do_not_specialize=["first_token", "last_token"])
def gradient_kernel(
    hidden,  # [T, H] pointer, or tensor descriptor with blocks of ROWS x DEPTH
    weight,  # [V, H] pointer, or tensor descriptor with blocks of COLUMNS x DEPTH
    bias,  # [V]
    targets,  # [T]
    row_scale,  # [T] float32, log2(e) / temperature
    logsumexp,  # [T] float32, natural
    entropy,  # [T] float32
    grad_logprob,  # [T] float32, divided by the temperature already
    grad_entropy,  # [T] float32, as well
    out,  # [rows, columns of the slice] pointer, or tensor descriptor with blocks of ROWS x COLUMNS
    first_token,  # the rows are tokens first_token to last_token
    last_token,
    first_vocab,  # the columns are vocabulary entries first_vocab to last_vocab
    last_vocab,
    width,
    stride_hidden,
    stride_weight,
    stride_out,
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
    row_blocks = tl.cdiv(last_token - first_token, ROWS)
    column_blocks = tl.cdiv(last_vocab - first_vocab, COLUMNS)
    group = tl.program_id(0) // (GROUP * column_blocks)
    within = tl.program_id(0) % (GROUP * column_blocks)
    group_rows = tl.minimum(row_blocks - group * GROUP, GROUP)
    first_row = (group * GROUP + within % group_rows) * ROWS
    first_column = within // group_rows * COLUMNS

    tokens = first_token + first_row + tl.arange(0, ROWS)
    entries = first_vocab + first_column + tl.arange(0, COLUMNS)
    z = tl.zeros([ROWS, COLUMNS], tl.float32)
    if TMA:
        for k in range(0, width, DEPTH):
            left = hidden.load([first_token + first_row, k])
            right = weight.load([first_vocab + first_column, k])
            z = tl.dot(left, right.T, z, input_precision="ieee")
    else:
        depth = tl.arange(0, DEPTH).to(tl.int64)
        hidden_rows = hidden + tl.minimum(tokens, last_token - 1).to(tl.int64)[:, None] * stride_hidden
        weight_columns = weight + tl.minimum(entries, last_vocab - 1).to(tl.int64)[None, :] * stride_weight
        hidden_rows += depth[None, :]
        weight_columns += depth[:, None]
        for k in range(0, width, DEPTH):
            left = tl.load(hidden_rows + tl.cast(k, tl.int64), depth[None, :] < width - k, 0.0)
            right = tl.load(weight_columns + tl.cast(k, tl.int64), depth[:, None] < width - k, 0.0)
            z = tl.dot(left, right, z, input_precision="ieee")

    valid = tokens < last_token
    if BIAS:
        z += tl.load(bias + entries.to(tl.int64), entries < last_vocab, 0.0).to(tl.float32)[None, :]
    if SOFTCAP:
        z = cap(z, softcap)
        slope = 1.0 - (z / softcap) * (z / softcap)
    at = tokens.to(tl.int64)
    if ROW_SCALE:
        z *= tl.load(row_scale + at, valid, 1.0)[:, None]
    else:
        z *= scale
    row_logsumexp = tl.load(logsumexp + at, valid, 0.0)
    row_grad = tl.load(grad_logprob + at, valid, 0.0)
    row_entropy = row_grad  # not read without ENTROPY
    row_grad_entropy = row_grad
    if ENTROPY:
        row_entropy = tl.load(entropy + at, valid, 0.0)
        row_grad_entropy = tl.load(grad_entropy + at, valid, 0.0)
    target = tl.load(targets + at, valid, 0).to(tl.int64)
    result = logit_gradient(
        z,
        row_logsumexp[:, None],
        entries[None, :] == target[:, None],
        row_grad[:, None],
        row_grad_entropy[:, None],
        row_entropy[:, None],
        ENTROPY,
    )
    if SOFTCAP:
        result *= slope
    if TMA:  # a descriptor cuts off what lies outside, and spares a register pair per address
        out.store([first_row, first_column], result.to(out.dtype))
    else:
        local_row = (first_row + tl.arange(0, ROWS)).to(tl.int64)
        local_column = (first_column + tl.arange(0, COLUMNS)).to(tl.int64)
        tl.store(
            out + local_row[:, None] * stride_out + local_column[None, :],
            result.to(out.dtype.element_ty),
            valid[:, None] & (entries < last_vocab)[None, :],
        )

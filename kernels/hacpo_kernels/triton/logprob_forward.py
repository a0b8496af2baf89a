"""Forward of linear_logprob on a GPU: partial results of each row by either route, then a kernel that combines them."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..arguments import Head
from ..blocks import slices, tile_view
from ..products import multiply
from . import table
from .launch import ROW_BLOCK, ROW_WARPS, Problem, kind, launch_options, operands
from .logsumexp import combine_kernel, logsumexp_kernel
from .tiles import statistics_kernel

COMBINE_BLOCK = 256  # lanes of a program that combines the partial results of a row


def forward(head: Head, return_entropy: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(logprob [T], logsumexp [T], entropy [T] or None), float32."""
    problem, hidden = Problem.build(head), head.hidden
    if hidden.shape[0] == 0:
        logprob, logsumexp, entropy = (hidden.new_empty(0, dtype=torch.float32) for _ in range(3))
        return logprob, logsumexp, entropy if return_entropy else None
    plan = table.plan(kind("logsumexp", problem, return_entropy), hidden, head.weight)
    with torch.cuda.device_of(hidden):
        reduce = _fused_partials if plan.route == "fused" else _product_partials
        partials, target_logit = reduce(problem, plan, return_entropy)
        return combine(problem, partials, target_logit, return_entropy)


def _fused_partials(problem: Problem, plan: table.Plan, return_entropy: bool) -> tuple[list[Tensor], None]:
    (tokens, width), vocab = problem.hidden.shape, problem.weight.shape[0]
    tiles = plan.tiles
    per_split = table.tiles_per_split(tokens, vocab, plan)
    splits = triton.cdiv(triton.cdiv(vocab, tiles.columns), per_split)
    partials = new_partials(problem.hidden, tokens, splits, return_entropy)
    left, right = operands(problem, plan)
    logsumexp_kernel[(triton.cdiv(tokens, tiles.rows) * splits,)](
        left,
        right,
        partials[0] if problem.bias is None else problem.bias,
        partials[0] if problem.row_scale is None else problem.row_scale,
        *partials,
        tokens,
        vocab,
        width,
        problem.hidden.stride(0),
        problem.weight.stride(0),
        splits,
        per_split,
        *problem.scales,
        TMA=plan.tma,
        ENTROPY=return_entropy,
        **problem.flags,
        **launch_options(tiles),
    )
    return partials, None


def _product_partials(problem: Problem, plan: table.Plan, return_entropy: bool) -> tuple[list[Tensor], Tensor]:
    tokens, vocab = problem.hidden.shape[0], problem.weight.shape[0]
    rows, columns = table.memory_tile(tokens, vocab, 4, table.LOGITS_BYTES, table.LOGITS_ROWS)
    vocab_slices = list(slices(vocab, columns))
    partials = new_partials(problem.hidden, tokens, len(vocab_slices), return_entropy)
    # NaN stays where no slice holds the target: never a plausible number for a target that does not exist.
    target_logit = problem.hidden.new_full((tokens,), float("nan"), dtype=torch.float32)
    buffer = problem.hidden.new_empty(rows * columns, dtype=torch.float32)
    for part, columns_of in enumerate(vocab_slices):
        weight_slice = problem.weight_slice(columns_of)
        for rows_of in slices(tokens, rows):
            logits = tile_view(buffer, rows_of, columns_of)
            multiply(problem.hidden[rows_of], weight_slice.T, logits)
            statistics(problem, logits, rows_of, columns_of.start, part, partials, target_logit, None, return_entropy)
    return partials, target_logit


def statistics(
    problem: Problem,
    logits: Tensor,
    rows_of: slice,
    first_vocab: int,
    part: int,
    partials: list[Tensor],
    target_logit: Tensor,
    kept: Tensor | None,
    return_entropy: bool,
) -> None:
    """Enters a tile of logits into column `part` of the partial results, and its exponentials into `kept`."""
    statistics_kernel[(logits.shape[0],)](
        logits,
        logits if problem.bias is None else problem.bias,
        problem.targets[rows_of],
        logits if problem.row_scale is None else problem.row_scale[rows_of],
        *(partial[rows_of] for partial in partials),
        target_logit[rows_of],
        logits if kept is None else kept,
        first_vocab,
        logits.shape[1],
        logits.stride(0),
        0 if kept is None else kept.stride(0),
        part,
        partials[0].shape[1],
        *problem.scales,
        ENTROPY=return_entropy,
        KEEP=kept is not None,
        **problem.flags,
        BLOCK=ROW_BLOCK,
        num_warps=ROW_WARPS,
    )


def combine(
    problem: Problem, partials: list[Tensor], target_logit: Tensor | None, return_entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The results of all rows from their partial ones; without a target_logit it is computed here."""
    tokens, parts = partials[0].shape
    logprob, logsumexp = (partials[0].new_empty(tokens) for _ in range(2))
    entropy = partials[0].new_empty(tokens) if return_entropy else None
    unread = partials[0]
    combine_kernel[(tokens,)](
        *partials,
        unread if target_logit is None else target_logit,
        problem.hidden,
        problem.weight,
        unread if problem.bias is None else problem.bias,
        problem.targets,
        unread if problem.row_scale is None else problem.row_scale,
        logprob,
        logsumexp,
        unread if entropy is None else entropy,
        parts,
        problem.weight.shape[0],
        problem.hidden.shape[1],
        problem.hidden.stride(0),
        problem.weight.stride(0),
        *problem.scales,
        DOT=target_logit is None,
        ENTROPY=return_entropy,
        **problem.flags,
        BLOCK=COMBINE_BLOCK,
        num_warps=ROW_WARPS,
    )
    return logprob, logsumexp, entropy


def new_partials(like: Tensor, tokens: int, parts: int, return_entropy: bool) -> list[Tensor]:
    """To be filled: max, sum and, for the entropy, weighted sum of the parts of each row, [tokens, parts] float32."""
    return [
        like.new_empty(tokens, parts if wanted else 0, dtype=torch.float32) for wanted in (True, True, return_entropy)
    ]

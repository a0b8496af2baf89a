"""The tiles of linear_policy_loss on a GPU: cuBLAS writes logits, a Triton kernel keeps their exponentials in 16 bits.

An exponential is kept relative to the largest logit of its row in its slice of the vocabulary, so it is at most 1 and
bfloat16's range holds all that matter. Sums and the target's logit are taken from the float32 logits.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from ..arguments import Head
from ..blocks import slices
from ..products import multiply
from ..rows import take
from . import table
from .launch import LOG2_E, ROW_BLOCK, ROW_WARPS, Problem
from .logprob_backward import half_scale
from .logprob_forward import combine, new_partials, statistics
from .tiles import kept_gradient_kernel


def chunk_rows(hidden: Tensor, weight: Tensor) -> int:
    """Tokens of a chunk unless the caller says otherwise."""
    size = _kept_dtype(hidden, weight).itemsize
    return max(1, min(table.CHUNK_ROWS, table.KEPT_BYTES // (size * weight.shape[0])))


class Chunk:
    """2^(z - maximum) of one chunk of tokens after another; the same interface as torch's."""

    def __init__(self, head: Head, rows: int) -> None:
        hidden, weight = head.hidden, head.weight
        self.problem = Problem.build(head)
        operand, vocab = self.problem.hidden, weight.shape[0]
        _, columns = table.memory_tile(rows, vocab, 4, table.LOGITS_BYTES, table.CHUNK_ROWS)
        self.slices = list(slices(vocab, columns))
        self.stride = -(-columns // 8) * 8
        self.kept = operand.new_empty(len(self.slices), rows, self.stride, dtype=_kept_dtype(hidden, weight))
        self.logits = operand.new_empty(rows, self.stride, dtype=torch.float32)
        # float32 gradients take the place of the logits
        self.out = self.logits if operand.dtype == torch.float32 else operand.new_empty(rows, self.stride)
        self.all_rows = torch.arange(rows, device=hidden.device)
        self.rescale = None

    def operands(self, live: Tensor | None) -> Tensor:
        """Hidden states of the chunk's rows with a gradient, as factors of the products."""
        return self.chunk.hidden if live is None else take(self.chunk.hidden, live)

    def weight_slice(self, part: int) -> Tensor:
        return self.problem.weight_slice(self.slices[part])

    def forward(self, rows_of: slice) -> Tensor:
        """Keep the exponentials of these tokens; their logprob [rows]."""
        chunk = self.problem.take(rows_of)
        hidden, tokens = chunk.hidden, chunk.hidden.shape[0]
        partials = new_partials(hidden, tokens, len(self.slices), False)
        target_logit = hidden.new_full((tokens,), float("nan"), dtype=torch.float32)
        with torch.cuda.device_of(hidden):
            for part, columns_of in enumerate(self.slices):
                logits = self.logits[:tokens, : columns_of.stop - columns_of.start]
                multiply(hidden, self.weight_slice(part).T, logits)
                kept = self.kept[part]
                statistics(chunk, logits, slice(0, tokens), columns_of.start, part, partials, target_logit, kept, False)
            self.logprob, self.logsumexp, _ = combine(chunk, partials, target_logit, False)
        self.chunk, self.maximum = chunk, partials[0]
        return self.logprob

    def set_gradient(self, grad_logprob: Tensor) -> None:
        """[rows]: the upstream gradient that the next calls of `gradient` are for."""
        scale = self.chunk.scale if self.chunk.row_scale is None else self.chunk.row_scale
        self.grad = grad_logprob * (scale / LOG2_E)
        if self.problem.hidden.dtype == torch.float16:
            factor = half_scale(self.grad.abs())
            self.grad, self.rescale = self.grad * factor, 1 / factor

    def gradient(self, part: int, live: Tensor | None) -> Tensor:
        """Gradient of the logits of slice `part` times 1 / rescale, [live rows, columns]."""
        columns_of, chunk = self.slices[part], self.chunk
        rows = self.logprob.shape[0] if live is None else live.shape[0]
        out = self.out[:rows, : columns_of.stop - columns_of.start]
        with torch.cuda.device_of(out):
            kept_gradient_kernel[(rows, triton.cdiv(out.shape[1], ROW_BLOCK))](
                self.kept[part],
                self.all_rows[:rows] if live is None else live,
                chunk.targets,
                self.maximum,
                self.logsumexp,
                self.logprob,
                self.logprob if chunk.row_scale is None else chunk.row_scale,
                self.grad,
                out,
                columns_of.start,
                out.shape[1],
                self.stride,
                out.stride(0),
                part,
                len(self.slices),
                *chunk.scales,
                ROW_SCALE=chunk.row_scale is not None,
                SOFTCAP=chunk.softcap is not None,
                BLOCK=ROW_BLOCK,
                num_warps=ROW_WARPS,
            )
        return out


def _kept_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    # bfloat16 also for float16 inputs: float16 would lose every exponential below 6e-8.
    halves = hidden.dtype == weight.dtype and hidden.dtype.itemsize == 2
    return torch.bfloat16 if halves else torch.float32

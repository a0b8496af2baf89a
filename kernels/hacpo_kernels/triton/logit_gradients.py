"""Gradients of logits on a GPU: one tile of tokens x vocabulary after the other, by either route."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..arguments import RowGradients
from ..blocks import slices, tile_view
from ..products import multiply
from . import table
from .gradient import gradient_kernel
from .launch import ROW_BLOCK, ROW_WARPS, Problem, kind, launch_options, operands
from .tiles import tile_gradient_kernel


class LogitGradient:
    """Makes the gradient of the logits for one tile of tokens x vocabulary after the other, in one buffer."""

    def __init__(self, problem: Problem, rows: RowGradients) -> None:
        self.problem, self.row_gradients = problem, rows
        plan_kind = kind("gradient", problem, rows.entropy is not None)
        self.plan = table.plan(plan_kind, problem.hidden, problem.weight)
        dtype, tokens, vocab = problem.hidden.dtype, problem.hidden.shape[0], problem.weight.shape[0]
        self.rows, self.columns = table.memory_tile(
            tokens, vocab, dtype.itemsize, table.GRADIENT_BYTES, table.GRADIENT_ROWS
        )
        # Rows of the buffer start at multiples of 16 bytes, which descriptors demand and cuBLAS likes.
        self.stride = -(-self.columns // 8) * 8
        self.buffer = problem.hidden.new_empty(self.rows, self.stride)
        self.needs_weight = self.plan.route == "products"
        if self.needs_weight and dtype.itemsize == 2:
            self.logits_rows = max(1, min(self.rows, table.LOGITS_BYTES // (4 * self.columns)))
            self.logits = problem.hidden.new_empty(self.logits_rows * self.columns, dtype=torch.float32)
        else:  # float32 gradients replace the logits in place
            self.logits_rows, self.logits = self.rows, None

    def make(self, rows_of: slice, columns_of: slice, weight_slice: Tensor | None) -> Tensor:
        out = self.buffer[: rows_of.stop - rows_of.start, : columns_of.stop - columns_of.start]
        if self.plan.route == "fused":
            self._fused(rows_of, columns_of, out)
        else:
            for piece in slices(out.shape[0], self.logits_rows):
                self._from_product(rows_of.start, piece, columns_of, weight_slice, out[piece])
        return out

    def _fused(self, rows_of: slice, columns_of: slice, out: Tensor) -> None:
        problem, tiles = self.problem, self.plan.tiles
        left, right = operands(problem, self.plan)
        target = out
        if self.plan.tma:
            target = TensorDescriptor.from_tensor(out, [tiles.rows, tiles.columns])
        grid = triton.cdiv(out.shape[0], tiles.rows) * triton.cdiv(out.shape[1], tiles.columns)
        gradient_kernel[(grid,)](
            left,
            right,
            out if problem.bias is None else problem.bias,
            problem.targets,
            self.row_gradients.logsumexp if problem.row_scale is None else problem.row_scale,
            *self._row_arguments(slice(None)),
            target,
            rows_of.start,
            rows_of.stop,
            columns_of.start,
            columns_of.stop,
            problem.hidden.shape[1],
            problem.hidden.stride(0),
            problem.weight.stride(0),
            out.stride(0),
            *problem.scales,
            TMA=self.plan.tma,
            ENTROPY=self.row_gradients.entropy is not None,
            **problem.flags,
            **launch_options(tiles),
        )

    def _from_product(self, first_row: int, piece: slice, columns_of: slice, weight_slice: Tensor, out: Tensor) -> None:
        problem = self.problem
        rows_of = slice(first_row + piece.start, first_row + piece.stop)
        logits = out if out.dtype == torch.float32 else tile_view(self.logits, piece, columns_of)
        multiply(problem.hidden[rows_of], weight_slice.T, logits)
        tile_gradient_kernel[(logits.shape[0], triton.cdiv(logits.shape[1], ROW_BLOCK))](
            logits,
            logits if problem.bias is None else problem.bias,
            problem.targets[rows_of],
            logits if problem.row_scale is None else problem.row_scale[rows_of],
            *self._row_arguments(rows_of),
            out,
            columns_of.start,
            logits.shape[1],
            logits.stride(0),
            out.stride(0),
            *problem.scales,
            ENTROPY=self.row_gradients.entropy is not None,
            **problem.flags,
            BLOCK=ROW_BLOCK,
            num_warps=ROW_WARPS,
        )

    def _row_arguments(self, rows_of: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """logsumexp, entropy, grad_logprob, grad_entropy; without entropy any pointer does in its place."""
        rows = self.row_gradients
        without = rows.logsumexp
        return (
            rows.logsumexp[rows_of],
            (without if rows.entropy is None else rows.entropy)[rows_of],
            rows.grad_logprob[rows_of],
            (without if rows.grad_entropy is None else rows.grad_entropy)[rows_of],
        )

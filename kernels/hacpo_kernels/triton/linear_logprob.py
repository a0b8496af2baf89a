"""linear_logprob on a GPU: drives the kernels of either route, and cuBLAS for the products that give gradients.

Forward keeps one float per token (and one with the entropy). Backward makes the gradient of the logits for a slice of
the vocabulary and a block of tokens, in 16 bits for 16-bit inputs, and feeds it to two products that sum in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ..blocks import slices, tile_view
from ..products import accumulate, multiply
from . import table
from .gradient import gradient_kernel
from .logsumexp import combine_kernel, logsumexp_kernel
from .tiles import statistics_kernel, tile_gradient_kernel

LOG2_E = 1.4426950408889634
# Lanes of a program that walks over one row of logits, or of partial results.
ROW_BLOCK, COMBINE_BLOCK, ROW_WARPS = 1024, 256, 4
HALF_MAXIMUM = 16384.0  # a quarter of float16's largest number


@dataclass
class Problem:
    """The inputs as kernels take them, and the few facts that kernels are specialised for."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    row_scale: Tensor | None  # [T] float32, log2(e) / temperature; None where one number goes for all:
    scale: float
    softcap: float | None

    @classmethod
    def build(cls, hidden, weight, targets, bias, temperature, logit_softcap) -> Problem:
        if hidden.dtype != weight.dtype:  # the products take factors of one dtype; the weight is converted by slices
            hidden = hidden.float()
        per_token = isinstance(temperature, Tensor)
        return cls(
            hidden,
            weight,
            targets.contiguous(),
            None if bias is None else bias.contiguous(),
            LOG2_E / temperature.float() if per_token else None,
            1.0 if per_token else LOG2_E / temperature,
            logit_softcap,
        )

    @property
    def flags(self) -> dict[str, bool]:
        return {
            "BIAS": self.bias is not None,
            "ROW_SCALE": self.row_scale is not None,
            "SOFTCAP": self.softcap is not None,
        }

    def weight_slice(self, columns: slice) -> Tensor:
        """Rows of the weight in the dtype of the hidden states."""
        return self.weight[columns].to(self.hidden.dtype)

    def rows(self, index: Tensor) -> Problem:
        """The same problem for some of the tokens."""
        return Problem(
            self.hidden.index_select(0, index),
            self.weight,
            self.targets.index_select(0, index),
            self.bias,
            None if self.row_scale is None else self.row_scale.index_select(0, index),
            self.scale,
            self.softcap,
        )


def forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    logit_softcap: float | None,
    return_entropy: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(logprob [T], logsumexp [T], entropy [T] or None), float32; arguments as in the public operator."""
    problem = Problem.build(hidden, weight, targets, bias, temperature, logit_softcap)
    tokens = hidden.shape[0]
    logprob, logsumexp, entropy = (
        hidden.new_empty(tokens if wanted else 0, dtype=torch.float32) for wanted in (True, True, return_entropy)
    )
    if tokens > 0:
        plan = table.plan(kind("logsumexp", return_entropy or logit_softcap), hidden, weight)
        with torch.cuda.device_of(hidden):
            reduce = _fused_partials if plan.route == "fused" else _product_partials
            partials, target_logit = reduce(problem, plan, return_entropy)
            combine(problem, partials, target_logit, logprob, logsumexp, entropy, return_entropy)
    return logprob, logsumexp, entropy if return_entropy else None


def combine(
    problem: Problem,
    partials: list[Tensor],
    target_logit: Tensor | None,
    logprob: Tensor,
    logsumexp: Tensor,
    entropy: Tensor | None,
    return_entropy: bool,
) -> None:
    """Results of all rows from their partial ones; without a target_logit it is computed here."""
    tokens, parts = partials[0].shape
    dot = target_logit is None
    none = partials[0]
    combine_kernel[(tokens,)](
        *partials,
        none if dot else target_logit,
        problem.hidden,
        problem.weight,
        none if problem.bias is None else problem.bias,
        problem.targets,
        none if problem.row_scale is None else problem.row_scale,
        logprob,
        logsumexp,
        entropy if return_entropy else none,
        parts,
        problem.weight.shape[0],
        problem.hidden.shape[1],
        problem.hidden.stride(0),
        problem.weight.stride(0),
        problem.scale,
        problem.softcap or 1.0,
        DOT=dot,
        ENTROPY=return_entropy,
        **problem.flags,
        BLOCK=COMBINE_BLOCK,
        num_warps=ROW_WARPS,
    )


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
        problem.scale,
        problem.softcap or 1.0,
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
        problem.scale,
        problem.softcap or 1.0,
        ENTROPY=return_entropy,
        KEEP=kept is not None,
        **problem.flags,
        BLOCK=ROW_BLOCK,
        num_warps=ROW_WARPS,
    )


def backward(
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    logit_softcap: float | None,
    logsumexp: Tensor,
    entropy: Tensor | None,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
    grad_dtype: torch.dtype | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of hidden [T, H], weight [V, H] and bias [V] in their dtypes or grad_dtype, None where not needed."""
    hidden_dtype = grad_dtype or hidden.dtype
    grad_weight = weight.new_empty(weight.shape, dtype=grad_dtype or weight.dtype) if need_weight else None
    grad_bias = bias.new_zeros(bias.shape, dtype=torch.float32) if need_bias else None
    gradients = Gradients(need_hidden, grad_weight, grad_bias)
    live = live_rows(grad_logprob, grad_entropy)
    problem = Problem.build(hidden, weight, targets, bias, temperature, logit_softcap)
    rows = RowGradients(grad_logprob.float().contiguous(), grad_entropy, logsumexp, entropy)
    if live is not None:
        problem, rows = problem.rows(live), rows.rows(live)
    if problem.hidden.shape[0] == 0 or not (need_hidden or need_weight or need_bias):
        grad_hidden = hidden.new_zeros(hidden.shape, dtype=hidden_dtype) if need_hidden else None
        if need_weight:
            grad_weight.zero_()
    else:
        rows, rescale = rows.prepare(problem)
        with torch.cuda.device_of(hidden):
            grad_hidden = _backward_products(problem, rows, gradients, rescale)
        if need_hidden:
            grad_hidden = grad_hidden.to(hidden_dtype)
            if live is not None:
                grad_hidden = grad_hidden.new_zeros(hidden.shape).index_copy_(0, live, grad_hidden)
    return grad_hidden, grad_weight, grad_bias.to(grad_dtype or bias.dtype) if need_bias else None


def half_scale(largest: Tensor) -> Tensor:
    """[]: the power of two that brings the largest finite of these magnitudes near float16's own largest number."""
    largest = torch.nan_to_num(largest, nan=0.0, posinf=0.0).max().clamp(min=torch.finfo(torch.float32).tiny)
    return torch.exp2(torch.floor(torch.log2(HALF_MAXIMUM / largest)).clamp(max=100))


@dataclass
class RowGradients:
    """Per token what the gradient of its logits is made of, [T] float32."""

    grad_logprob: Tensor
    grad_entropy: Tensor | None
    logsumexp: Tensor
    entropy: Tensor | None

    def rows(self, index: Tensor) -> RowGradients:
        fields = (self.grad_logprob, self.grad_entropy, self.logsumexp, self.entropy)
        return RowGradients(*(None if field is None else field.index_select(0, index) for field in fields))

    def prepare(self, problem: Problem) -> tuple[RowGradients, Tensor | None]:
        """The upstream gradients divided by the temperature and, for float16, scaled; and what undoes the scaling.

        A probability of 1e-6 times an upstream gradient of 1e-5 is 0 in float16, so the whole is raised until its
        largest element is near float16's own.
        """
        factor = (problem.scale if problem.row_scale is None else problem.row_scale) / LOG2_E  # 1 / temperature
        grad_logprob = self.grad_logprob * factor
        grad_entropy = None if self.grad_entropy is None else self.grad_entropy.float() * factor
        if problem.hidden.dtype != torch.float16:
            return RowGradients(grad_logprob, grad_entropy, self.logsumexp, self.entropy), None
        largest = grad_logprob.abs()
        if grad_entropy is not None:  # |p * (log p + entropy)| is below 1 + entropy
            largest = largest + grad_entropy.abs() * (1 + self.entropy)
        raised = half_scale(largest)
        scaled = None if grad_entropy is None else grad_entropy * raised
        return RowGradients(grad_logprob * raised, scaled, self.logsumexp, self.entropy), 1 / raised


class Gradients(NamedTuple):
    """Where gradients go: weight [V, H] and bias [V] are filled in place, the bias in float32."""

    need_hidden: bool
    weight: Tensor | None
    bias: Tensor | None


def _backward_products(
    problem: Problem, rows: RowGradients, gradients: Gradients, rescale: Tensor | None
) -> Tensor | None:
    """Fills the gradients of weight and bias; returns that of the hidden states, float32."""
    (tokens, width), vocab = problem.hidden.shape, problem.weight.shape[0]
    grad_hidden = problem.hidden.new_empty(tokens, width, dtype=torch.float32) if gradients.need_hidden else None
    weight_buffer = None
    maker = LogitGradient(problem, rows)
    for part, columns_of in enumerate(slices(vocab, maker.columns)):
        weight_slice = problem.weight_slice(columns_of) if gradients.need_hidden or maker.needs_weight else None
        if gradients.weight is not None:
            grad_slice = gradients.weight[columns_of]
            if grad_slice.dtype != torch.float32:
                if weight_buffer is None:
                    weight_buffer = problem.hidden.new_empty(maker.columns, width, dtype=torch.float32)
                grad_slice = weight_buffer[: columns_of.stop - columns_of.start]
        for block, rows_of in enumerate(slices(tokens, maker.rows)):
            grad = maker.make(rows_of, columns_of, weight_slice)
            if grad_hidden is not None:
                accumulate(grad_hidden[rows_of], grad, weight_slice, first=part == 0)
            if gradients.weight is not None:
                accumulate(grad_slice, grad.T, problem.hidden[rows_of], first=block == 0)
            if gradients.bias is not None:
                gradients.bias[columns_of] += grad.sum(0, dtype=torch.float32)
        if gradients.weight is not None:
            if rescale is not None:
                grad_slice.mul_(rescale)
            if gradients.weight.dtype != torch.float32:
                gradients.weight[columns_of] = grad_slice
    if rescale is not None:
        if grad_hidden is not None:
            grad_hidden.mul_(rescale)
        if gradients.bias is not None:
            gradients.bias.mul_(rescale)
    return grad_hidden


class LogitGradient:
    """Makes the gradient of the logits for one tile of tokens x vocabulary after the other, in one buffer."""

    def __init__(self, problem: Problem, rows: RowGradients) -> None:
        self.problem, self.row_gradients = problem, rows
        self.plan = table.plan(
            kind("gradient", rows.entropy is not None or problem.softcap), problem.hidden, problem.weight
        )
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
            problem.scale,
            problem.softcap or 1.0,
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
            problem.scale,
            problem.softcap or 1.0,
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


def live_rows(grad_logprob: Tensor, grad_entropy: Tensor | None) -> Tensor | None:
    """Indices of the rows with a gradient, None when that is all of them. NaN counts as a gradient: it must surface."""
    if grad_logprob.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # the number of live rows is not known on the host while a CUDA graph is captured
    live = grad_logprob != 0
    if grad_entropy is not None:
        live |= grad_entropy != 0
    indices = live.nonzero().squeeze(1)
    return None if indices.numel() == live.numel() else indices


def kind(kernel: str, rich: object) -> str:
    return f"rich {kernel}" if rich else kernel


def operands(problem: Problem, plan: table.Plan) -> tuple[object, object]:
    """hidden and weight as the fused kernels take them."""
    if not plan.tma:
        return problem.hidden, problem.weight
    tiles = plan.tiles
    return (
        TensorDescriptor.from_tensor(problem.hidden, [tiles.rows, tiles.depth]),
        TensorDescriptor.from_tensor(problem.weight, [tiles.columns, tiles.depth]),
    )


def launch_options(tiles: table.Tiles) -> dict[str, int]:
    return {
        "GROUP": table.ROW_GROUP,
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "DEPTH": tiles.depth,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def new_partials(like: Tensor, tokens: int, parts: int, return_entropy: bool) -> list[Tensor]:
    return [
        like.new_empty(tokens, parts if wanted else 0, dtype=torch.float32) for wanted in (True, True, return_entropy)
    ]

"""Backward of linear_logprob on a GPU.

The gradient of the logits is made for a slice of the vocabulary and a block of tokens, in 16 bits for 16-bit inputs,
and feeds two cuBLAS products that sum in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import Head, Needs, RowGradients
from ..blocks import slices
from ..products import accumulate
from ..rows import live_rows
from .launch import LOG2_E, Problem
from .logit_gradients import LogitGradient

HALF_MAXIMUM = 16384.0  # a quarter of float16's largest number


def backward(
    head: Head, rows: RowGradients, needs: Needs, grad_dtype: torch.dtype | None = None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of hidden [T, H], weight [V, H] and bias [V] in their dtypes or grad_dtype, None where not needed."""
    weight, bias, shape, hidden_dtype = head.weight, head.bias, head.hidden.shape, grad_dtype or head.hidden.dtype
    live = live_rows(rows.grad_logprob, rows.grad_entropy)
    if live is not None:
        head, rows = head.take(live), rows.take(live)
    grad_weight = weight.new_empty(weight.shape, dtype=grad_dtype or weight.dtype) if needs.weight else None
    grad_bias = bias.new_zeros(bias.shape, dtype=torch.float32) if needs.bias else None
    if head.hidden.shape[0] == 0:
        grad_hidden = head.hidden.new_zeros(shape, dtype=hidden_dtype) if needs.hidden else None
        if needs.weight:
            grad_weight.zero_()
    else:
        problem = Problem.build(head)
        rows, rescale = prepare(rows, problem)
        with torch.cuda.device_of(head.hidden):
            grad_hidden = _products(problem, rows, rescale, needs.hidden, grad_weight, grad_bias)
        if needs.hidden:
            grad_hidden = grad_hidden.to(hidden_dtype)
            if live is not None:
                grad_hidden = grad_hidden.new_zeros(shape).index_copy_(0, live, grad_hidden)
    return grad_hidden, grad_weight, grad_bias.to(grad_dtype or bias.dtype) if needs.bias else None


def prepare(rows: RowGradients, problem: Problem) -> tuple[RowGradients, Tensor | None]:
    """The upstream gradients divided by the temperature and, for float16, scaled; and what undoes the scaling.

    A probability of 1e-6 times an upstream gradient of 1e-5 is 0 in float16, so the whole is raised until its largest
    element is near float16's own.
    """
    factor = (problem.scale if problem.row_scale is None else problem.row_scale) / LOG2_E  # 1 / temperature
    grad_logprob = rows.grad_logprob.float() * factor
    grad_entropy = None if rows.grad_entropy is None else rows.grad_entropy.float() * factor
    if problem.hidden.dtype != torch.float16:
        return rows._replace(grad_logprob=grad_logprob, grad_entropy=grad_entropy), None
    largest = grad_logprob.abs()
    if grad_entropy is not None:  # |p * (log p + entropy)| is below 1 + entropy
        largest = largest + grad_entropy.abs() * (1 + rows.entropy)
    raised = half_scale(largest)
    scaled = None if grad_entropy is None else grad_entropy * raised
    return rows._replace(grad_logprob=grad_logprob * raised, grad_entropy=scaled), 1 / raised


def half_scale(largest: Tensor) -> Tensor:
    """[]: the power of two that brings the largest finite of these magnitudes near float16's own largest number."""
    largest = torch.nan_to_num(largest, nan=0.0, posinf=0.0).max().clamp(min=torch.finfo(torch.float32).tiny)
    return torch.exp2(torch.floor(torch.log2(HALF_MAXIMUM / largest)).clamp(max=100))


def _products(
    problem: Problem,
    rows: RowGradients,
    rescale: Tensor | None,
    need_hidden: bool,
    grad_weight: Tensor | None,
    grad_bias: Tensor | None,
) -> Tensor | None:
    """Fills grad_weight [V, H] and adds to grad_bias [V] float32; returns the gradient of hidden [rows, H] float32."""
    (tokens, width), vocab = problem.hidden.shape, problem.weight.shape[0]
    grad_hidden = problem.hidden.new_empty(tokens, width, dtype=torch.float32) if need_hidden else None
    weight_buffer = None
    maker = LogitGradient(problem, rows)
    for part, columns_of in enumerate(slices(vocab, maker.columns)):
        weight_slice = problem.weight_slice(columns_of) if need_hidden or maker.needs_weight else None
        if grad_weight is not None:
            grad_slice = grad_weight[columns_of]
            if grad_slice.dtype != torch.float32:
                if weight_buffer is None:
                    weight_buffer = problem.hidden.new_empty(maker.columns, width, dtype=torch.float32)
                grad_slice = weight_buffer[: columns_of.stop - columns_of.start]
        for block, rows_of in enumerate(slices(tokens, maker.rows)):
            grad = maker.make(rows_of, columns_of, weight_slice)
            if grad_hidden is not None:
                accumulate(grad_hidden[rows_of], grad, weight_slice, first=part == 0)
            if grad_weight is not None:
                accumulate(grad_slice, grad.T, problem.hidden[rows_of], first=block == 0)
            if grad_bias is not None:
                grad_bias[columns_of] += grad.sum(0, dtype=torch.float32)
        if grad_weight is not None:
            if rescale is not None:
                grad_slice.mul_(rescale)
            if grad_weight.dtype != torch.float32:
                grad_weight[columns_of] = grad_slice
    if rescale is not None:
        if grad_hidden is not None:
            grad_hidden.mul_(rescale)
        if grad_bias is not None:
            grad_bias.mul_(rescale)
    return grad_hidden

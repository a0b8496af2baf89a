"""One tile of logits in torch operations: a block of tokens against a slice of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from ..arguments import Head


def token_temperature(head: Head, rows: slice) -> float | Tensor:
    """The temperature, or those of the rows as a column."""
    return head.temperature[rows, None] if isinstance(head.temperature, Tensor) else head.temperature


def vocab_slice(head: Head, columns: slice) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a slice of the vocabulary in the dtype of the computation."""
    bias = None if head.bias is None else head.bias[columns].to(head.dtype)
    return head.weight[columns].to(head.dtype), bias


def logits_into(
    out: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    softcap: float | None,
) -> None:
    """Fills `out` [rows, columns] with logits: bias added, capped, divided by the temperature."""
    torch.mm(hidden, weight.T, out=out)
    if bias is not None:
        out.add_(bias)
    if softcap is not None:
        out.div_(softcap).tanh_().mul_(softcap)
    if isinstance(temperature, Tensor) or temperature != 1.0:
        out.div_(temperature)


def target_columns(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """(column of the target within the slice [rows, 1], clamped into it; whether it is really there [rows])."""
    local = targets - columns.start
    width = columns.stop - columns.start
    return local.clamp(0, width - 1)[:, None], (local >= 0) & (local < width)

"""One tile of logits in torch operations: a block of tokens against a slice of the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def token_temperature(temperature: float | Tensor, rows: slice) -> float | Tensor:
    return temperature[rows, None] if isinstance(temperature, Tensor) else temperature


def vocab_slice(
    weight: Tensor, bias: Tensor | None, columns: slice, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    return weight[columns].to(dtype), None if bias is None else bias[columns].to(dtype)


def logits_into(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    logit_softcap: float | None,
    out: Tensor,
) -> None:
    torch.mm(hidden, weight.T, out=out)
    if bias is not None:
        out.add_(bias)
    if logit_softcap is not None:
        out.div_(logit_softcap).tanh_().mul_(logit_softcap)
    if isinstance(temperature, Tensor) or temperature != 1.0:
        out.div_(temperature)


def target_columns(targets: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """(column of the target within the slice [rows, 1], clamped into it; whether it is really there [rows])."""
    local = targets - columns.start
    width = columns.stop - columns.start
    return local.clamp(0, width - 1)[:, None], (local >= 0) & (local < width)

"""Argument checks that the operators share. Each error names the argument, what was expected and what came.

Checks of shapes and dtypes cost nothing and always run. Checks of values (`*_values`) read the tensor, so they run on
CPU tensors only: on an accelerator they would make the host wait.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

INTEGER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_tensor(name: str, tensor: Tensor, shape: tuple[int | None, ...], device: torch.device | None = None) -> None:
    """`tensor` has `shape` (None: any extent) and lies on `device`. Raises TypeError or ValueError."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    matches = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(tensor.shape)}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, expected {device} like the other arguments")


def check_floating(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype, got {tensor.dtype}")


def check_integer(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in INTEGER_DTYPES:
        raise TypeError(f"{name} must have an integer dtype, got {tensor.dtype}")


def check_positive(name: str, value: float, *, finite: bool = True) -> None:
    """`value` > 0, which NaN is not; infinity passes when `finite` is False. Raises ValueError."""
    if not value > 0 or (finite and value == math.inf):
        raise ValueError(f"{name} must be a positive{' finite' if finite else ''} number, got {value}")


def check_target_values(targets: Tensor, vocab: int) -> None:
    """Every target is a row of the [vocab, hidden] weight. Raises IndexError. CPU only."""
    if targets.device.type != "cpu":
        return
    targets = targets.long()  # comparing a uint8 tensor with 300 would wrap the 300
    outside = (targets < 0) | (targets >= vocab)
    if outside.any():
        position = int(outside.nonzero()[0])
        target = int(targets[position])
        hint = "; there is no ignore index: leave such tokens out of the call" if target < 0 else ""
        raise IndexError(f"targets[{position}] = {target} is outside the vocabulary of {vocab}{hint}")


def check_positive_values(name: str, tensor: Tensor) -> None:
    """Every element is > 0 (NaN is not). Raises ValueError. CPU only."""
    if tensor.device.type == "cpu" and not (tensor > 0).all():
        raise ValueError(f"{name} must be positive everywhere")


def check_cu_seqlens_values(cu_seqlens: Tensor, tokens: int) -> None:
    """Boundaries rise from 0 to `tokens`; equal neighbours are empty sequences. Raises ValueError. CPU only."""
    if cu_seqlens.device.type != "cpu":
        return
    cu_seqlens = cu_seqlens.long()  # differences of narrower integers wrap
    if cu_seqlens[0] != 0:
        raise ValueError(f"cu_seqlens must start at 0, got {int(cu_seqlens[0])}")
    if cu_seqlens[-1] != tokens:
        raise ValueError(f"cu_seqlens must end at the number of tokens {tokens}, got {int(cu_seqlens[-1])}")
    if (cu_seqlens.diff() < 0).any():
        raise ValueError("cu_seqlens must not decrease")

"""Some of the tokens: a block of neighbours, or those that have a gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def take(tensor: Tensor | None, rows: slice | Tensor) -> Tensor | None:
    """The given rows of `tensor`: a view for a slice, a copy for int64 indices. None stays None."""
    if tensor is None:
        return None
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


def live_rows(*gradients: Tensor | None) -> Tensor | None:
    """Indices of the tokens with a gradient in any of these [T], None when that is all of them (or cannot be known).

    NaN counts as a gradient: it must surface. The host waits for the device.
    """
    first, *rest = (gradient for gradient in gradients if gradient is not None)
    if first.is_cuda and torch.cuda.is_current_stream_capturing():
        return None  # the number of live rows is not known on the host while a CUDA graph is captured
    live = first != 0
    for gradient in rest:
        live |= gradient != 0
    indices = live.nonzero().squeeze(1)
    return None if indices.numel() == live.numel() else indices

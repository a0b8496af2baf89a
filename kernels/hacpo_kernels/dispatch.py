"""Which implementation runs. A new backend is one more name here and one more module in each operator's table."""

from __future__ import annotations

import torch

BACKENDS = ("auto", "torch", "reference")


def resolve_backend(backend: str, device: torch.device) -> str:
    """The implementation that `backend` stands for on `device`.

    Raises ValueError for an unknown name.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    return "torch" if backend == "auto" else backend


def compute_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """float64 as soon as one tensor is float64, else float32: half precision is for storage, never for accumulation."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32

"""Which implementation runs. A new backend is one more name here and one more folder with a module per operator."""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

import torch

BACKENDS = ("auto", "torch", "triton", "reference")

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
# What the Triton kernels compute with. float64 has no tensor-core path worth a kernel and is left to torch.
TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def resolve_backend(backend: str, *tensors: torch.Tensor) -> str:
    """The implementation that `backend` stands for, given the operator's floating-point inputs (the first says where).

    "auto" is "triton" on NVIDIA GPUs where the package triton is installed and no input is float64, else "torch".

    Raises ValueError for an unknown name, and where "triton" is asked for and cannot run.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, got {backend!r}")
    if backend not in ("auto", "triton"):
        return backend
    reason = _why_not_triton(tensors)
    if backend == "triton" and reason:
        raise ValueError(f'backend="triton" {reason}')
    wanted = backend == "triton" or tensors[0].device.type == "cuda"
    return "triton" if wanted and not reason else "torch"


def implementation(backend: str, operator: str) -> ModuleType:
    """The module of `backend` for `operator`; Triton's are imported on first use."""
    return importlib.import_module(f"{__package__}.{backend}.{operator}")


def _why_not_triton(tensors: tuple[torch.Tensor, ...]) -> str | None:
    if not TRITON_INSTALLED:
        return "needs the package triton"
    if torch.version.hip is not None:  # where devices are called cuda too
        return "is for NVIDIA GPUs"
    if any(tensor.dtype not in TRITON_DTYPES for tensor in tensors):
        dtypes = ", ".join(str(tensor.dtype) for tensor in tensors)
        return f"takes float32, bfloat16 and float16, got {dtypes}"
    device = tensors[0].device.type
    interpreted = device == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device != "cuda" and not interpreted:
        return f"runs on CUDA devices, got {device} (or on CPU with TRITON_INTERPRET=1, for tests)"
    return None


def compute_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """float64 as soon as one tensor is float64, else float32: half precision is for storage, never for accumulation."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32

"""Small plans for the Triton backend, and the device its kernels run on here.

Without a GPU the kernels run in Triton's interpreter on CPU tensors (tests/conftest.py): it spends milliseconds on each
program and little on its size, so tiles are as large as the problems allow. It has no bfloat16 products.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest import mock

import torch

from hacpo_kernels.triton import table

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# name -> (route, by descriptor)
ROUTES = {"products": ("products", False), "pointers": ("fused", False), "descriptors": ("fused", True)}


@contextmanager
def planned(route: str, tiles=(32, 64, 32), *, memory_rows=16, memory_bytes=16 << 10):
    """Every kernel on `route` in tiles of (rows, columns, depth); tiles in memory of a few rows and 256 columns."""
    name, tma = ROUTES[route]
    plan = table.Plan(name, tma, table.Tiles(*tiles, warps=4, stages=2), multiprocessors=1)
    limits = {
        "GRADIENT_BYTES": memory_bytes,
        "GRADIENT_ROWS": memory_rows,
        "LOGITS_BYTES": memory_bytes,
        "LOGITS_ROWS": memory_rows,
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(table, "plan", lambda *_: plan))
        for limit, value in limits.items():
            stack.enter_context(mock.patch.object(table, limit, value))
        yield


def on_device(*tensors):
    return tuple(tensor.to(DEVICE) if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors)


def as_float64(*tensors):
    """The same values, exactly."""
    return tuple(
        tensor.double() if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor
        for tensor in tensors
    )

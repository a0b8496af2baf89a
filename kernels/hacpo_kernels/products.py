"""Matrix products of half-precision factors with float32 sums and float32 results, and of float32 ones without TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out [m, n] = left [m, k] @ right [k, n]. Factors of one dtype; `out` has it too, or is float32 for halves."""
    if left.dtype == out.dtype:
        return out.addmm_(left, right, beta=0)  # overwrites; on CPU mm(out=) takes a slower way when transposed
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=out.dtype, out=out)
    return torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)  # CPU products of halves round their sums


def accumulate(out: Tensor, left: Tensor, right: Tensor, *, first: bool) -> Tensor:
    """Like `multiply`, but adds to `out` unless it is the `first` product to go there."""
    if first:
        return multiply(left, right, out)
    if left.dtype == out.dtype:
        return out.addmm_(left, right)
    if left.is_cuda:
        return torch.addmm(out, left, right, out_dtype=out.dtype, out=out)
    return out.addmm_(left.to(out.dtype), right.to(out.dtype))


@contextmanager
def exact(device_type: str) -> Iterator[None]:
    """Neither autocast nor TF32 (nor bfloat16 on CPU) inside float32 products: all would change the logits.

    torch has two interfaces for the latter and refuses to multiply when they disagree, so both are set, and put back.
    """
    flags = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [flag.fp32_precision for flag in flags]
    with torch.autocast(device_type, enabled=False):
        if all(precision in ("none", "ieee") for precision in before):
            yield
            return
        try:
            old_interface = torch.get_float32_matmul_precision()
        except RuntimeError:  # the caller used the new one alone
            old_interface = None
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            if old_interface is not None:
                torch.set_float32_matmul_precision(old_interface)
            for flag, precision in zip(flags, before, strict=True):
                if flag.fp32_precision != precision:
                    flag.fp32_precision = precision

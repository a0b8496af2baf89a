"""Liger's fused norms, rotary embeddings and gated MLPs in the place of a policy's own, where they compute the same.

Parameters keep their names and storage: modules get another forward method, nothing else. Liger (liger-kernel) knows
which of its kernels belongs where in which architecture. Two things are done otherwise than it would:

- It also replaces classes and functions in transformers' own module, for every model of the process. Here only the
  rotary embedding stays replaced, because layers look it up there, and it asks what device it runs on.
- Whether its kernels agree with this model in this version of transformers is not believed but measured, forwards and
  backwards, before anything is trained.

Liger's loss is never used.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hacpo_fast.errors import UserError, install_hint
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.policy import Policy
from hacpo_fast.policy.probe import (
    GRADIENT_16_BITS,
    GRADIENT_32_BITS,
    LENGTHS,
    TOLERANCE_16_BITS,
    TOLERANCE_32_BITS,
)

ROPE = "apply_rotary_pos_emb"
KERNELS = {"rope": True, "rms_norm": True, "layer_norm": True, "swiglu": True, "geglu": True}
LOSSES = {"cross_entropy": False, "fused_linear_cross_entropy": False}


class Unsuitable(Exception):
    """Liger's kernels cannot stand in for this model's layers; the message says why."""


def fuse_layers(policy: Policy, wanted: str) -> str:
    """Lets Liger compute the policy's layers, by `wanted`: liger, torch, or auto (liger on a GPU, where it can).

    Returns:
        What computes them now, in words.

    Raises:
        UserError: liger is asked for and cannot be.
    """
    if wanted == "torch" or (wanted == "auto" and policy.device.type != "cuda"):
        return "torch"
    try:
        if policy.device.type != "cuda":
            raise Unsuitable(f"its kernels need a GPU, and the model is on {policy.device.type}")
        replace_checked(policy)
    except Unsuitable as reason:
        if wanted == "liger":
            raise UserError(f"{policy.name}: training.layers=liger cannot be: {reason}") from None
        return f"torch ({reason})"
    return "liger"


def replace_checked(policy: Policy) -> Callable[[], None]:
    """Replaces the layers, if that changes nothing but rounding. Returns what undoes it.

    Raises:
        Unsuitable: it would, or Liger cannot; then nothing has changed.
    """
    before = _answers(policy)
    undo = _replace(policy.model, policy.device.type)
    try:
        _compare(before, _answers(policy), policy.model.dtype)
    except Unsuitable:
        undo()
        raise
    except Exception as error:
        undo()
        raise Unsuitable(f"its kernels fail: {type(error).__name__}: {error}") from error
    return undo


def _replace(model: nn.Module, device_type: str) -> Callable[[], None]:
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN, _apply_liger_kernel_to_instance
    except ImportError as error:
        raise Unsuitable(f"liger-kernel cannot be imported ({error}); {install_hint('liger')}") from error
    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise Unsuitable(f"liger-kernel knows no {model.config.model_type}")
    modules = [(module, dict(vars(module))) for module in model.modules()]
    library = vars(sys.modules[type(model).__module__])
    library_before = dict(library)

    def undo() -> None:
        for module, before in modules:
            _restore(vars(module), before)
        _restore(library, library_before)

    try:
        _apply_liger_kernel_to_instance(model=model, **KERNELS, **LOSSES)
    except Exception as error:  # whatever its patches run into in another version of transformers
        undo()
        raise Unsuitable(f"liger-kernel fails on {type(model).__name__}: {type(error).__name__}: {error}") from error
    fused = library.get(ROPE)
    _restore(library, library_before)
    if fused is not library_before.get(ROPE):
        library[ROPE] = _by_device(library_before[ROPE], fused, device_type)
    return undo


def _restore(present: dict[str, Any], before: dict[str, Any]) -> None:
    for name in present.keys() - before.keys():
        del present[name]
    present.update(before)


def _by_device(plain: Callable, fused: Callable, device_type: str) -> Callable:
    @functools.wraps(plain)
    def rope(query: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return (fused if query.device.type == device_type else plain)(query, *others, **options)

    return rope


def _answers(policy: Policy) -> tuple[Tensor, Tensor]:
    """Log-probs [R] of random sequences, and their gradient in all vectors (norms, biases), end to end.

    The way back to the first layer's norm leads through every kernel; the gradients of matrices, which are large, are
    not needed for that.
    """
    generator = np.random.default_rng(0)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    sequences = [tuple(generator.integers(vocabulary, size=length) for length in pair) for pair in LENGTHS]
    logprobs = policy.token_logprobs(PackedBatch.build(sequences, policy.device))
    vectors = [parameter for parameter in policy.model.parameters() if parameter.ndim == 1 and parameter.requires_grad]
    found = torch.autograd.grad(logprobs.sum(), vectors, allow_unused=True) if vectors else []
    gradient = [part.flatten().float() for part in found if part is not None]
    return logprobs.detach(), torch.cat(gradient) if gradient else logprobs.new_zeros(0)


def _compare(before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    (logprobs, gradient), (new_logprobs, new_gradient) = before, after
    error = (new_logprobs - logprobs).abs().max().item()
    tolerance = TOLERANCE_16_BITS.get(dtype, TOLERANCE_32_BITS) * max(1.0, logprobs.abs().max().item())
    if not error <= tolerance:  # NaN is not
        raise Unsuitable(f"its kernels change a log-prob by {error:.2g} nats, rounding explains {tolerance:.2g}")
    if len(gradient):
        error = ((new_gradient - gradient).norm() / gradient.norm().clamp(min=1e-30)).item()
        tolerance = GRADIENT_16_BITS.get(dtype, GRADIENT_32_BITS)
        if not error <= tolerance:
            raise Unsuitable(f"its kernels change the gradient by {error:.1%}, rounding explains {tolerance:.1%}")

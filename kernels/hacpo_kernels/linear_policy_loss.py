"""The policy loss straight from hidden states: loss and gradients in one pass over the vocabulary projection."""

from __future__ import annotations

import torch
from torch import Tensor

from . import one_pass, reference
from .arguments import Head, Needs, Objective, Responses
from .autograd import refuse_double_backward
from .dispatch import compute_dtype, resolve_backend
from .products import exact
from .stats import PolicyLossStats, empty_stats


def linear_policy_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    logit_softcap: float | None = None,
    level: str = "sequence",
    own_clip_low: float = 3e-4,
    own_clip_high: float = 4e-4,
    cross_clip_lower: float = 0.8,
    cross_clip_upper: float = 1.0,
    alpha: float = 1.0,
    log_ratio_clamp: float = 10.0,
    denominator: float | None = None,
    source_token_logprobs: Tensor | None = None,
    chunk_tokens: int | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, PolicyLossStats]:
    """`policy_loss(linear_logprob(hidden, weight, targets, ...), ...)` with three products per token instead of four.

    Same result, same gradients (in half precision: to its rounding). The gradients are computed in forward, while the
    exponentials of a chunk of whole responses are at hand, and wait for the upstream gradient of the loss, which
    scales them. So forward costs what forward and backward would, where a gradient is wanted, and holds the gradients
    of hidden, weight and bias, where each of them is wanted. Without a gradient it is one product.

    Memory beside the gradients: the exponentials of one chunk, [chunk_tokens, V] in bfloat16 on a GPU (1.25 GiB at
    most by default), in the computation's dtype on CPU (256 MiB); with more than one chunk, the weight's gradient in
    float32. Responses longer than a chunk are done the two-pass way. Rows whose gradient is exactly zero cost nothing
    after forward. Deterministic. Differentiable once.

    The host has to know where responses end: with cu_seqlens on an accelerator it waits for them once (pass them on the
    CPU to avoid that; under CUDA graph capture they must be there), and once per chunk for the live rows.

    Args:
        hidden, weight, targets, bias, temperature, logit_softcap: as for `linear_logprob`.
        cu_seqlens: [N + 1] integer, on hidden's device or on the CPU.
        source_mean_logprobs, advantages, is_own, capability_ratio: as for `policy_loss`, as are level and all settings
            up to source_token_logprobs.
        chunk_tokens: most tokens of a chunk; None chooses by memory.
        backend: "auto" (Triton on CUDA, else torch), "torch", "triton", or "reference".

    Returns:
        (loss [], token_logprobs [T], PolicyLossStats): only the loss is differentiable, in hidden, weight and bias.

    Raises:
        What `linear_logprob` and `policy_loss` raise; values of cu_seqlens are looked at wherever they are. ValueError
        for chunk_tokens below 1.
    """
    head = Head(hidden, weight, targets, bias, temperature, logit_softcap)
    head.check()
    responses = Responses(cu_seqlens, source_mean_logprobs, advantages, is_own, capability_ratio, source_token_logprobs)
    responses.check(hidden.shape[0], hidden.device, host_boundaries=True)
    responses = responses.at_level(level)
    objective = Objective(
        own_clip_low, own_clip_high, cross_clip_lower, cross_clip_upper, alpha, log_ratio_clamp, denominator
    )
    objective.check()
    if chunk_tokens is not None and chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    backend = resolve_backend(backend, hidden, weight)
    if backend == "reference":
        return reference.linear_policy_loss(head, responses, objective)
    needs = [torch.is_grad_enabled() and leaf is not None and leaf.requires_grad for leaf in (hidden, weight, bias)]
    loss, token_logprobs, _, _, _, *stats = _forward(
        *head.flat(), *responses, *objective.flat(), chunk_tokens, needs, backend
    )
    return loss, token_logprobs.detach(), PolicyLossStats(*(stat.detach() for stat in stats))


# The forward operator computes the gradients too; the backward operator scales them. A custom operator returns tensors
# only: an empty one stands for a gradient that nobody wants.


@torch.library.custom_op("hacpo_kernels::linear_policy_loss", mutates_args=())
def _forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    token_temperature: Tensor | None,
    logit_softcap: float | None,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    source_token_logprobs: Tensor | None,
    objective: list[float],
    denominator: float | None,
    chunk_tokens: int | None,
    needs: list[bool],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(loss [], token_logprobs [T], gradients of hidden, weight and bias, the seven fields of PolicyLossStats)."""
    head = Head.from_flat(hidden, weight, targets, bias, temperature, token_temperature, logit_softcap)
    head.check_values()
    on_host, on_device = _on_host_and_device(cu_seqlens, hidden.device)
    responses = Responses(on_host, source_mean_logprobs, advantages, is_own, capability_ratio, source_token_logprobs)
    responses.check_values(hidden.shape[0])
    with exact(hidden.device.type):
        loss, token_logprobs, grads, stats = one_pass.run(
            head,
            responses._replace(cu_seqlens=on_device),
            Objective.from_flat(objective, denominator, advantages.shape[0]),
            on_host.tolist(),
            chunk_tokens,
            Needs(*needs),
            backend,
        )
    return loss, token_logprobs, *(hidden.new_empty(0) if grad is None else grad for grad in grads), *stats


def _on_host_and_device(cu_seqlens: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return cu_seqlens.cpu(), cu_seqlens.to(device)
    if cu_seqlens.is_cuda:
        raise RuntimeError("linear_policy_loss in a CUDA graph needs cu_seqlens on the CPU: they shape the work")
    on_device = torch.empty(cu_seqlens.shape, dtype=torch.int64, device=device)
    # Fills are recorded with their values; a copy would read memory that is free by the time of the replay.
    for index, offset in enumerate(cu_seqlens.tolist()):
        on_device[index].fill_(offset)
    return cu_seqlens, on_device


@_forward.register_fake
def _(
    hidden, weight, targets, bias, temperature, token_temperature, logit_softcap, cu_seqlens, source_mean_logprobs,
    advantages, *rest,
):  # fmt: skip
    *_, needs, _backend = rest
    dtype = compute_dtype(hidden, weight)
    grads = (
        like.new_empty(like.shape, dtype=one_pass.result_dtype(like.dtype)) if needed else hidden.new_empty(0)
        for like, needed in zip((hidden, weight, bias), needs, strict=True)
    )
    loss, token_logprobs = hidden.new_empty((), dtype=dtype), hidden.new_empty(hidden.shape[0], dtype=dtype)
    return loss, token_logprobs, *grads, *empty_stats(advantages, dtype)


@torch.library.custom_op("hacpo_kernels::linear_policy_loss_backward", mutates_args=())
def _backward(
    grad_loss: Tensor,
    grad_hidden: Tensor,
    grad_weight: Tensor,
    grad_bias: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    # The inputs are here for their dtypes, and so that a second derivative is noticed and refused.
    likes = (hidden, weight, hidden if bias is None else bias)
    grads = (grad_hidden, grad_weight, grad_bias)
    return tuple((grad * grad_loss).to(like.dtype) for grad, like in zip(grads, likes, strict=True))


@_backward.register_fake
def _(grad_loss, grad_hidden, grad_weight, grad_bias, hidden, weight, bias):
    likes = (hidden, weight, hidden if bias is None else bias)
    grads = (grad_hidden, grad_weight, grad_bias)
    return tuple(grad.new_empty(grad.shape, dtype=like.dtype) for grad, like in zip(grads, likes, strict=True))


def _setup_context(ctx, inputs, output) -> None:
    hidden, weight, _, bias, *_, needs, _ = inputs
    ctx.save_for_backward(*output[2:5], hidden, weight, bias)
    ctx.needs = Needs(*needs)


def _autograd_backward(ctx, grad_loss: Tensor, *_unused: Tensor) -> tuple:
    grad_hidden, grad_weight, grad_bias = ctx.needs.of(_backward(grad_loss, *ctx.saved_tensors))
    return grad_hidden, grad_weight, None, grad_bias, *([None] * 14)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
refuse_double_backward(_backward, "linear_policy_loss")

"""Log-probabilities of given tokens straight from hidden states, without the [tokens, vocab] logits."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .autograd import refuse_double_backward
from .checks import (
    check_floating,
    check_integer,
    check_positive,
    check_positive_values,
    check_target_values,
    check_tensor,
)
from .dispatch import compute_dtype, implementation, resolve_backend
from .products import exact


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None = None,
    temperature: float | Tensor = 1.0,
    logit_softcap: float | None = None,
    return_entropy: bool = False,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probability (nats) of each target token under softmax(cap(hidden @ weight.T + bias) / temperature).

    cap(x) = logit_softcap * tanh(x / logit_softcap), or x without a softcap. Logits exist one tile at a time, in
    float32 whatever the dtype of the inputs (also under autocast). Differentiable once in hidden, weight and bias, with
    any gradient per token on either result; tokens whose gradient is exactly zero cost nothing in backward, and
    arguments that require no gradient get none computed. Deterministic.

    Args:
        hidden: [T, H] floating point, the final hidden states.
        weight: [V, H] floating point, the output embedding, any strides; its dtype may differ from hidden's.
        targets: [T] integer, in [0, V). There is no ignore index.
        bias: [V] floating point.
        temperature: the sampling temperature, positive: a number, or a [T] tensor with one per token.
        logit_softcap: positive, in logits.
        return_entropy: also return the entropy (nats) of the whole distribution at each token.
        backend: "auto" (Triton on CUDA, else torch), "torch", "triton", or "reference" (materialises the logits; for
            tests).

    Returns:
        logprob [T], or (logprob [T], entropy [T]): float64 if hidden or weight is float64, else float32.

    Raises:
        TypeError, ValueError: a dtype, shape, device or setting that is not as above.
        IndexError: a target outside the vocabulary, on CPU. On an accelerator, where looking would stall the host, such
            a token's logprob is NaN.
        RuntimeError: differentiating twice.
    """
    check_projection(hidden, weight, targets, bias, temperature, logit_softcap)
    backend = resolve_backend(backend, hidden, weight)
    if backend == "reference":
        return reference.linear_logprob(hidden, weight, targets, bias, temperature, logit_softcap, return_entropy)
    per_token = isinstance(temperature, Tensor)
    logprob, _, entropy = _forward(
        hidden,
        weight,
        targets,
        bias,
        1.0 if per_token else float(temperature),
        temperature if per_token else None,
        None if logit_softcap is None else float(logit_softcap),
        return_entropy,
        backend,
    )
    return (logprob, entropy) if return_entropy else logprob


def check_projection(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float | Tensor,
    logit_softcap: float | None,
) -> None:
    check_tensor("hidden", hidden, (None, None))
    check_floating("hidden", hidden)
    tokens, width = hidden.shape
    check_tensor("weight", weight, (None, width), hidden.device)
    check_floating("weight", weight)
    if weight.shape[0] == 0:
        raise ValueError("weight has no rows: the vocabulary is empty")
    check_tensor("targets", targets, (tokens,), hidden.device)
    check_integer("targets", targets)
    if bias is not None:
        check_tensor("bias", bias, (weight.shape[0],), hidden.device)
        check_floating("bias", bias)
    if isinstance(temperature, Tensor):
        check_tensor("temperature", temperature, (tokens,), hidden.device)
        check_floating("temperature", temperature)
        if temperature.requires_grad:
            raise ValueError("temperature requires a gradient, but linear_logprob is not differentiable in it")
    else:
        check_positive("temperature", temperature)
    if logit_softcap is not None:
        check_positive("logit_softcap", logit_softcap)


# Both passes are custom operators: torch.compile sees one opaque node with known shapes, and what depends on values
# (which rows are live, whether targets are in range) stays inside. A custom operator returns tensors only: an empty one
# stands for "not wanted".


@torch.library.custom_op("hacpo_kernels::linear_logprob", mutates_args=())
def _forward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    token_temperature: Tensor | None,
    logit_softcap: float | None,
    return_entropy: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    check_target_values(targets, weight.shape[0])
    if token_temperature is not None:
        check_positive_values("temperature", token_temperature)
        token_temperature = token_temperature.to(compute_dtype(hidden, weight))
    with exact(hidden.device.type):
        logprob, logsumexp, entropy = implementation(backend, "linear_logprob").forward(
            hidden,
            weight,
            targets,
            bias,
            temperature if token_temperature is None else token_temperature,
            logit_softcap,
            return_entropy,
        )
    return logprob, logsumexp, hidden.new_empty(0) if entropy is None else entropy


@_forward.register_fake
def _(hidden, weight, targets, bias, temperature, token_temperature, logit_softcap, return_entropy, backend):
    dtype = compute_dtype(hidden, weight)
    per_token = [hidden.new_empty(hidden.shape[0], dtype=dtype) for _ in range(3)]
    return per_token[0], per_token[1], per_token[2] if return_entropy else hidden.new_empty(0)


@torch.library.custom_op("hacpo_kernels::linear_logprob_backward", mutates_args=())
def _backward(
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    token_temperature: Tensor | None,
    logit_softcap: float | None,
    logsumexp: Tensor,
    entropy: Tensor | None,
    need_hidden: bool,
    need_weight: bool,
    need_bias: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    if token_temperature is not None:
        token_temperature = token_temperature.to(compute_dtype(hidden, weight))
    with exact(hidden.device.type):
        grads = implementation(backend, "linear_logprob").backward(
            grad_logprob,
            grad_entropy,
            hidden,
            weight,
            targets,
            bias,
            temperature if token_temperature is None else token_temperature,
            logit_softcap,
            logsumexp,
            entropy,
            need_hidden,
            need_weight,
            need_bias,
        )
    return tuple(hidden.new_empty(0) if grad is None else grad for grad in grads)


@_backward.register_fake
def _(
    grad_logprob, grad_entropy, hidden, weight, targets, bias, temperature, token_temperature, logit_softcap, logsumexp,
    entropy, need_hidden, need_weight, need_bias, backend,
):  # fmt: skip
    wanted = ((hidden, need_hidden), (weight, need_weight), (bias, need_bias))
    return tuple(like.new_empty(like.shape) if needed else hidden.new_empty(0) for like, needed in wanted)


def _setup_context(ctx, inputs, output) -> None:
    hidden, weight, targets, bias, temperature, token_temperature, logit_softcap, return_entropy, backend = inputs
    _, logsumexp, entropy = output
    ctx.settings = temperature, logit_softcap, return_entropy, backend
    ctx.save_for_backward(hidden, weight, targets, bias, token_temperature, logsumexp, entropy)


def _autograd_backward(ctx, grad_logprob: Tensor, _grad_logsumexp: Tensor, grad_entropy: Tensor) -> tuple:
    hidden, weight, targets, bias, token_temperature, logsumexp, entropy = ctx.saved_tensors
    temperature, logit_softcap, return_entropy, backend = ctx.settings
    needs = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    grads = _backward(
        grad_logprob,
        grad_entropy if return_entropy else None,
        hidden,
        weight,
        targets,
        bias,
        temperature,
        token_temperature,
        logit_softcap,
        logsumexp,
        entropy if return_entropy else None,
        *needs,
        backend,
    )
    grad_hidden, grad_weight, grad_bias = (grad if needed else None for grad, needed in zip(grads, needs, strict=True))
    return grad_hidden, grad_weight, None, grad_bias, None, None, None, None, None


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
refuse_double_backward(_backward, "linear_logprob")

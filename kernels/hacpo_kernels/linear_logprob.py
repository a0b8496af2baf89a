"""Log-probabilities of given tokens straight from hidden states, without the [tokens, vocab] logits."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .arguments import Head, Needs, RowGradients
from .autograd import refuse_double_backward
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
    head = Head(hidden, weight, targets, bias, temperature, logit_softcap)
    head.check()
    backend = resolve_backend(backend, hidden, weight)
    if backend == "reference":
        return reference.linear_logprob(head, return_entropy)
    logprob, _, entropy = _forward(*head.flat(), return_entropy, backend)
    return (logprob, entropy) if return_entropy else logprob


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
    """(logprob [T], logsumexp [T], entropy [T])."""
    head = Head.from_flat(hidden, weight, targets, bias, temperature, token_temperature, logit_softcap)
    head.check_values()
    with exact(hidden.device.type):
        logprob, logsumexp, entropy = implementation(backend, "linear_logprob").forward(head, return_entropy)
    return logprob, logsumexp, hidden.new_empty(0) if entropy is None else entropy


@_forward.register_fake
def _(hidden, weight, targets, bias, temperature, token_temperature, logit_softcap, return_entropy, backend):
    dtype = compute_dtype(hidden, weight)
    logprob, logsumexp = (hidden.new_empty(hidden.shape[0], dtype=dtype) for _ in range(2))
    return logprob, logsumexp, torch.empty_like(logprob) if return_entropy else hidden.new_empty(0)


@torch.library.custom_op("hacpo_kernels::linear_logprob_backward", mutates_args=())
def _backward(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    temperature: float,
    token_temperature: Tensor | None,
    logit_softcap: float | None,
    grad_logprob: Tensor,
    grad_entropy: Tensor | None,
    logsumexp: Tensor,
    entropy: Tensor | None,
    needs: list[bool],
    backend: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of hidden [T, H], weight [V, H] and bias [V]."""
    head = Head.from_flat(hidden, weight, targets, bias, temperature, token_temperature, logit_softcap)
    rows = RowGradients(grad_logprob, grad_entropy, logsumexp, entropy)
    with exact(hidden.device.type):
        grads = implementation(backend, "linear_logprob").backward(head, rows, Needs(*needs))
    return tuple(hidden.new_empty(0) if grad is None else grad for grad in grads)


@_backward.register_fake
def _(hidden, weight, targets, bias, *rest):
    *_, needs, _backend = rest
    wanted = zip((hidden, weight, bias), needs, strict=True)
    return tuple(like.new_empty(like.shape) if needed else hidden.new_empty(0) for like, needed in wanted)


def _setup_context(ctx, inputs, output) -> None:
    *head, ctx.return_entropy, ctx.backend = inputs
    hidden, weight, targets, bias, ctx.temperature, token_temperature, ctx.softcap = head
    _, logsumexp, entropy = output
    ctx.save_for_backward(hidden, weight, targets, bias, token_temperature, logsumexp, entropy)


def _autograd_backward(ctx, grad_logprob: Tensor, _grad_logsumexp: Tensor, grad_entropy: Tensor) -> tuple:
    *tensors, token_temperature, logsumexp, entropy = ctx.saved_tensors
    if not ctx.return_entropy:
        grad_entropy = entropy = None
    needs = Needs(ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[3])
    grads = _backward(
        *tensors, ctx.temperature, token_temperature, ctx.softcap,
        grad_logprob, grad_entropy, logsumexp, entropy, list(needs), ctx.backend,
    )  # fmt: skip
    grad_hidden, grad_weight, grad_bias = needs.of(grads)
    return grad_hidden, grad_weight, None, grad_bias, None, None, None, None, None


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
refuse_double_backward(_backward, "linear_logprob")

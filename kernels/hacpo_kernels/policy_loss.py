"""The clipped policy objectives of HACPO, GSPO and GRPO on packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .arguments import Objective, Responses
from .autograd import refuse_double_backward
from .checks import check_floating, check_tensor
from .dispatch import compute_dtype, implementation, resolve_backend
from .stats import PolicyLossStats, empty_stats


def policy_loss(
    token_logprobs: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    *,
    level: str = "sequence",
    own_clip_low: float = 3e-4,
    own_clip_high: float = 4e-4,
    cross_clip_lower: float = 0.8,
    cross_clip_upper: float = 1.0,
    alpha: float = 1.0,
    log_ratio_clamp: float = 10.0,
    denominator: float | None = None,
    source_token_logprobs: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, PolicyLossStats]:
    """-sum(J) / denominator over N responses laid end to end, and the quantities behind it.

    Equation numbers are those of HACPO, arXiv 2603.02604. Per response, with A its advantage:

        log_ratio = clamp(mean(token_logprobs) - source_mean_logprobs, +-log_ratio_clamp)
        s = exp(log_ratio)                                                                       (11, 48, 51)
        own:   J = min(s * A, clip(s, 1 - own_clip_low, 1 + own_clip_high) * A)                  (47)
        cross: c = clip(s, cross_clip_lower, cross_clip_upper)                                   (13, 52)
               J = c * stop_gradient(c)^alpha * capability_ratio * A                             (12, 50, 53)

    At level "token" (GRPO; own responses only) each token has its ratio exp(token_logprobs - source_token_logprobs),
    with the same clamp, clip and minimum as own responses above, and J is the mean over the response's tokens. At
    either level a response weighs the same whatever its length. The gradient is exactly zero beyond the clamp, where
    the own clip is the minimum, and outside the cross clip range for either sign of A. Differentiable once, in
    token_logprobs only. Deterministic; makes no host synchronisation on an accelerator.

    Args:
        token_logprobs: [T] floating point, nats, of the packed response tokens under the policy being trained.
        cu_seqlens: [N + 1] integer, from 0 to T: response n is tokens cu_seqlens[n] to cu_seqlens[n + 1]. Empty ones
            contribute nothing but their place in the default denominator.
        source_mean_logprobs: [N] nats, the mean over the response's own tokens, under the policy that sampled it, at
            sampling time.
        advantages: [N], the learner's, before the capability ratio.
        is_own: [N] bool, whether the learner itself sampled the response.
        capability_ratio: [N], capability of the source over the learner's (Eq. 10); ignored for own responses.
        level: "sequence" or "token".
        own_clip_low, own_clip_high: distances from 1, >= 0.
        cross_clip_lower, cross_clip_upper: the range itself. For HACPO's stepwise clip pass
            min(1, 1 - delta + m * delta_step) and 1; for no clip 0 and infinity.
        alpha: exponent of the cross ratio's constant factor, >= 0.
        log_ratio_clamp: nats, positive.
        denominator: N if None. Micro-batches of one mini-batch pass the mini-batch's N, and their losses add up to its.
        source_token_logprobs: [T] nats, per token what source_mean_logprobs is the mean of; needed at level "token".
        backend: "auto" (Triton on CUDA, else torch), "torch", "triton", or "reference" (loops over the responses; for
            tests).

    Returns:
        (loss [], PolicyLossStats): float64 if token_logprobs is float64, else float32.

    Raises:
        TypeError, ValueError: a dtype, shape, device or setting that is not as above. Values (cu_seqlens, cross
            responses at level "token") are looked at on CPU only; on an accelerator the former are taken on trust, and
            the latter make the loss NaN.
        RuntimeError: differentiating twice.
    """
    check_tensor("token_logprobs", token_logprobs, (None,))
    check_floating("token_logprobs", token_logprobs)
    responses = Responses(cu_seqlens, source_mean_logprobs, advantages, is_own, capability_ratio, source_token_logprobs)
    responses.check(token_logprobs.shape[0], token_logprobs.device)
    responses = responses.at_level(level)
    objective = Objective(
        own_clip_low, own_clip_high, cross_clip_lower, cross_clip_upper, alpha, log_ratio_clamp, denominator
    )
    objective.check()
    backend = resolve_backend(backend, token_logprobs)
    if backend == "reference":
        return reference.policy_loss(token_logprobs, responses, objective)
    loss, _, *stats = _forward(token_logprobs, *responses, *objective.flat(), backend)
    return loss, PolicyLossStats(*(stat.detach() for stat in stats))


# Custom operators, so that torch.compile sees opaque nodes and value checks stay inside. The forward pass knows the
# gradient of a scalar loss already; backward scales it.


@torch.library.custom_op("hacpo_kernels::policy_loss", mutates_args=())
def _forward(
    token_logprobs: Tensor,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    source_token_logprobs: Tensor | None,
    objective: list[float],
    denominator: float | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(loss [], d loss / d token_logprobs [T], then the seven fields of PolicyLossStats)."""
    responses = Responses(cu_seqlens, source_mean_logprobs, advantages, is_own, capability_ratio, source_token_logprobs)
    responses.check_values(token_logprobs.shape[0])
    return implementation(backend, "policy_loss").forward(
        token_logprobs, responses, Objective.from_flat(objective, denominator, advantages.shape[0])
    )


@_forward.register_fake
def _(token_logprobs, cu_seqlens, source_mean_logprobs, advantages, *_rest):
    dtype = compute_dtype(token_logprobs)
    loss = token_logprobs.new_empty((), dtype=dtype)
    return loss, token_logprobs.new_empty(token_logprobs.shape, dtype=dtype), *empty_stats(advantages, dtype)


@torch.library.custom_op("hacpo_kernels::policy_loss_backward", mutates_args=())
def _backward(grad_loss: Tensor, token_gradient: Tensor, token_logprobs: Tensor) -> Tensor:
    # token_logprobs is here for its dtype, and so that a second derivative is noticed and refused.
    return (grad_loss * token_gradient).to(token_logprobs.dtype)


@_backward.register_fake
def _(grad_loss, token_gradient, token_logprobs):
    return token_logprobs.new_empty(token_logprobs.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(output[1], inputs[0])


def _autograd_backward(ctx, grad_loss: Tensor, *_unused: Tensor) -> tuple:
    return _backward(grad_loss, *ctx.saved_tensors), *([None] * 9)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
refuse_double_backward(_backward, "policy_loss")

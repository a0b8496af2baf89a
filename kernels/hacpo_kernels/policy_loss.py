"""The clipped policy objectives of HACPO, GSPO and GRPO on packed sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from . import reference
from .autograd import refuse_double_backward
from .checks import (
    check_cu_seqlens_values,
    check_floating,
    check_integer,
    check_positive,
    check_tensor,
)
from .dispatch import compute_dtype, implementation, resolve_backend
from .stats import PolicyLossStats

LEVELS = ("sequence", "token")


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
            responses at level "token") are looked at on CPU only; on an accelerator the latter make the loss NaN.
        RuntimeError: differentiating twice.
    """
    check_tensor("token_logprobs", token_logprobs, (None,))
    check_floating("token_logprobs", token_logprobs)
    tokens, device = token_logprobs.shape[0], token_logprobs.device
    check_sequences(
        tokens, device, cu_seqlens, source_mean_logprobs, advantages, is_own, capability_ratio, source_token_logprobs
    )
    check_settings(
        level, own_clip_low, own_clip_high, cross_clip_lower, cross_clip_upper, alpha, log_ratio_clamp, denominator
    )
    if level == "token" and source_token_logprobs is None:
        raise ValueError('level="token" needs source_token_logprobs')
    backend = resolve_backend(backend, token_logprobs)
    if backend == "reference":
        return reference.policy_loss(
            token_logprobs,
            cu_seqlens,
            source_mean_logprobs,
            advantages,
            is_own,
            capability_ratio,
            level=level,
            own_clip_low=own_clip_low,
            own_clip_high=own_clip_high,
            cross_clip_lower=cross_clip_lower,
            cross_clip_upper=cross_clip_upper,
            alpha=alpha,
            log_ratio_clamp=log_ratio_clamp,
            denominator=denominator,
            source_token_logprobs=source_token_logprobs,
        )
    loss, _, *stats = _forward(
        token_logprobs,
        cu_seqlens,
        source_mean_logprobs,
        advantages,
        is_own,
        capability_ratio,
        source_token_logprobs if level == "token" else None,
        float(own_clip_low),
        float(own_clip_high),
        float(cross_clip_lower),
        float(cross_clip_upper),
        float(alpha),
        float(log_ratio_clamp),
        None if denominator is None else float(denominator),
        backend,
    )
    return loss, PolicyLossStats(*(stat.detach() for stat in stats))


def check_sequences(
    tokens: int,
    device: torch.device,
    cu_seqlens: Tensor,
    source_mean_logprobs: Tensor,
    advantages: Tensor,
    is_own: Tensor,
    capability_ratio: Tensor,
    source_token_logprobs: Tensor | None,
    cu_seqlens_device: torch.device | None = None,
) -> None:
    check_tensor("cu_seqlens", cu_seqlens, (None,), cu_seqlens_device or device)
    check_integer("cu_seqlens", cu_seqlens)
    if cu_seqlens.shape[0] == 0:
        raise ValueError("cu_seqlens is empty; without sequences it is [0]")
    sequences = cu_seqlens.shape[0] - 1
    per_sequence = {
        "source_mean_logprobs": source_mean_logprobs,
        "advantages": advantages,
        "capability_ratio": capability_ratio,
    }
    for name, tensor in per_sequence.items():
        check_tensor(name, tensor, (sequences,), device)
        check_floating(name, tensor)
    check_tensor("is_own", is_own, (sequences,), device)
    if is_own.dtype != torch.bool:
        raise TypeError(f"is_own must have dtype torch.bool, got {is_own.dtype}")
    if source_token_logprobs is not None:
        check_tensor("source_token_logprobs", source_token_logprobs, (tokens,), device)
        check_floating("source_token_logprobs", source_token_logprobs)


def check_settings(
    level: str,
    own_clip_low: float,
    own_clip_high: float,
    cross_clip_lower: float,
    cross_clip_upper: float,
    alpha: float,
    log_ratio_clamp: float,
    denominator: float | None,
) -> None:
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(repr, LEVELS))}, got {level!r}")
    for name, value in {"own_clip_low": own_clip_low, "own_clip_high": own_clip_high, "alpha": alpha}.items():
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    if not 0 <= cross_clip_lower <= cross_clip_upper:
        raise ValueError(
            f"0 <= cross_clip_lower <= cross_clip_upper must hold, got {cross_clip_lower} and {cross_clip_upper}"
        )
    check_positive("log_ratio_clamp", log_ratio_clamp, finite=False)
    if denominator is not None:
        check_positive("denominator", denominator)


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
    own_clip_low: float,
    own_clip_high: float,
    cross_clip_lower: float,
    cross_clip_upper: float,
    alpha: float,
    log_ratio_clamp: float,
    denominator: float | None,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(loss [], d loss / d token_logprobs [T], then the seven fields of PolicyLossStats)."""
    check_cu_seqlens_values(cu_seqlens, token_logprobs.shape[0])
    if source_token_logprobs is not None and is_own.device.type == "cpu" and not is_own.all():
        raise ValueError('level="token" is defined for own responses only, but is_own has False in it')
    return implementation(backend, "policy_loss").forward(
        token_logprobs,
        cu_seqlens,
        source_mean_logprobs,
        advantages,
        is_own,
        capability_ratio,
        source_token_logprobs,
        own_clip_low,
        own_clip_high,
        cross_clip_lower,
        cross_clip_upper,
        alpha,
        log_ratio_clamp,
        max(advantages.shape[0], 1) if denominator is None else denominator,
    )


@_forward.register_fake
def _(token_logprobs, cu_seqlens, source_mean_logprobs, advantages, *rest):
    dtype = compute_dtype(token_logprobs)
    values = [advantages.new_empty(advantages.shape, dtype=dtype) for _ in range(4)]
    flags = [advantages.new_empty(advantages.shape, dtype=torch.bool) for _ in range(3)]
    loss = token_logprobs.new_empty((), dtype=dtype)
    return loss, token_logprobs.new_empty(token_logprobs.shape, dtype=dtype), *values, *flags


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
    return _backward(grad_loss, *ctx.saved_tensors), *([None] * 14)


_forward.register_autograd(_autograd_backward, setup_context=_setup_context)
refuse_double_backward(_backward, "policy_loss")

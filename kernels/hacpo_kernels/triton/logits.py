"""What happens to a logit between the matrix product and the softmax: bias, softcap, temperature; and its gradient.

Kernels work with base-2 logits z = cap(hidden . weight + bias) * log2(e) / temperature, because exp2 is what the chip
computes.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def tanh(x):
    """1e-7 absolute, and relative near 0, where the quotient of exponentials would lose digits."""
    magnitude = tl.abs(x)
    decay = tl.exp(-2.0 * magnitude)
    large = (1.0 - decay) / (1.0 + decay)
    square = x * x
    small = magnitude * (1.0 + square * (-0.33333334 + square * (0.13333334 + square * -0.053968254)))
    result = tl.where(magnitude < 0.2, small, large)
    return tl.where(x < 0, -result, result)


@triton.jit
def cap(logits, softcap):
    return softcap * tanh(logits / softcap)


@triton.jit
def online_update(z, maximum, total, weighted, ENTROPY: tl.constexpr):
    """Fold the tile z [rows, columns] into running max, sum of 2^(z - max) and sum of 2^(z - max) * (z - max), [rows].

    -inf is the identity of max and stands for "nothing yet"; it is replaced before it is subtracted from itself.
    """
    larger = tl.maximum(maximum, tl.max(z, 1))
    safe = tl.where(larger == -float("inf"), 0.0, larger)
    exps = tl.exp2(z - safe[:, None])
    shrink = tl.exp2(maximum - safe)
    if ENTROPY:
        shift = tl.where(maximum == -float("inf"), 0.0, maximum - safe)
        terms = tl.where(exps > 0, exps * (z - safe[:, None]), 0.0)  # no 0 * -inf at masked entries
        weighted = shrink * (weighted + total * shift) + tl.sum(terms, 1)
    total = total * shrink + tl.sum(exps, 1)
    return larger, total, weighted


@triton.jit
def logit_gradient(z, logsumexp, at_target, grad, grad_entropy, entropy, ENTROPY: tl.constexpr):
    """d loss / d (logits / temperature): grad * (onehot - p) - grad_entropy * p * (log p + entropy).

    z is base 2, the rest natural; rows vectors come as [rows, 1].
    """
    log2_p = z - logsumexp * LOG2_E
    p = tl.exp2(log2_p)
    result = tl.where(at_target, grad, 0.0) - grad * p
    if ENTROPY:
        result -= tl.where(p > 0, grad_entropy * p * (log2_p * LN_2 + entropy), 0.0)
    return result

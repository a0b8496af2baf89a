"""Problems for linear_logprob, and one call of it with all its gradients."""

from __future__ import annotations

import torch

from hacpo_kernels import linear_logprob

# Inputs of each dtype are converted to float64 exactly, so this is the error of the arithmetic alone.
LOGPROB_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5, torch.float16: 1e-5}
# Gradients are accumulated in float32 or float64 and rounded once, to the dtype of their tensor: half a unit of it.
GRADIENT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def problem(tokens, width, vocab, *, bias=False, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = (torch.randn(vocab, width, generator=generator, dtype=torch.float64) / width**0.5).to(dtype)
    targets = torch.randint(vocab, (tokens,), generator=generator)
    offset = torch.randn(vocab, generator=generator, dtype=torch.float64).to(dtype) if bias else None
    return hidden, weight, targets, offset


def run(hidden, weight, targets, bias=None, *, upstream=None, upstream_entropy=None, **options):
    """(results, gradients) of the weighted sum of the results; the tensors given are not touched."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (hidden, weight, bias)]
    logprob, entropy = linear_logprob(leaves[0], leaves[1], targets, leaves[2], return_entropy=True, **options)
    loss = 0.0
    for result, weights in ((logprob, upstream), (entropy, upstream_entropy)):
        if weights is not None:
            loss = loss + (result * weights.to(result.dtype)).sum()
    loss.backward()
    return (logprob.detach(), entropy.detach()), [leaf.grad for leaf in leaves if leaf is not None]


def assert_close(actual, expected, tolerance):
    """Relative to the largest expected value."""
    expected = expected.double()
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance * scale)

"""linear_policy_loss beside the two operators it replaces and its peers."""

from __future__ import annotations

import math

import pytest
import torch
from measure import PHASES, SIZES, measure, projection
from peers import LINEAR_POLICY


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", LINEAR_POLICY)
def test_linear_policy_loss(benchmark, name, size, phase):
    benchmark.group = f"linear_policy_loss {size} {phase}"
    hidden, weight, targets = projection(size)
    lengths = [size.tokens // size.responses] * size.responses
    # With unit-variance logits a target's logprob is about -log(V) - 1/2, so ratios are near 1.
    source = torch.full((size.responses,), -math.log(size.vocab) - 0.5, device=hidden.device)
    advantages = torch.linspace(-1, 1, size.responses, device=hidden.device)
    measure(
        benchmark, phase, lambda: LINEAR_POLICY[name](hidden, weight, targets, lengths, source, advantages),
        [hidden, weight],
    )  # fmt: skip

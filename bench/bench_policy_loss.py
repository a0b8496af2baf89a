"""policy_loss beside the plain way: packed responses, sequence-level ratios."""

from __future__ import annotations

import pytest
import torch
from measure import PHASES, measure
from peers import DEVICE, POLICY

RESPONSES, LENGTH = (512, 1000) if DEVICE == "cuda" else (64, 500)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", POLICY)
def test_policy_loss(benchmark, name, phase):
    benchmark.group = f"policy_loss N{RESPONSES}-L{LENGTH} {phase}"
    logprobs = -torch.rand(RESPONSES * LENGTH, device=DEVICE)
    source = logprobs.view(RESPONSES, LENGTH).mean(1) + 0.01
    advantages = torch.linspace(-1, 1, RESPONSES, device=DEVICE)
    logprobs.requires_grad_()
    measure(benchmark, phase, lambda: POLICY[name](logprobs, [LENGTH] * RESPONSES, source, advantages), [logprobs])

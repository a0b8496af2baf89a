"""The worked cases of tests/data/hacpo_step.json: capability, baseline and advantage in float64."""

import json
from pathlib import Path

import pytest
import torch

from hacpo_fast.algorithm.advantage import joint_advantages
from hacpo_fast.algorithm.capability import CapabilityTracker, capability_ratios
from hacpo_fast.config import AdvantageConfig, CapabilityConfig

CASES = json.loads((Path(__file__).parents[1] / "data" / "hacpo_step.json").read_text())


@pytest.fixture(params=range(len(CASES)))
def case(request):
    return CASES[request.param]


def capability_settings(case):
    return CapabilityConfig(
        window=case["window"], floor=case["floor"], ratio_min=case["ratio_min"], ratio_max=case["ratio_max"]
    )


def flat(case):
    rows = [
        (reward, prompt, case["agents"].index(agent))
        for prompt, group in enumerate(case["groups"])
        for agent, reward in group
    ]
    rewards, prompt, source = zip(*rows, strict=True)
    return torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompt), torch.tensor(source)


def test_capability(case):
    tracker = CapabilityTracker(case["agents"], capability_settings(case))
    for past in case["history"]:
        capability = tracker.update({agent: torch.tensor([mean], dtype=torch.float64) for agent, mean in past.items()})
    assert capability == pytest.approx(case["capability"], rel=1e-9, abs=0)


def test_advantages_and_ratios(case):
    rewards, prompt, source = flat(case)
    capability = torch.tensor([case["capability"][agent] for agent in case["agents"]], dtype=torch.float64)
    ratios = capability_ratios(capability, capability_settings(case))
    settings = AdvantageConfig(eps=case["eps"], reward_max=case["reward_max"])
    for name, expected in case["learners"].items():
        learner = case["agents"].index(name)
        got = joint_advantages(rewards, prompt, source, ratios, learner, settings)
        baseline = torch.tensor(expected["baseline"], dtype=torch.float64)[prompt]
        torch.testing.assert_close(got.baseline, baseline, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(got.advantage.tolist(), expected["advantage"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            ratios[learner, source].tolist(), expected["omega_source_over_learner"], rtol=1e-9, atol=1e-9
        )

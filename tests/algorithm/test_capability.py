import pytest
import torch

from hacpo_fast.algorithm.capability import CapabilityTracker, capability_ratios
from hacpo_fast.config import CapabilityConfig


def test_window_holds_the_last_steps_with_the_current_one():
    tracker = CapabilityTracker(["a"], CapabilityConfig(window=2))
    for mean in (0.0, 0.5, 1.0):
        capability = tracker.update({"a": torch.tensor([mean])})
    assert capability == {"a": 0.75}


def test_positive_rate_counts_rewards_above_zero():
    tracker = CapabilityTracker(["a"], CapabilityConfig(metric="positive_rate"))
    assert tracker.update({"a": torch.tensor([0.0, 0.1, 2.0, -1.0])}) == {"a": 0.5}


def test_floor_and_a_step_without_responses():
    tracker = CapabilityTracker(["a", "b"], CapabilityConfig(floor=0.25))
    assert tracker.update({"a": torch.zeros(3), "b": torch.zeros(0)}) == {"a": 0.25, "b": 0.25}


def test_ratios_are_bounded_and_each_others_inverse():
    ratios = capability_ratios(torch.tensor([1e-8, 0.5, 0.4]), CapabilityConfig())
    assert ratios[0].tolist() == [1.0, 10.0, 10.0]
    assert ratios[1, 2] * ratios[2, 1] == pytest.approx(1)
    assert ratios[1, 0] * ratios[0, 1] == pytest.approx(1)  # bounds .1 and 10 are inverse too


def test_state_survives():
    tracker = CapabilityTracker(["a"], CapabilityConfig())
    tracker.update({"a": torch.tensor([0.5])})
    other = CapabilityTracker(["a"], CapabilityConfig())
    other.load_state_dict(tracker.state_dict())
    assert other.capabilities() == tracker.capabilities()

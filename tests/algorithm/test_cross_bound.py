"""The adaptive lower end: a quantile of what was measured, carried from step to step."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hacpo_fast.algorithm.cross_bound import WINDOW, CrossBound, live_bound
from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.config import AlgorithmConfig

RATIOS = st.lists(st.floats(0, 3, width=32), min_size=1, max_size=60)
TARGET = st.floats(0.05, 1)


def bound(**changes):
    return CrossBound(AlgorithmConfig(cross_bound="adaptive", **changes))


def see(tracker, ratios, updates_done=0, cross=None):
    ratios = torch.tensor(ratios, dtype=torch.float32)
    cross = torch.ones(len(ratios), dtype=torch.bool) if cross is None else torch.tensor(cross)
    tracker.observe(ratios, cross, updates_done)


def live_share(ratios, updates, algorithm):
    """Plainly, response by response, by the range that the loss is given."""
    live = 0
    for ratio, done in zip(ratios, updates, strict=True):
        lower = algorithm.cross_lower + done * algorithm.cross_lower_step
        live += lower <= ratio <= algorithm.cross_upper
    return live / len(ratios)


@given(RATIOS, TARGET, st.sampled_from([1.0, 1.5]), st.integers(0, 3), st.data())
def test_under_the_new_end_the_target_share_of_what_was_seen_is_live(ratios, target, upper, most, data):
    updates = data.draw(st.lists(st.integers(0, most), min_size=len(ratios), max_size=len(ratios)))
    tracker = bound(cross_live_target=target, cross_upper=upper)
    for done in sorted(set(updates)):
        see(tracker, [r for r, d in zip(ratios, updates, strict=True) if d == done], done)
    tracker.end_step()
    settings = tracker.applied(tracker.settings)
    assert 0 <= settings.cross_lower <= 1
    ratios = np.array(ratios, dtype=np.float32).astype(np.float64)
    share = live_share(ratios, updates, settings.model_copy(update={"cross_lower": settings.cross_lower - 1e-9}))
    wanted = int(np.ceil(target * len(ratios) - 1e-12))
    reachable = live_share(ratios, updates, settings.model_copy(update={"cross_lower": 0.0}))
    if settings.cross_lower < 1:
        assert share >= min(wanted / len(ratios), reachable)
    if settings.cross_lower > 0:  # not one more than asked for, but for equal ones
        above = live_share(ratios, updates, settings.model_copy(update={"cross_lower": settings.cross_lower + 1e-9}))
        assert above < wanted / len(ratios) or settings.cross_lower == 1


@given(RATIOS, TARGET, TARGET)
def test_more_is_kept_by_a_lower_end(ratios, one, other):
    low, high = sorted((one, other))
    values = torch.tensor(ratios, dtype=torch.float64)
    assert live_bound(values, high) <= live_bound(values, low)
    assert live_bound(values.flip(0), low) == live_bound(values, low)  # the order they came in does not matter


def test_a_hand_worked_case():
    tracker = bound(cross_live_target=0.5, cross_lower_step=0.1)
    see(tracker, [0.9, 0.5, 1.2, 0.3], updates_done=0, cross=[True, True, True, False])
    see(tracker, [0.8, 0.6, 0.7], updates_done=2)
    tracker.end_step()
    # 0.9, 0.5, -inf and 0.6, 0.4, 0.5: three of six are wanted
    assert tracker.lower == pytest.approx(0.5)
    see(tracker, [0.25, 0.75])
    tracker.end_step()
    assert tracker.lower == pytest.approx((0.5 + 0.75) / 2)


def test_until_something_is_measured_and_without_others_the_setting_holds():
    tracker = bound(cross_lower=0.7)
    assert tracker.lower == 0.7
    see(tracker, [0.1, 0.2], cross=[False, False])
    tracker.end_step()
    assert tracker.lower == 0.7
    see(tracker, [0.1, 0.2])
    assert tracker.lower == 0.7  # never within a step
    tracker.end_step()
    assert tracker.lower == pytest.approx(0.2)


def test_a_fixed_end_stays():
    tracker = CrossBound(AlgorithmConfig(cross_lower=0.6))
    see(tracker, [0.1, 0.2])
    tracker.end_step()
    assert tracker.lower == 0.6 and tracker.state_dict() == []
    assert loss_arguments(tracker.applied(tracker.settings), 2) == loss_arguments(tracker.settings, 2)


def test_only_the_last_steps_count_and_the_state_is_all():
    tracker = bound(cross_live_target=1.0)
    for value in np.linspace(0.1, 0.9, WINDOW + 2):
        see(tracker, [float(value)])
        tracker.end_step()
    assert len(tracker.state_dict()) == WINDOW
    again = bound(cross_live_target=1.0)
    again.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert again.lower == tracker.lower
    for each in (tracker, again):
        see(each, [1 / 3])
        each.end_step()
    assert again.lower == tracker.lower


def test_a_ratio_that_is_not_a_number_counts_as_out_of_range():
    tracker = bound(cross_live_target=0.5)
    see(tracker, [float("nan"), float("inf"), 0.4, 0.6])
    tracker.end_step()
    assert tracker.lower == pytest.approx(0.4)

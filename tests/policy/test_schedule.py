from __future__ import annotations

import pytest

from hacpo_fast.policy.schedule import lr_factor


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_rises_over_the_warmup_and_never_is_zero(schedule):
    factors = [lr_factor(step, 20, 4, schedule) for step in range(20)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(0 < factor <= 1 for factor in factors)
    assert factors[5:] == sorted(factors[5:], reverse=True)


def test_without_warmup_starts_at_one_and_ends_after_the_last_step():
    assert [lr_factor(step, 4, 0, "linear") for step in range(5)] == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert [lr_factor(step, 2, 0, "cosine") for step in range(3)] == pytest.approx([1, 0.5, 0])
    assert {lr_factor(step, 4, 0, "constant") for step in range(9)} == {1.0}


def test_warmup_as_long_as_the_run():
    assert lr_factor(3, 3, 3, "linear") == 1.0
    assert lr_factor(9, 3, 3, "cosine") == 0.0

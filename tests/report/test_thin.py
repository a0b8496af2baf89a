from __future__ import annotations

import math
import random

import pytest

from hacpo_fast.report.thin import evenly, kept_points


def noise(count, seed):
    draw = random.Random(seed)
    return [draw.gauss(0, 1) for _ in range(count)]


@pytest.mark.parametrize("count", [41, 100, 1999, 5000])
def test_a_thinned_curve_keeps_its_extremes_and_its_ends(count):
    values = noise(count, seed=count)
    kept = kept_points([values], most=40)
    assert len(kept) <= 40 and kept == sorted(set(kept))
    assert kept[0] == 0 and kept[-1] == count - 1
    # Reference: every one of the 18 stretches keeps its own lowest and highest value.
    for stretch in range(18):
        part = range(count * stretch // 18, count * (stretch + 1) // 18)
        assert min(values[place] for place in part) in [values[place] for place in kept if place in part]
        assert max(values[place] for place in part) in [values[place] for place in kept if place in part]


def test_one_outlier_among_many_steps_is_kept():
    values = [0.5] * 100_000
    values[77_777] = -3.0
    assert 77_777 in kept_points([values], most=2000)


def test_a_band_keeps_the_extremes_of_its_edges():
    values, spread = noise(3000, seed=1), [abs(x) for x in noise(3000, seed=2)]
    edges = [[v + sign * s for v, s in zip(values, spread, strict=True)] for sign in (-1, 1)]
    kept = kept_points([values, *edges], most=200)
    assert len(kept) <= 200
    assert {edges[0].index(min(edges[0])), edges[1].index(max(edges[1])), values.index(max(values))} <= set(kept)


def test_gaps_stay_gaps_and_short_curves_stay_whole():
    values = [1.0] * 400 + [math.nan] * 400 + [2.0] * 400
    kept = kept_points([values], most=50)
    assert any(math.isnan(values[place]) for place in kept)
    assert kept_points([values], most=1200) == list(range(1200))
    assert kept_points([[]], most=5) == []
    values = [math.nan] * 3 + [1.0] * 997 + [math.nan] * 3
    assert {3, 999} <= set(kept_points([values], most=50))


def test_evenly_spaced_positions():
    assert evenly(5, 9) == [0, 1, 2, 3, 4]
    assert evenly(100, 4) == [0, 33, 66, 99]
    assert evenly(100, 1) == [99] and evenly(0, 3) == []

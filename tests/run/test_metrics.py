from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.run.metrics import Accumulator, pass_at_k, summarise_samples

finite = st.floats(-1e3, 1e3)
weighted = st.lists(st.tuples(finite, st.floats(0.01, 100)), min_size=1, max_size=30)


def accumulate(pairs, cuts):
    accumulator = Accumulator()
    edges = [0, *sorted(cut % (len(pairs) + 1) for cut in cuts), len(pairs)]
    for start, end in itertools.pairwise(edges):  # empty pieces too
        values, weights = ([pair[i] for pair in pairs[start:end]] for i in (0, 1))
        accumulator.add("x", torch.tensor(values), torch.tensor(weights))
    return accumulator


@settings(deadline=None, max_examples=50)
@given(weighted, st.lists(st.integers(0, 30), max_size=6))
def test_any_split_into_micro_batches_gives_the_same_means(pairs, cuts):
    pairs = [(float(np.float32(value)), float(np.float32(weight))) for value, weight in pairs]
    values, weights = np.array(pairs).T
    mean = np.average(values, weights=weights)
    spread = math.sqrt(np.average((values - mean) ** 2, weights=weights))
    got = accumulate(pairs, cuts)
    assert got.means()["x"] == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert got.spreads()["x"] == pytest.approx(spread, rel=1e-4, abs=1e-3)


def test_a_mean_of_micro_batch_means_would_be_wrong():
    accumulator = Accumulator()
    accumulator.add("x", [0.0, 0.0, 0.0])
    accumulator.add("x", [1.0])
    assert accumulator.means() == {"x": 0.25}
    assert accumulator.spreads()["x"] == pytest.approx(math.sqrt(3) / 4)


def test_a_mean_over_n_counts_n_times():
    accumulator = Accumulator()
    accumulator.add("x", 0.2, weight=30)
    accumulator.add("x", 0.8, weight=10)
    assert accumulator.means()["x"] == pytest.approx(0.35)


def test_numbers_arrays_booleans_and_tensors_of_any_shape():
    accumulator = Accumulator()
    accumulator.add("x", 1)
    accumulator.add("x", np.array([[1.0, 0.0]], dtype=np.float32))
    accumulator.add("x", torch.tensor([True, False]), torch.tensor([True, True]))
    accumulator.add("x", torch.tensor(0.0, requires_grad=True))
    assert accumulator.means() == {"x": 0.5}
    assert accumulator.totals() == {"x": 3.0}


def test_what_has_no_weight_has_no_mean_and_masked_nan_does_no_harm():
    accumulator = Accumulator()
    accumulator.add("nothing", torch.empty(0))
    accumulator.add("masked", torch.tensor([math.nan, math.inf]), torch.tensor([0.0, 0.0]))
    accumulator.add("half", torch.tensor([math.nan, 3.0]), torch.tensor([0.0, 2.0]))
    assert accumulator.means() == {"half": 3.0}
    assert accumulator.spreads() == {"half": 0.0}
    assert accumulator.totals()["nothing"] == 0.0


def test_nan_that_counts_is_seen():
    accumulator = Accumulator()
    accumulator.add("x", [1.0, math.nan])
    assert math.isnan(accumulator.means()["x"])
    assert math.isnan(accumulator.spreads()["x"])


def test_the_spread_of_ratios_close_to_one_survives():
    ratios = 1 + 3e-4 * torch.randn(10_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    accumulator = Accumulator()
    for part in ratios.split(777):
        accumulator.add("ratio", part)
    assert accumulator.spreads()["ratio"] == pytest.approx(ratios.std(correction=0).item(), rel=1e-6)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(numbers):
    n, c, k = numbers
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_many_samples_and_of_nonsense():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    for n, c, k in ((4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)):
        with pytest.raises(ValueError, match="pass@k needs"):
            pass_at_k(n, c, k)


def test_summary_of_several_samples():
    scores = summarise_samples([[1.0, 0.0, 0.5, 0.0, 0.0], [0.0, 0.2, 0.0, 0.0, 0.0]])
    assert list(scores) == ["avg@5", "pass@1", "pass@2", "pass@4", "best@5", "problems"]
    assert scores["avg@5"] == pytest.approx(0.17)
    assert [scores[f"pass@{k}"] for k in (1, 2, 4)] == pytest.approx([0.1, 0.2, 0.4])
    assert scores["best@5"] == pytest.approx(0.6)
    assert scores["problems"] == 2


def test_summary_of_one_sample_and_of_none():
    assert summarise_samples(torch.tensor([[2.0], [1.0]]), reward_max=2.0) == {
        "accuracy": 0.5,
        "reward": 1.5,
        "problems": 2,
    }
    for wrong in ([], [1.0], [[]]):
        with pytest.raises(ValueError, match=r"\[problems, n\]"):
            summarise_samples(wrong)

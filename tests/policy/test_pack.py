from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.policy import packing
from hacpo_fast.policy.packing import pack

lengths_and_budget = st.tuples(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 50))


def pack_plainly(lengths: list[int], budget: int) -> list[list[int]]:
    """Best-fit decreasing by looking at every bin; of equally full ones the last that was filled."""
    bins: list[list[int]] = []
    room: list[int] = []
    filled: list[int] = []
    for turn, index in enumerate(sorted(range(len(lengths)), key=lambda index: -lengths[index])):
        fitting = [number for number in range(len(bins)) if room[number] >= lengths[index]]
        if fitting:
            chosen = min(fitting, key=lambda number: (room[number], -filled[number]))
        else:
            chosen = len(bins)
            bins.append([])
            room.append(budget)
            filled.append(turn)
        bins[chosen].append(index)
        room[chosen] -= lengths[index]
        filled[chosen] = turn
    return [sorted(members) for members in bins]


@settings(max_examples=300, deadline=None)
@given(lengths_and_budget)
def test_equals_plain_best_fit_decreasing(case):
    lengths, budget = case
    assert [members.tolist() for members in pack(np.array(lengths, np.int64), budget)] == pack_plainly(lengths, budget)


@settings(max_examples=200, deadline=None)
@given(lengths_and_budget)
def test_every_sequence_once_and_bins_within_budget(case):
    lengths, budget = np.array(case[0], np.int64), case[1]
    bins = pack(lengths, budget)
    assert sorted(np.concatenate(bins).tolist() if bins else []) == list(range(len(lengths)))
    for members in bins:
        assert members.dtype == np.int64 and len(members)
        assert lengths[members].sum() <= budget or len(members) == 1
    # Two bins that fit into one would be a fault of any best-fit packing.
    sums = sorted(lengths[members].sum() for members in bins)
    assert len(sums) < 2 or sums[0] + sums[1] > budget


def test_fills_bins_of_lognormal_lengths():
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, 20_000).astype(np.int64), 1, 16_384)
    bins = pack(lengths, 16_384)
    assert lengths.sum() / (len(bins) * 16_384) >= 0.99


def test_edges():
    assert pack(np.array([], np.int64), 4) == []
    assert [b.tolist() for b in pack(np.array([0, 0]), 4)] == [[0, 1]]
    assert [b.tolist() for b in pack(np.array([9, 0, 4]), 4)] == [[0], [1, 2]]
    assert [b.tolist() for b in pack(np.array([3, 3]), 2**62)] == [[0, 1]]  # no table of the budget's size


@pytest.mark.parametrize(
    ("lengths", "budget", "message"),
    [([1, -2], 4, "negative"), ([1], 0, "budget"), ([1.5], 4, "integers"), ([[1]], 4, "vector")],
)
def test_refuses(lengths, budget, message):
    with pytest.raises(ValueError, match=message):
        pack(np.array(lengths), budget)


def test_compiles_without_a_folder_to_cache_in(monkeypatch):
    def njit(*functions, cache=False):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.core.registry.CPUDispatcher(*functions)

    monkeypatch.setattr(packing.numba, "njit", njit)
    assert packing._compiled(lambda number: number + 1)(2) == 3

from __future__ import annotations

import heapq
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.policy.balance import balance

costs_and_ranks = st.tuples(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 6), st.booleans())


def balance_plainly(costs: list[int], ranks: int, equal_counts: bool) -> list[list[int]]:
    """The largest differencing method with lists of items in place of numbers and links."""

    def entry(number, piles):
        piles = sorted(piles, key=lambda pile: -sum(costs[i] for i in pile))  # stable
        loads = [sum(costs[i] for i in pile) for pile in piles]
        return loads[-1] - loads[0], number, piles

    order = sorted(range(len(costs)), key=lambda i: -costs[i])
    size = ranks if equal_counts else 1
    groups = [order[start : start + size] for start in range(0, len(order), size)] or [[]]
    heap = [
        entry(number, [[i] for i in group] + [[] for _ in range(ranks - len(group))])
        for number, group in enumerate(groups)
    ]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, number, piles), (_, _, others) = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, entry(number, [a + b for a, b in zip(piles, reversed(others), strict=True)]))
    return [sorted(pile) for pile in heap[0][2]]


@settings(max_examples=150, deadline=None)
@given(costs_and_ranks)
def test_equals_plain_differencing(case):
    costs, ranks, equal_counts = case
    parts = balance(np.array(costs, np.int64), ranks, equal_counts)
    assert [part.tolist() for part in parts] == balance_plainly(costs, ranks, equal_counts)


@settings(max_examples=100, deadline=None)
@given(costs_and_ranks)
def test_every_item_once_and_loads_alike(case):
    costs, ranks, equal_counts = np.array(case[0], np.int64), case[1], case[2]
    parts = balance(costs, ranks, equal_counts)
    assert len(parts) == ranks
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(costs)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    loads = [costs[part].sum() for part in parts]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] - loads[-1] <= costs.max(initial=0)
    if equal_counts:
        counts = [len(part) for part in parts]
        assert max(counts) - min(counts) <= 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_heaviest_load_is_within_the_bound_of_the_smallest_possible(costs, ranks):
    best = min(
        max(sum(cost for cost, rank in zip(costs, choice, strict=True) if rank == mine) for mine in range(ranks))
        for choice in product(range(ranks), repeat=len(costs))
    )
    heaviest = max(sum(costs[i] for i in part) for part in balance(np.array(costs), ranks))
    assert best <= heaviest <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


def test_many_items_are_shared_almost_equally():
    costs = np.random.default_rng(0).lognormal(6, 1, 10_000).astype(np.int64)
    for equal_counts in (False, True):
        loads = [costs[part].sum() for part in balance(costs, 8, equal_counts)]
        assert max(loads) / np.mean(loads) < 1.0001


def test_where_counts_need_not_be_equal_one_giant_stands_alone():
    costs = np.array([1, 1, 100, 1, 1])
    assert [part.tolist() for part in balance(costs, 2)] == [[2], [0, 1, 3, 4]]
    assert sorted(len(part) for part in balance(costs, 2, equal_counts=True)) == [2, 3]


@pytest.mark.parametrize(
    ("costs", "ranks", "message"),
    [([1, -2], 2, "negative"), ([np.nan], 2, "finite"), ([1], 0, "ranks"), ([[1]], 2, "vector")],
)
def test_refuses(costs, ranks, message):
    with pytest.raises(ValueError, match=message):
        balance(np.array(costs), ranks)

"""Balancing: which rank does which part of the work when several share it.

The largest differencing method (Karmarkar and Karp 1982, for more than two sets) keeps partial solutions: tuples of one
pile for each rank. The two with the greatest differences between their piles are joined, the heaviest pile of the one
with the lightest of the other, until one is left. So large differences cancel early and small ones are there to the
end, which comes far closer to equal loads than giving each item to whoever has least.
"""

from __future__ import annotations

import numpy as np

from hacpo_fast.policy.packing import _compiled


def balance(costs: np.ndarray, ranks: int, equal_counts: bool = False) -> list[np.ndarray]:
    """Distribute items over ranks so that the heaviest load is small.

    The heaviest and the lightest load differ by the largest cost at most: joining two tuples the opposite way round
    never leaves a greater difference than the greater of the two. Without `equal_counts` the heaviest load is moreover
    at most 4/3 - 1/(3 ranks) times the smallest possible one (Michiels, Korst, Aarts and van Leeuwen 2007), which is
    what giving each item, from large to small, to whoever has least (LPT) guarantees; with many items per rank it is
    far closer. Takes O(n (log n + ranks^2)) time at worst and 16 n ranks bytes.

    Args:
        costs: [n] numbers >= 0, such as tokens or seconds of each micro-batch.
        ranks: how many share the work, >= 1.
        equal_counts: every rank gets n / ranks items, rounded up or down: what ranks need that must meet after each
            item, as in sharded training. (Then n ranks above is n.)

    Returns:
        The items of each rank: indices into `costs` (int64, ascending), in `ranks` arrays, some of them empty where
        there are too few items. Heaviest load first. The same input gives the same result.

    Raises:
        ValueError: costs of another shape, negative or not finite, or no rank.
    """
    costs = np.asarray(costs, dtype=np.float64)
    if costs.ndim != 1:
        raise ValueError(f"costs must be a vector, not of shape {costs.shape}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, not {ranks}")
    if not (np.isfinite(costs) & (costs >= 0)).all():
        raise ValueError("costs must be finite and not negative")
    order = np.argsort(-costs, kind="stable")
    per_tuple = ranks if equal_counts else 1
    tuples = max(1, -(-len(costs) // per_tuple))
    piles = np.zeros((tuples, ranks))  # loads, each row from heavy to light
    first = np.full((tuples, ranks), -1, np.int32)  # item of each pile, or -1
    piles[:, :per_tuple].flat[: len(order)] = costs[order]
    first[:, :per_tuple].flat[: len(order)] = order
    rank_of = _difference(piles, first, len(costs))
    return [np.flatnonzero(rank_of == rank) for rank in range(ranks)]


@_compiled
def _difference(piles: np.ndarray, first: np.ndarray, items: int) -> np.ndarray:
    """The rank of every item, [items] int64; `piles` and `first` are used up."""
    tuples, ranks = piles.shape
    last = first.copy()
    following = np.full(items, -1, np.int32)  # the next item of the same pile
    gap = piles[:, 0] - piles[:, ranks - 1]
    heap = np.arange(tuples)  # of tuples, the greatest gap on top, among equal ones the first
    for place in range(tuples // 2, -1, -1):
        _sift(heap, gap, place, tuples)
    for left in range(tuples - 1, 0, -1):
        row = heap[0]
        heap[0] = heap[left]
        _sift(heap, gap, 0, left)
        other = heap[0]
        for rank in range(ranks):
            _join(piles, first, last, following, row, rank, other, ranks - 1 - rank)
        _sort(piles[row], first[row], last[row])
        gap[row] = piles[row, 0] - piles[row, ranks - 1]
        heap[0] = row
        _sift(heap, gap, 0, left)
    rank_of = np.empty(items, np.int64)
    for rank in range(ranks):
        item = first[heap[0], rank]
        while item >= 0:
            rank_of[item] = rank
            item = following[item]
    return rank_of


@_compiled
def _sift(heap: np.ndarray, gap: np.ndarray, place: int, size: int) -> None:
    """Moves the tuple at `place` down to where it belongs."""
    row = heap[place]
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and _before(gap, heap[child + 1], heap[child]):
            child += 1
        if not _before(gap, heap[child], row):
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = row


@_compiled
def _before(gap: np.ndarray, row: int, other: int) -> bool:
    return gap[row] > gap[other] or (gap[row] == gap[other] and row < other)


@_compiled
def _join(piles, first, last, following, row: int, rank: int, other: int, from_rank: int) -> None:
    """Puts one pile of the tuple `other` onto one of `row`."""
    piles[row, rank] += piles[other, from_rank]
    if first[other, from_rank] < 0:
        return
    if first[row, rank] < 0:
        first[row, rank] = first[other, from_rank]
    else:
        following[last[row, rank]] = first[other, from_rank]
    last[row, rank] = last[other, from_rank]


@_compiled
def _sort(piles: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
    """Piles from heavy to light, equal ones in their order. They are few."""
    for place in range(1, len(piles)):
        load, head, tail = piles[place], first[place], last[place]
        while place > 0 and piles[place - 1] < load:
            piles[place], first[place], last[place] = piles[place - 1], first[place - 1], last[place - 1]
            place -= 1
        piles[place], first[place], last[place] = load, head, tail

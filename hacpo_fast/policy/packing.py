"""Packing: which sequences share a micro-batch.

Best-fit decreasing: sequences from long to short, each into the fullest bin that still has room for it. Lengths are
integers, so the bins are kept in one stack per remaining capacity, and a tree over the capacities finds the smallest
one that is large enough: O(n log budget), whatever the number of bins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled at its first call, with the machine code kept on disk where that is possible.

    numba looks for a folder it can write to when it decorates (beside this file, else the user's cache) and raises
    RuntimeError where it finds none, as in a read-only container without a home. Then every process compiles anew.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


def pack(lengths: np.ndarray, budget: int) -> list[np.ndarray]:
    """Distribute sequences over as few bins as best-fit decreasing finds.

    Args:
        lengths: [n] integers >= 0, tokens of each sequence.
        budget: largest sum of lengths in a bin, >= 1. A sequence that is longer gets a bin of its own.

    Returns:
        Bins of indices into `lengths` (int64, ascending); every index is in exactly one bin. The same input gives the
        same bins: among equal lengths the first comes first, among equally full bins the one filled last is taken.

    Raises:
        ValueError: lengths of another shape or dtype or below 0, or a budget below 1.
    """
    lengths = np.asarray(lengths)
    if lengths.ndim != 1 or (lengths.size and not np.issubdtype(lengths.dtype, np.integer)):
        raise ValueError(f"lengths must be a vector of integers, not {lengths.dtype} of shape {lengths.shape}")
    if budget < 1:
        raise ValueError(f"budget must be at least 1, not {budget}")
    if not lengths.size:
        return []
    lengths = lengths.astype(np.int64, copy=False)
    if lengths.min() < 0:
        raise ValueError(f"lengths must not be negative, but one is {lengths.min()}")
    # No bin can hold more than everything, and the tables below have one entry per capacity.
    capacity = min(int(budget), max(int(lengths.sum()), 1))
    bin_of, bins = _best_fit(lengths, _stable_order(lengths.max() - lengths), capacity)
    members = _stable_order(bin_of)
    ends = np.cumsum(np.bincount(bin_of, minlength=bins)).tolist()
    return [members[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _stable_order(keys: np.ndarray) -> np.ndarray:
    # numpy's stable sort is a radix sort for 16 bits and less, several times faster than its merge sort.
    return np.argsort(keys.astype(np.min_scalar_type(keys.max())), kind="stable")


@_compiled
def _best_fit(lengths: np.ndarray, order: np.ndarray, budget: int) -> tuple[np.ndarray, int]:
    """The bin of every sequence [n] int64 and the number of bins."""
    leaves = 1
    while leaves <= budget:
        leaves *= 2
    open_below = np.zeros(2 * leaves, np.bool_)  # node of a binary heap: some bin has one of the capacities below it
    newest = np.full(budget + 1, -1, np.int64)  # by capacity: top of the stack of bins that have it left
    older = np.empty(len(lengths), np.int64)  # by bin: the next one in its stack
    bin_of = np.empty(len(lengths), np.int64)
    bins = 0
    for index in order:
        length = lengths[index]
        if length > budget:
            bin_of[index] = bins
            bins += 1
            continue
        capacity = _smallest_open(open_below, leaves, length)
        if capacity < 0:
            chosen, capacity = bins, budget
            bins += 1
        else:
            chosen = newest[capacity]
            newest[capacity] = older[chosen]
            if newest[capacity] < 0:
                _close(open_below, leaves, capacity)
        bin_of[index] = chosen
        left = capacity - length
        older[chosen] = newest[left]
        newest[left] = chosen
        _open(open_below, leaves, left)
    return bin_of, bins


@_compiled
def _smallest_open(open_below: np.ndarray, leaves: int, at_least: int) -> int:
    """The smallest capacity >= `at_least` that some bin has left, or -1."""
    node = leaves + at_least
    if open_below[node]:
        return at_least
    while node > 1:
        is_left = node % 2 == 0
        if is_left and open_below[node + 1]:
            node += 1
            while node < leaves:
                node = 2 * node if open_below[2 * node] else 2 * node + 1
            return node - leaves
        node //= 2
    return -1


@_compiled
def _open(open_below: np.ndarray, leaves: int, capacity: int) -> None:
    node = leaves + capacity
    while node >= 1 and not open_below[node]:
        open_below[node] = True
        node //= 2


@_compiled
def _close(open_below: np.ndarray, leaves: int, capacity: int) -> None:
    node = leaves + capacity
    open_below[node] = False
    node //= 2
    while node >= 1 and not (open_below[2 * node] or open_below[2 * node + 1]):
        open_below[node] = False
        node //= 2

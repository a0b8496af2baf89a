from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.policy.batch import PackedBatch, input_lengths
from hacpo_fast.policy.micro_batches import micro_batches, worth_sharing
from hacpo_fast.policy.packing import pack

responses = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), min_size=1, max_size=40)
prompt_lengths = st.lists(st.integers(1, 9), min_size=6, max_size=6)


def sequences(lengths, prompts):
    """Responses in any order of their prompts, whose numbers are no indices."""
    groups = np.array([group for group, _ in lengths])
    pairs = [(np.full(prompts[group], group), np.zeros(length, np.int64)) for group, length in lengths]
    return pairs, 10 * groups + 3


@settings(max_examples=100, deadline=None)
@given(responses, prompt_lengths, st.integers(1, 60))
def test_every_sequence_once_groups_together_and_within_the_budget(lengths, prompts, budget):
    pairs, groups = sequences(lengths, prompts)
    parts = micro_batches(pairs, groups, budget)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(pairs)))
    for part in parts:
        of_part = groups[part]
        assert len(np.unique(of_part)) == 1 + (np.diff(of_part) != 0).sum()  # each group in one piece
        batch = PackedBatch.build([pairs[row] for row in part], groups=of_part)
        assert len(batch.input_ids) <= budget or (
            len(np.unique(of_part)) == 1 and at_most_one_read(pairs, part, budget)
        )
        assert len(batch.input_ids) == brute_force_tokens(pairs, groups, part)
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        alone = len(pairs[rows[0]][0]) + sum(len(pairs[row][1]) for row in rows)
        if alone <= budget:
            assert sum(group in groups[part] for part in parts) == 1
    assert [part.tolist() for part in micro_batches(pairs, groups, budget)] == [part.tolist() for part in parts]


def at_most_one_read(pairs, part, budget):
    """A micro-batch above the budget: its prompt does not fit with more than one response of any length."""
    counted = [len(pairs[row][1]) for row in part if len(pairs[row][1])]
    room = max(1, budget - len(pairs[part[0]][0]))
    return len(counted) <= 1 or sum(counted) <= room


def brute_force_tokens(pairs, groups, part):
    prompts = {groups[row]: len(pairs[row][0]) for row in part}
    return sum(prompts.values()) + sum(max(len(pairs[row][1]) - 1, 0) for row in part)


@settings(max_examples=50, deadline=None)
@given(responses, prompt_lengths, st.integers(1, 60))
def test_without_groups_it_is_packing(lengths, prompts, budget):
    pairs, _ = sequences(lengths, prompts)
    expected = [part.tolist() for part in pack(input_lengths(pairs), budget)]
    assert [part.tolist() for part in micro_batches(pairs, None, budget)] == expected


def test_sharing_needs_fewer_micro_batches():
    pairs = [(np.zeros(200, np.int64), np.zeros(50, np.int64))] * 16
    groups = np.repeat([0, 1], 8)
    assert [part.tolist() for part in micro_batches(pairs, groups, 600)] == [[*range(8)], [*range(8, 16)]]
    assert len(micro_batches(pairs, None, 600)) == 8


def test_a_large_group_is_split_and_its_rest_shares_with_others():
    pairs = [(np.zeros(10, np.int64), np.zeros(30, np.int64))] * 5 + [(np.zeros(5, np.int64), np.zeros(20, np.int64))]
    parts = micro_batches(pairs, np.array([0] * 5 + [1]), 70)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]


def test_nothing_to_pack():
    assert micro_batches([], np.zeros(0, np.int64), 10) == []
    assert micro_batches([], None, 10) == []


@pytest.mark.parametrize(
    ("prompt", "response", "count", "worth"),
    [
        (7, 20, 16, True),
        (200, 400, 16, True),
        (4, 20, 8, False),  # too little for one prompt
        (7, 400, 16, False),  # less than a tenth
        (1000, 1, 1, False),
    ],
)
def test_what_is_worth_sharing(prompt, response, count, worth):
    pairs = [(np.zeros(prompt, np.int64), np.zeros(response, np.int64))] * count
    assert worth_sharing(pairs, np.zeros(count, np.int64)) is worth
    assert not worth_sharing(pairs, np.arange(count))  # nothing is shared
    assert not worth_sharing([], np.zeros(0, np.int64))

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hacpo_fast.policy.batch import PackedBatch, input_lengths

ids = st.integers(0, 2**31 - 1)
pairs = st.lists(st.tuples(st.lists(ids, min_size=1, max_size=6), st.lists(ids, max_size=6)), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(pairs, st.sampled_from([np.int32, np.int64]))
def test_layout(lists, dtype):
    sequences = [(np.array(prompt, dtype), np.array(response, dtype)) for prompt, response in lists]
    batch = PackedBatch.build(sequences)
    inputs, positions, rows, targets, starts, response_starts = [], [], [], [], [0], [0]
    for prompt, response in lists:
        sequence = prompt + response[:-1]
        rows += [len(inputs) + len(prompt) - 1 + step for step in range(len(response))]
        inputs += sequence
        positions += range(len(sequence))
        targets += response
        starts.append(len(inputs))
        response_starts.append(len(targets))
    assert batch.input_ids.tolist() == inputs
    assert batch.position_ids.tolist() == positions
    assert batch.rows.tolist() == rows
    assert batch.targets.tolist() == targets
    assert batch.cu_seqlens.tolist() == starts
    assert batch.response_cu_seqlens.tolist() == response_starts
    assert batch.max_length == max(np.diff(starts)) and batch.sequences == len(lists)
    assert input_lengths(sequences).tolist() == np.diff(starts).tolist()
    dtypes = {name: tensor.dtype for name, tensor in vars(batch).items() if isinstance(tensor, torch.Tensor)}
    int32 = {"cu_seqlens", "response_cu_seqlens"}
    assert dtypes == {name: torch.int32 if name in int32 else torch.int64 for name in dtypes}


def test_does_not_share_memory_with_the_caller():
    prompt = np.array([5, 6])
    batch = PackedBatch.build([(prompt, np.array([7]))])
    prompt[:] = 0
    assert batch.input_ids.tolist() == [5, 6]


def test_refuses_an_empty_prompt_and_an_empty_batch():
    with pytest.raises(ValueError, match="sequence 1 has an empty prompt"):
        PackedBatch.build([(np.array([1]), np.array([2])), (np.array([], np.int64), np.array([2]))])
    with pytest.raises(ValueError, match="at least one"):
        PackedBatch.build([])

"""Sequences of similar length in one call: against one mask over all of them, and against a call for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hacpo_fast.policy import length_batches
from hacpo_fast.policy.attention import _per_segment, varlen_attention
from hacpo_fast.policy.length_batches import LengthBatches
from hacpo_fast.policy.shared_attention import merged

any_lengths = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=30),
    st.builds(lambda count, length: [length] * count, st.integers(2, 20), st.integers(1, 9)),
    st.builds(lambda short, giant: [*short, giant, *short], st.lists(st.integers(0, 5), max_size=9), st.just(150)),
).filter(any)


def random_heads(lengths, heads=4, kv_heads=2, width=8, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, sum(lengths), count, width, generator=generator, dtype=dtype).transpose(1, 2).requires_grad_()
        for count in (heads, kv_heads, kv_heads)
    ]


def cumulative(lengths):
    return torch.tensor([0, *lengths]).cumsum(0).int()


def dense(query, key, value, lengths):
    """Attention under one mask over all tokens: [1, T, heads, D]."""
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (segment[:, None] == segment).tril()
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.4, enable_gqa=True).transpose(1, 2)


def with_gradients(output, heads):
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=output.dtype)
    return [output, *torch.autograd.grad(output, heads, upstream)]


@settings(max_examples=60, deadline=None)
@given(any_lengths, st.sampled_from([1, 2, 4]))
def test_equals_one_mask_and_a_call_for_each(lengths, kv_heads):
    heads = random_heads(lengths, kv_heads=kv_heads)
    ours = with_gradients(merged(*heads, cumulative(lengths), None, 0.4), heads)
    torch.testing.assert_close(ours, with_gradients(dense(*heads, lengths), heads))
    each = _per_segment(*heads, cumulative(lengths), 0.4, None, None)
    torch.testing.assert_close(ours, with_gradients(each, heads))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision(dtype, tolerance):
    lengths = np.random.default_rng(0).integers(1, 40, 60).tolist()
    exact = random_heads(lengths, width=32)
    rounded = [tensor.detach().to(dtype).requires_grad_() for tensor in exact]
    expected = with_gradients(dense(*exact, lengths), exact)
    ours = with_gradients(merged(*rounded, cumulative(lengths), None, 0.4).double(), rounded)
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).norm() < tolerance * other.norm()


def test_scores_of_any_size_in_padding_are_finite_and_stay_there():
    """Logits up to 1e8, and one sequence that is not finite itself: no other one notices."""
    lengths = [9, 3, 8, 1, 7, 9, 2] * 6
    assert len(LengthBatches.plan(tuple(lengths), 32).shapes) == 1
    heads = random_heads(lengths, dtype=torch.float32)
    huge = [(tensor.detach() * size).requires_grad_() for tensor, size in zip(heads, (1e5, 1e3, 1e3), strict=True)]
    assert all(
        tensor.isfinite().all() for tensor in with_gradients(merged(*huge, cumulative(lengths), None, 0.4), huge)
    )
    for sequence in (0, 1, 3, len(lengths) - 1):
        tokens = slice(sum(lengths[:sequence]), sum(lengths[: sequence + 1]))
        broken = [tensor.detach().clone() for tensor in heads]
        for tensor in broken:
            tensor[:, :, tokens] = torch.inf
            tensor.requires_grad_()
        results = zip(
            with_gradients(merged(*broken, cumulative(lengths), None, 0.4), broken),
            with_gradients(merged(*heads, cumulative(lengths), None, 0.4), heads),
            strict=True,
        )
        others = torch.ones(sum(lengths), dtype=torch.bool)
        others[tokens] = False
        for (one, other), dimension in zip(results, (1, 2, 2, 2), strict=True):
            where = others.nonzero()[:, 0]
            assert torch.equal(one.index_select(dimension, where), other.index_select(dimension, where))


@settings(max_examples=100, deadline=None)
@given(any_lengths, st.integers(1, 600))
def test_plans_are_partitions(lengths, width):
    """Every token has a place of its own, padding repeats the last token of its sequence, the same always."""
    plan = LengthBatches.plan.__wrapped__(LengthBatches, tuple(lengths), width)
    again = LengthBatches.plan.__wrapped__(LengthBatches, tuple(lengths), width)
    rows = [length for count, length in plan.shapes for _ in range(count)]
    assert again.shapes == plan.shapes and len(rows) == np.count_nonzero(lengths)
    if plan.tokens is None:
        assert rows == [length for length in lengths if length]
        return
    assert torch.equal(plan.tokens, again.tokens) and torch.equal(plan.places, again.places)
    assert plan.tokens[plan.places].tolist() == list(range(sum(lengths)))
    ends = np.cumsum(lengths)
    seen = []
    for row in plan.tokens.split(rows):
        sequence = np.searchsorted(ends, row[0].item(), side="right")
        first, last = ends[sequence] - lengths[sequence], ends[sequence] - 1
        assert row.tolist() == [min(first + step, last) for step in range(len(row))]
        seen.append(sequence)
    assert sorted(seen) == np.flatnonzero(lengths).tolist()


def test_short_sequences_stand_together_and_long_ones_alone():
    generator = np.random.default_rng(0)
    short, long = (tuple(generator.integers(*limits, size=64).tolist()) for limits in ((20, 36), (300, 600)))
    together = LengthBatches.plan(short, 64)
    assert len(together.shapes) < 6 and sum(count * length for count, length in together.shapes) < 1.2 * sum(short)
    alone = LengthBatches.plan(long, 512)
    assert alone.tokens is None and alone.shapes == tuple((1, length) for length in long)
    with pytest.raises(ValueError, match="no tokens"):
        LengthBatches.plan((0, 0), 64)


def test_packed_attention_on_a_cpu_has_few_calls_and_windows_have_none_of_it(monkeypatch):
    lengths = [7, 5, 6, 7] * 8
    heads = random_heads(lengths)
    cu = cumulative(lengths)
    calls = []
    split = LengthBatches.split
    monkeypatch.setattr(length_batches.LengthBatches, "split", lambda *given: calls.append(given) or split(*given))
    for window, expected in ((None, 3), (7, 3), (3, 0)):
        calls.clear()
        varlen_attention(torch.nn.Identity(), *heads, None, cu_seq_lens_q=cu, max_length_q=7, sliding_window=window)
        assert len(calls) == expected

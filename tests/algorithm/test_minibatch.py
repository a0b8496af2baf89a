import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hacpo_fast.algorithm.minibatch import minibatches


def pool(prompts, agents, samples):
    source, prompt, _ = np.unravel_index(np.arange(agents * prompts * samples), (agents, prompts, samples))
    return prompt, source


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 200),
    st.sampled_from(["own_first", "mixed"]),
)
def test_every_response_once(prompts, agents, samples, size, order):
    prompt, source = pool(prompts, agents, samples)
    parts = minibatches(prompt, source, agents - 1, size, order, np.random.default_rng(0))
    assert sorted(np.concatenate(parts)) == list(range(len(prompt)))
    assert all(len(part) for part in parts)
    if order == "own_first":
        assert max(map(len, parts)) <= size


def test_own_first_then_by_source():
    prompt, source = pool(prompts=4, agents=3, samples=2)
    parts = minibatches(prompt, source, 1, 8, "own_first", np.random.default_rng(0))
    assert [sorted(set(source[part])) for part in parts] == [[1], [0], [2]]


def test_mixed_holds_the_proportion_of_the_batch():
    prompt, source = pool(prompts=8, agents=2, samples=3)
    parts = minibatches(prompt, source, 0, 12, "mixed", np.random.default_rng(0))
    assert len(parts) == 4
    assert all((source[part] == 0).mean() == 0.5 for part in parts)
    assert all(np.bincount(prompt[part]).max() == 6 for part in parts)  # prompts stay whole


@pytest.mark.parametrize("order", ["own_first", "mixed"])
def test_the_seed_decides_the_order(order):
    prompt, source = pool(prompts=16, agents=2, samples=2)
    first, again, other = (minibatches(prompt, source, 0, 16, order, np.random.default_rng(s)) for s in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))


def test_nothing_to_split():
    assert minibatches(np.zeros(0, int), np.zeros(0, int), 0, 4, "mixed", np.random.default_rng(0)) == []

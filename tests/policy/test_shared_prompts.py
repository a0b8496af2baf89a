"""Prompts laid out once: against the same sequences each with its prompt, and each alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import policy_models as tiny
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hacpo_fast.errors import UserError
from hacpo_fast.policy import probe, shared_attention
from hacpo_fast.policy.attention import varlen_attention
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.micro_batches import micro_batches
from hacpo_fast.policy.policy import Policy
from hacpo_fast.scoring import score

# Prompts and the lengths of their responses: empty ones, ones that are never read, a group of one.
GROUPS = [(6, [7, 1, 0, 4]), (1, [5, 3]), (9, [3]), (4, [2, 11]), (3, [1, 0, 1])]
group_lists = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 6), min_size=1, max_size=4)), min_size=1, max_size=5
)


def sequences(groups=GROUPS, seed=0):
    """(prompt, response) pairs, and the number of each one's prompt."""
    generator = np.random.default_rng(seed)
    pairs, numbers = [], []
    for number, (length, responses) in enumerate(groups):
        prompt = generator.integers(tiny.VOCABULARY, size=length)
        pairs += [(prompt, generator.integers(tiny.VOCABULARY, size=response)) for response in responses]
        numbers += [number] * len(responses)
    return pairs, np.array(numbers)


def lay_out(groups):
    """What each input token of a shared batch may see, by plain rules: (group, response or -1 for a prompt, position).

    Groups of one keep their prompt to themselves and come last.
    """
    shared = [number for number, (_, responses) in enumerate(groups) if len(responses) > 1]
    tokens = [(number, -1, place) for number in shared for place in range(groups[number][0])]
    for number in shared:
        prompt, responses = groups[number]
        for which, response in enumerate(responses):
            tokens += [(number, which, prompt + place) for place in range(response - 1)]
    for number, (prompt, responses) in enumerate(groups):
        if number not in shared:
            tokens += [(number, 0, place) for place in range(prompt + max(responses[0] - 1, 0))]
    return tokens


def mask_of(tokens, window=99):
    """bool [T, T]: a token sees earlier ones of its own response and of its prompt."""
    return torch.tensor([[g == h and s in (r, -1) and 0 <= p - q < window for h, s, q in tokens] for g, r, p in tokens])


@settings(max_examples=80, deadline=None)
@given(group_lists)
def test_layout(groups):
    pairs, numbers = sequences(groups)
    batch, plain = PackedBatch.build(pairs, groups=numbers), PackedBatch.build(pairs)
    tokens = lay_out(groups)
    assert batch.position_ids.tolist() == [position for _, _, position in tokens]
    assert batch.targets.tolist() == plain.targets.tolist()
    assert batch.response_cu_seqlens.tolist() == plain.response_cu_seqlens.tolist()
    assert batch.sequences == len(pairs) and batch.max_length == plain.max_length
    assert batch.sequence_tokens == plain.sequence_tokens == len(plain.input_ids)
    # The token and the position behind every row are those of the sequence with its own prompt.
    for field in ("input_ids", "position_ids"):
        assert getattr(batch, field)[batch.rows].tolist() == getattr(plain, field)[plain.rows].tolist()
        if batch.shared:
            repeated = batch.shared.whole.rows(getattr(batch, field).unsqueeze(1).double())
            assert repeated[:, 0].tolist() == getattr(plain, field).tolist()
    if batch.shared:
        assert batch.shared.whole_cu_seqlens.tolist() == plain.cu_seqlens.tolist()
    ends = [place for place in range(1, len(tokens)) if tokens[place][:2] != tokens[place - 1][:2]]
    assert batch.cu_seqlens.tolist() == [0, *ends, len(tokens)]


@settings(max_examples=40, deadline=None)
@given(group_lists, st.sampled_from([1, 2, 4]), st.sampled_from([None, 2, 5, 40]), st.booleans(), st.booleans())
def test_attention_equals_one_mask(groups, kv_heads, window, narrow, merging):
    """Values and gradients in float64: merged where that is possible, and expanded."""
    pairs, numbers = sequences(groups)
    batch = PackedBatch.build(pairs, groups=numbers)
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 8), (kv_heads, 8), (kv_heads, 4 if narrow else 8)]
    heads = [
        torch.randn(1, len(batch.input_ids), count, width, generator=generator, dtype=torch.float64)
        .transpose(1, 2)
        .requires_grad_()
        for count, width in shapes
    ]
    mask = mask_of(lay_out(groups), window or 99)
    expected = scaled_dot_product_attention(*heads, attn_mask=mask, scale=0.4, enable_gqa=True).transpose(1, 2)
    lengths = {"cu_seq_lens_q": batch.cu_seqlens, "max_length_q": batch.max_length}
    with pytest.MonkeyPatch.context() as patch:
        if not merging:
            patch.setattr(shared_attention, "_kernel", None)
        output, _ = varlen_attention(
            torch.nn.Identity(),
            *heads,
            None,
            scaling=0.4,
            sliding_window=window,
            shared_prompts=batch.shared,
            **lengths,
        )
    torch.testing.assert_close(output, expected)
    upstream = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    theirs = torch.autograd.grad(expected, heads, upstream)
    torch.testing.assert_close(torch.autograd.grad(output, heads, upstream), theirs)


def test_bfloat16_attention_merges_in_float32():
    pairs, numbers = sequences([(40, [30, 50, 20])])
    batch = PackedBatch.build(pairs, groups=numbers)
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(1, 2, len(batch.input_ids), 16, generator=generator).requires_grad_() for _ in range(3)]
    half = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    results = []
    for heads in (exact, half):
        output = shared_attention.merged(*heads, batch.cu_seqlens, batch.shared, None)
        results.append([output, *torch.autograd.grad(output.float().square().sum(), heads)])
    for one, other in zip(*results, strict=True):
        assert (one - other.float()).norm() < 0.02 * one.norm()


MODELS = ["qwen3", "llama", "qwen2", "phi3", "gemma3_window", "gemma2_window_softcap", "gpt2_learned_positions"]


@pytest.mark.parametrize("name", MODELS)
def test_models_equal_single_sequences(name):
    """Log-probs and every gradient, with checkpointed layers, against the model's own logits without packing."""
    pairs, numbers = sequences()
    alone = tiny.build(name)
    alone.set_attn_implementation("eager")
    answered = [pair for pair in pairs if len(pair[1])]
    expected = tiny.single_logprobs(alone, answered, temperature=0.7)
    weights = tiny.weights(len(expected))
    (expected * weights).sum().backward()
    policy = Policy(tiny.build(name), gradient_checkpointing=True)
    batch = PackedBatch.build(pairs, groups=numbers)
    assert len(batch.input_ids) < batch.sequence_tokens
    logprobs = policy.token_logprobs(batch, temperature=0.7)
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    (logprobs * weights).sum().backward()
    tiny.assert_same_gradients(tiny.gradients(alone), tiny.gradients(policy.model))


@pytest.mark.parametrize("budget", [1, 14, 25, 1000])
def test_any_budget_gives_the_same_gradient(budget):
    pairs, numbers = sequences()
    shuffled = np.random.default_rng(1).permutation(len(pairs))
    pairs, numbers = [pairs[row] for row in shuffled], numbers[shuffled]
    policy = Policy(tiny.build("qwen3"))
    weights = np.split(tiny.weights(sum(len(r) for _, r in pairs)).numpy(), np.cumsum([len(r) for _, r in pairs])[:-1])
    (policy.token_logprobs(PackedBatch.build(pairs)) * torch.from_numpy(np.concatenate(weights))).sum().backward()
    expected = tiny.gradients(policy.model)
    for rows in micro_batches(pairs, numbers, budget):
        batch = PackedBatch.build([pairs[row] for row in rows], groups=numbers[rows])
        upstream = torch.from_numpy(np.concatenate([weights[row] for row in rows]))
        (policy.token_logprobs(batch) * upstream).sum().backward()
    tiny.assert_same_gradients(expected, tiny.gradients(policy.model))


def test_scores_do_not_depend_on_sharing():
    pairs, numbers = sequences([(30, [3, 5, 1, 2]), (25, [1, 1, 4])])
    policy = Policy(tiny.build("llama"))
    expected = score(policy, pairs, 1.0, 70)
    policy.share_prompts()
    tokens = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _, inputs, output: tokens.append(output.shape[1]))
    shared = score(policy, pairs, 1.0, 70, numbers)
    assert sum(tokens) < sum(len(prompt) + len(response) - 1 for prompt, response in pairs)
    for one, other in zip(shared, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_refuses_prompts_that_differ_in_a_group():
    pairs = [(np.array([1, 2]), np.array([3])), (np.array([1, 3]), np.array([3]))]
    with pytest.raises(ValueError, match="sequences 0 and 1 are of group 7, but their prompts differ"):
        PackedBatch.build(pairs, groups=np.array([7, 7]))
    with pytest.raises(ValueError, match="1 group numbers for 2"):
        PackedBatch.build(pairs, groups=np.array([7]))
    PackedBatch.build([pairs[0], (pairs[0][0].copy(), pairs[1][1])], groups=np.array([7, 7]))


# The probe: what is exact is accepted, every way to break it is seen.


@pytest.mark.parametrize("name", MODELS)
def test_probe_accepts(name):
    policy = Policy(tiny.build(name))
    policy.share_prompts()
    assert policy.shares_prompts
    assert all(parameter.grad is None for parameter in policy.model.parameters())


@pytest.mark.parametrize("name", ["qwen3", "gemma2_window_softcap"])
def test_probe_accepts_bfloat16(name):
    assert probe.check_sharing(Policy(tiny.build(name, dtype=torch.bfloat16), gradient_checkpointing=True)) > 0


def refused(policy, reason):
    with pytest.raises(UserError, match=reason):
        policy.share_prompts()
    assert not policy.shares_prompts


def change_batches(monkeypatch, change):
    build = PackedBatch.build
    monkeypatch.setattr(
        probe.PackedBatch,
        "build",
        lambda *given: change(build(*given)) if len(given) == 3 else build(*given),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "change",
    [
        lambda batch: replace(batch, position_ids=torch.arange(len(batch.input_ids))),
        lambda batch: replace(batch, shared_rows=replace(batch.shared_rows, index=batch.shared_rows.index.roll(1))),
        lambda batch: replace(batch, cu_seqlens=batch.cu_seqlens[[0, -1]]),
    ],
)
def test_probe_sees_broken_batches(monkeypatch, change, dtype):
    change_batches(monkeypatch, change)
    refused(Policy(tiny.build("llama", dtype=dtype)), "log-prob changes")


@pytest.mark.parametrize(
    "split",
    [
        lambda of_queries, of_keys, prompts, responses: [  # the keys of another prompt
            (*queries, *keys)
            for queries, keys in zip(
                shared_attention._split(of_queries, responses),
                [*shared_attention._split(of_keys, prompts)][::-1],
                strict=True,
            )
        ],
        lambda of_queries, of_keys, prompts, responses: [(*of_queries, *of_keys)],  # those of all prompts
    ],
)
def test_probe_sees_a_wrong_mask(monkeypatch, split):
    monkeypatch.setattr(shared_attention, "_split_pairs", split)
    refused(Policy(tiny.build("qwen3")), "log-prob changes")


def test_probe_sees_a_wrong_gradient(monkeypatch):
    """Each part's own log-sum-exp in place of the merged one, and copies of a prompt that are not added up."""
    kernel = shared_attention._kernel_backward

    def forgetful(gradient, query, key, value, output, lse, *rest, **named):
        return kernel(gradient, query, key, value, output, lse - 0.5, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(shared_attention, "_kernel_backward", forgetful)
        refused(Policy(tiny.build("qwen3")), "gradient changes")
    backward = shared_attention._Merged.backward

    def without_prompts(ctx, gradient):
        ctx.responses = (0,) * len(ctx.responses)
        return backward(ctx, gradient)

    monkeypatch.setattr(shared_attention._Merged, "backward", staticmethod(without_prompts))
    refused(Policy(tiny.build("qwen3")), "gradient changes")


def test_probe_refuses_layers_that_do_not_hand_prompts_on():
    policy = Policy(tiny.build("llama"))
    for layer in policy.model.model.layers:
        attention = layer.self_attn
        forward = attention.forward
        attention.forward = lambda *given, _forward=forward, shared_prompts=None, **named: _forward(*given, **named)
    refused(policy, "log-prob changes")


def test_probe_refuses_models_that_do_not_know_the_argument():
    policy = Policy(tiny.build("llama"))
    trunk = policy._trunk.forward
    policy._trunk.forward = lambda input_ids, position_ids, use_cache, cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k: trunk(  # noqa: E501
        input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, cu_seq_lens_q=cu_seq_lens_q,
        cu_seq_lens_k=cu_seq_lens_k, max_length_q=max_length_q, max_length_k=max_length_k,
    )  # fmt: skip
    refused(policy, "unexpected keyword argument 'shared_prompts'")


def test_probe_refuses_another_attention():
    policy = Policy(tiny.build("llama"))
    policy.model.set_attn_implementation("sdpa")
    refused(policy, "its attention is sdpa")

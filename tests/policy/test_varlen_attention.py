from __future__ import annotations

import policy_models as tiny
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from hacpo_fast.errors import UserError
from hacpo_fast.policy import attention
from hacpo_fast.policy.attention import packed, varlen_attention, varlen_mask
from hacpo_fast.policy.policy import Policy

PADDED = torch.tensor([[0, 0, 0, 5, 6], [0, 4, 3, 2, 9], [8, 7, 6, 5, 4]])
SHOWN = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
LENGTHS = [5, 1, 9]


def random_heads(heads: int = 4, kv_heads: int = 2, width: int = 16, value_width: int = 16):
    generator = torch.Generator().manual_seed(0)
    shapes = [(heads, width), (kv_heads, width), (kv_heads, value_width)]
    return [torch.randn(1, head, sum(LENGTHS), size, generator=generator) for head, size in shapes]


def dense(query, key, value, window=None, scaling=None):
    """Attention under one block-diagonal mask over all tokens: [1, T, heads, D]."""
    segment = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    distance = torch.arange(len(segment))[:, None] - torch.arange(len(segment))
    mask = (segment[:, None] == segment) & (distance >= 0) & (distance < (window or 99))
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2)


def call(query, key, value, mask=None, **kwargs):
    cu = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    longest = max(LENGTHS)
    lengths = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}
    return varlen_attention(nn.Identity(), query, key, value, mask, **lengths, **kwargs)[0]


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_packed_equals_a_block_diagonal_mask(window, scaling):
    heads = random_heads()
    output = call(*heads, sliding_window=window, scaling=scaling, position_ids=torch.arange(15), use_cache=False)
    torch.testing.assert_close(output, dense(*heads, window, scaling))


@pytest.mark.parametrize("native_groups", [True, False])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("value_width", [16, 8])
def test_what_the_cuda_kernel_is_given(monkeypatch, native_groups, window, value_width):
    """The kernel's layout and conventions, held against a plain twin of its documentation."""

    def varlen_attn(query, key, value, cu_q, cu_k, max_q, max_k, *, scale, window_size, enable_gqa=False):
        assert query.shape[2] == key.shape[2] == value.shape[2] and max_q == max_k == max(LENGTHS)
        assert enable_gqa == native_groups and (enable_gqa or query.shape[1] == key.shape[1])
        assert window_size[1] == 0  # nothing to the right: causal
        heads = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value))
        left = window_size[0]
        return dense(*heads, None if left == -1 else left + 1, scale)[0]

    monkeypatch.setattr(attention, "varlen_attn", varlen_attn)
    monkeypatch.setattr(attention, "_KERNEL_GROUPS", native_groups)
    monkeypatch.setattr(attention, "_has_varlen_kernel", lambda *_: True)
    heads = random_heads(value_width=value_width)
    torch.testing.assert_close(call(*heads, sliding_window=window), dense(*heads, window))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"s_aux": torch.zeros(4)}, "sinks"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"something_new": 3}, "something_new"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "is_causal"),
        ({"mask": torch.ones(1, 1, 15, 15, dtype=torch.bool)}, "attention_mask"),
    ],
)
def test_refuses_what_it_does_not_compute(extra, message):
    with pytest.raises(UserError, match=message):
        call(*random_heads(), **extra)


def test_a_packed_forward_pass_without_cu_seqlens_is_an_error():
    with packed(), pytest.raises(UserError, match="cu_seq_lens"):
        varlen_attention(nn.Identity(), *random_heads(), None)
    model = Policy(tiny.build("llama")).model
    with packed(), pytest.raises(UserError, match="cu_seq_lens"):
        model(input_ids=PADDED[:1], use_cache=False)


def test_a_pattern_of_the_models_own_is_an_error():
    with packed(), pytest.raises(UserError, match="mask of its own"):
        varlen_mask(batch_size=1, q_length=2, kv_length=2, use_vmap=True)


def test_padded_forward_equals_sdpa_for_every_model():
    for name in tiny.BUILDERS:
        expected = tiny.build(name)
        expected.set_attn_implementation("eager" if "softcap" in name else "sdpa")
        model = Policy(tiny.build(name)).model
        inputs = {"input_ids": PADDED, "attention_mask": SHOWN, "position_ids": (SHOWN.cumsum(-1) - 1).clamp(min=0)}
        with torch.no_grad():
            ours, theirs = model(**inputs).logits, expected(**inputs).logits
        torch.testing.assert_close(ours[SHOWN.bool()], theirs[SHOWN.bool()], msg=name)


@pytest.mark.parametrize("name", ["qwen3", "mistral_window", "gemma2_window_softcap", "gpt2_learned_positions"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_generation_with_a_cache_equals_sdpa(name, checkpointing):
    """Left-padded prompts, KV cache, long enough for windows to slide; also between checkpointed training passes."""
    expected = tiny.build(name)
    expected.set_attn_implementation("eager" if "softcap" in name else "sdpa")
    policy = Policy(tiny.build(name), gradient_checkpointing=checkpointing)
    arguments = {"attention_mask": SHOWN, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    arguments |= {"output_logits": True, "return_dict_in_generate": True, "pad_token_id": 0}
    theirs, ours = expected.generate(PADDED, **arguments), policy.model.generate(PADDED, **arguments)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits), rtol=1e-4, atol=1e-4)

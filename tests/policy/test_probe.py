from __future__ import annotations

from dataclasses import replace

import policy_models as tiny
import pytest
import torch
import transformers as hf

from hacpo_fast.errors import UserError
from hacpo_fast.policy import probe
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.policy import Policy


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_accepts(name, checkpointing):
    assert 0 <= Policy(tiny.build(name), gradient_checkpointing=checkpointing).verify() < 1e-4


@pytest.mark.parametrize("name", ["qwen3", "gemma2_window_softcap", "gpt_neox"])
def test_accepts_bfloat16(name):
    assert Policy(tiny.build(name, dtype=torch.bfloat16)).verify() > 0


def test_leaves_no_gradient_behind():
    policy = Policy(tiny.build("llama"))
    policy.verify()
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def linear_attention():
    config = hf.Qwen3NextConfig(
        **tiny.SIZE,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    )
    return hf.Qwen3NextForCausalLM(config)


def state_space():
    config = hf.MambaConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, initializer_range=0.3
    )
    return hf.MambaForCausalLM(config)


@pytest.mark.parametrize("build", [linear_attention, state_space])
def test_refuses_layers_that_carry_state_between_sequences(build):
    # Whether transformers' layers refuse by themselves or leak silently depends on its version and other packages.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = Policy(build().eval(), name="agent-model")
    with pytest.raises(UserError, match=r"agent-model.*cannot be trained on packed sequences"):
        policy.verify()


def test_refuses_bfloat16_that_leaks(monkeypatch):
    policy = Policy(tiny.build("qwen3", dtype=torch.bfloat16))
    break_batches(monkeypatch, lambda batch: replace(batch, cu_seqlens=batch.cu_seqlens[[0, -1]]))
    with pytest.raises(UserError, match="packed"):
        policy.verify()


def break_batches(monkeypatch, change):
    build = PackedBatch.build
    monkeypatch.setattr(probe.PackedBatch, "build", lambda *arguments: change(build(*arguments)))


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: replace(batch, position_ids=torch.zeros_like(batch.position_ids)),
        lambda batch: replace(batch, cu_seqlens=batch.cu_seqlens[[0, -1]]),
        lambda batch: replace(batch, rows=(batch.rows - 1).clamp(min=0)),
        lambda batch: replace(batch, targets=batch.targets.roll(1)),
    ],
)
def test_refuses_broken_batches(monkeypatch, change):
    break_batches(monkeypatch, change)
    with pytest.raises(UserError, match="position ids"):
        Policy(tiny.build("qwen3")).verify()


def test_refuses_logits_that_are_more_than_a_projection():
    model = tiny.build("llama")
    forward = model.forward

    def scaled(*arguments, **kwargs):
        output = forward(*arguments, **kwargs)
        output.logits = output.logits * 0.5
        return output

    model.forward = scaled
    with pytest.raises(UserError, match="logits that are more"):
        Policy(model).verify()


def test_refuses_nan():
    model = tiny.build("llama")
    model.lm_head.weight.data[3] = float("nan")
    with pytest.raises(UserError, match="nan"):
        Policy(model).verify()


def test_refuses_windows_that_attention_is_not_told_of():
    """Chunked attention lives in the mask alone; short probes could never see a chunk end."""
    size = {**tiny.SIZE, "intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1}
    layer_types = ["chunked_attention", "full_attention"]
    config = hf.Llama4TextConfig(**size, attention_chunk_size=64, layer_types=layer_types)
    with pytest.raises(UserError, match=r"windows of \[64\]"):
        Policy(hf.Llama4ForCausalLM(config).eval()).verify()


def test_refuses_heads_that_are_not_linear():
    model = tiny.build("llama")
    model.set_output_embeddings(torch.nn.Sequential(model.lm_head))
    with pytest.raises(UserError, match="linear projection"):
        Policy(model)

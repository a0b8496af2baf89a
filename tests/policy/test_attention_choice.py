"""Which attention a policy gets: what is installed, what the device can, what was asked for."""

from __future__ import annotations

import policy_models as tiny
import pytest
import torch

from hacpo_fast.errors import UserError
from hacpo_fast.policy import attention, policy
from hacpo_fast.policy.batch import PackedBatch


@pytest.fixture
def installed(monkeypatch):
    """Says what flash-attn packages there are, and the generation of the GPU."""

    def make(*versions, capability=(8, 0)):
        for version in (2, 3):
            there = version in versions
            monkeypatch.setattr(attention, f"is_flash_attn_{version}_available", lambda there=there: there)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    return make


def test_choose_attention(installed):
    choose = attention.choose_attention
    installed()
    assert choose("cpu", torch.float32) == choose("cuda", torch.bfloat16) == "hacpo_varlen"
    installed(2)
    assert choose("cuda:1", torch.bfloat16) == "flash_attention_2"
    assert choose("cuda", torch.float32) == choose("cpu", torch.bfloat16) == "hacpo_varlen"
    installed(2, 3, capability=(9, 0))
    assert choose("cuda", torch.bfloat16) == "flash_attention_3"
    assert choose("cuda", torch.bfloat16, "flash_attention_2") == "flash_attention_2"
    assert choose("cuda", torch.bfloat16, "varlen") == "hacpo_varlen"
    assert choose("cuda", torch.bfloat16, "sdpa") == choose("cpu", torch.float32, "sdpa") == "hacpo_sdpa"
    installed(2, 3, capability=(10, 0))
    assert choose("cuda", torch.bfloat16) == "flash_attention_2"


@pytest.mark.parametrize(
    "wanted, device, reason",
    [
        ("flash_attention_3", "cuda", "Hopper"),
        ("flash_attention_2", "cuda", r"not installed; pip install .*flash"),
        ("flash_attention_2", "cpu", "needs a GPU and 16-bit weights, here are cpu and bfloat16"),
        ("varlen", "cpu", "needs a GPU"),
    ],
)
def test_attention_that_cannot_be_is_refused(installed, wanted, device, reason):
    installed(3)
    with pytest.raises(UserError, match=f"training.attention={wanted}: .*{reason}.*use auto or sdpa"):
        attention.choose_attention(device, torch.bfloat16, wanted)


def test_attention_in_words():
    words = attention.describe_attention
    assert words("hacpo_varlen", torch.device("cpu"), torch.float32) == "sdpa for each sequence"
    assert words("hacpo_sdpa", torch.device("cuda"), torch.bfloat16) == "sdpa for each sequence"
    assert words("hacpo_varlen", torch.device("cuda"), torch.bfloat16) == "torch's varlen kernel"


def test_an_architecture_without_flash_attention_gets_another_one(installed, monkeypatch):
    model = tiny.build("llama")
    set_attention = type(model).set_attn_implementation

    def refuse(self, name):
        if name == "flash_attention_2":
            raise ValueError("LlamaForCausalLM does not support it")
        set_attention(self, name)

    monkeypatch.setattr(type(model), "set_attn_implementation", refuse)
    monkeypatch.setattr(policy, "choose_attention", lambda *_: "flash_attention_2")
    assert policy.Policy(model).model.config._attn_implementation == "hacpo_varlen"
    with pytest.raises(UserError, match=r"training\.attention=flash_attention_2: Llama"):
        policy.Policy(model, attention="flash_attention_2")


def test_sdpa_is_the_same_without_the_kernel(monkeypatch):
    pairs = tiny.sequences()
    expected = policy.Policy(tiny.build("mistral_window")).score(PackedBatch.build(pairs))
    monkeypatch.setattr(attention, "_has_varlen_kernel", lambda *_: pytest.fail("asked for the kernel"))
    chosen = policy.Policy(tiny.build("mistral_window"), attention="sdpa")
    assert torch.equal(chosen.score(PackedBatch.build(pairs)), expected)

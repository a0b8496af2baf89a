"""Liger's layers in a policy: replaced, compared, undone. A stand-in for liger-kernel computes the same on a CPU."""

from __future__ import annotations

import copy
import sys
from importlib.util import find_spec
from types import MethodType, ModuleType, SimpleNamespace

import policy_models as tiny
import pytest
import torch
from torch import nn
from transformers.models.llama import modeling_llama

from hacpo_fast.errors import UserError
from hacpo_fast.policy import fused_layers
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.fused_layers import Unsuitable, fuse_layers, replace_checked
from hacpo_fast.policy.policy import Policy


class FusedNorm(nn.Module):
    error = gradient_error = 0.0

    def forward(self, hidden):
        wide = hidden.float()
        normal = wide * (wide.square().mean(-1, keepdim=True) + self.variance_epsilon + FusedNorm.error).rsqrt()
        if FusedNorm.gradient_error:
            normal.register_hook(lambda gradient: gradient * (1 + FusedNorm.gradient_error))
        FusedNorm.calls += 1
        return self.weight * normal.to(hidden.dtype)


def fused_rope(query, key, cos, sin, unsqueeze_dim=1):
    FusedNorm.ropes += 1
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    turned = [torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1) for x in (query, key)]
    return query * cos + turned[0] * sin, key * cos + turned[1] * sin


def apply(model, rope=True, rms_norm=True, cross_entropy=True, fused_linear_cross_entropy=True):
    """As liger-kernel does it: instances, and names in transformers' module."""
    assert not cross_entropy and not fused_linear_cross_entropy
    modeling_llama.apply_rotary_pos_emb = fused_rope
    modeling_llama.LlamaRMSNorm = FusedNorm
    for name, module in model.named_modules():
        if name.endswith("norm"):
            module.in_place = True
            module.forward = MethodType(FusedNorm.forward, module)


@pytest.fixture
def liger(monkeypatch):
    """A liger-kernel that knows llama."""
    patches = ModuleType("liger_kernel.transformers.monkey_patch")
    patches.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": apply}
    known = {"rope", "rms_norm", "cross_entropy", "fused_linear_cross_entropy"}
    patches._apply_liger_kernel_to_instance = lambda model, **kw: apply(model, **{k: kw[k] for k in known})
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", patches)
    for name in ("apply_rotary_pos_emb", "LlamaRMSNorm"):
        monkeypatch.setattr(modeling_llama, name, getattr(modeling_llama, name))  # put back after the test
    for name, value in {"error": 0.0, "gradient_error": 0.0, "calls": 0, "ropes": 0}.items():
        monkeypatch.setattr(FusedNorm, name, value, raising=False)
    return patches


def state(policy):
    return {name: (p.data_ptr(), p.shape) for name, p in policy.model.named_parameters(remove_duplicate=False)}


def test_layers_are_replaced_and_parameters_stay(liger):
    pairs = tiny.sequences()
    policy, plain = Policy(tiny.build("llama")), Policy(tiny.build("llama"))
    before, keys = state(policy), policy.model.state_dict().keys()
    replace_checked(policy)
    FusedNorm.calls = FusedNorm.ropes = 0
    logprobs, expected = (each.token_logprobs(PackedBatch.build(pairs)) for each in (policy, plain))
    assert FusedNorm.calls == 5 and FusedNorm.ropes >= 2  # 2 norms of each of 2 layers, and the last one
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    weights = tiny.weights(len(logprobs))
    (logprobs * weights).sum().backward()
    (expected * weights).sum().backward()
    tiny.assert_same_gradients(tiny.gradients(plain.model), tiny.gradients(policy.model))
    assert state(policy) == before and policy.model.state_dict().keys() == keys
    policy.verify()


def test_other_models_of_the_process_keep_their_classes_and_other_devices_their_rope(liger):
    norm, rope = modeling_llama.LlamaRMSNorm, modeling_llama.apply_rotary_pos_emb
    undo = replace_checked(Policy(tiny.build("llama")))
    assert modeling_llama.LlamaRMSNorm is norm and modeling_llama.apply_rotary_pos_emb is not rope
    assert isinstance(tiny.build("llama").model.norm, norm)
    undo()
    assert modeling_llama.apply_rotary_pos_emb is rope
    by_device = fused_layers._by_device(lambda q: "plain", lambda q: "fused", "cuda")
    for device, expected in {"cpu": "plain", "cuda": "fused"}.items():
        assert by_device(SimpleNamespace(device=torch.device(device))) == expected


@pytest.mark.parametrize(
    "wrong, said", [({"error": 0.1}, "change a log-prob by"), ({"gradient_error": 0.02}, "change the gradient by")]
)
def test_kernels_that_compute_something_else_are_found_and_taken_out(liger, wrong, said):
    policy = Policy(tiny.build("llama"))
    rope = modeling_llama.apply_rotary_pos_emb
    expected = policy.score(PackedBatch.build(tiny.sequences()))
    members = {name: set(vars(module)) for name, module in policy.model.named_modules()}
    for name, value in wrong.items():
        setattr(FusedNorm, name, value)
    with pytest.raises(Unsuitable, match=said):
        replace_checked(policy)
    assert torch.equal(policy.score(PackedBatch.build(tiny.sequences())), expected)
    assert members == {name: set(vars(module)) for name, module in policy.model.named_modules()}
    assert modeling_llama.apply_rotary_pos_emb is rope


def test_a_liger_that_fails_half_way_leaves_nothing_behind(liger):
    def half(model, **_):
        modeling_llama.LlamaRMSNorm = FusedNorm
        model.model.norm.forward = MethodType(FusedNorm.forward, model.model.norm)
        raise AttributeError("no such layer")

    norm = modeling_llama.LlamaRMSNorm
    liger._apply_liger_kernel_to_instance = half
    policy = Policy(tiny.build("llama"))
    with pytest.raises(Unsuitable, match="liger-kernel fails on LlamaForCausalLM: AttributeError: no such layer"):
        replace_checked(policy)
    assert "forward" not in vars(policy.model.model.norm) and modeling_llama.LlamaRMSNorm is norm


def test_generation_and_views_of_an_engine_go_on_working(liger):
    policy, plain = Policy(tiny.build("llama")), Policy(tiny.build("llama"))
    replace_checked(policy)
    prompt = torch.tensor([[5, 6, 7]])
    answers = [each.model.generate(prompt, max_new_tokens=6, do_sample=False) for each in (policy, plain)]
    assert torch.equal(*answers)
    engine = {name: copy.deepcopy(p.detach()) * 1.5 for name, p in policy.model.named_parameters()}
    for each in (policy, plain):
        for name, parameter in each.model.named_parameters():
            parameter.data = engine[name]
    scores = [each.score(PackedBatch.build(tiny.sequences())) for each in (policy, plain)]
    torch.testing.assert_close(*scores, rtol=1e-5, atol=1e-5)


def test_what_the_setting_means_on_a_cpu(liger):
    policy = Policy(tiny.build("llama"), "ada")
    assert fuse_layers(policy, "auto") == fuse_layers(policy, "torch") == "torch"
    with pytest.raises(UserError, match=r"ada: training\.layers=liger cannot be: its kernels need a GPU"):
        fuse_layers(policy, "liger")


def test_an_architecture_that_liger_does_not_know(liger):
    with pytest.raises(Unsuitable, match="knows no gpt_neox"):
        replace_checked(Policy(tiny.build("gpt_neox")))


def test_without_liger(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers.monkey_patch", None)
    with pytest.raises(Unsuitable, match=r"cannot be imported .*pip install"):
        replace_checked(Policy(tiny.build("llama")))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral_window", "phi3", "gemma2_window_softcap"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_with_and_without_on_a_gpu(name, dtype):
    plain = Policy(tiny.build(name, dtype=dtype).cuda())
    pairs = tiny.sequences()
    expected = plain.token_logprobs(PackedBatch.build(pairs, "cuda"))
    weights = tiny.weights(len(expected)).cuda()
    (expected * weights).sum().backward()
    policy = Policy(tiny.build(name, dtype=dtype).cuda(), gradient_checkpointing=True)
    if find_spec("liger_kernel") is None:
        assert "pip install" in fuse_layers(policy, "auto")
        return
    undo = replace_checked(policy)
    logprobs = policy.token_logprobs(PackedBatch.build(pairs, "cuda"))
    (logprobs * weights).sum().backward()
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(logprobs, expected, rtol=tolerance, atol=10 * tolerance)
    for one, other in zip(policy.model.parameters(), plain.model.parameters(), strict=True):
        assert (one.grad - other.grad).norm() <= 10 * tolerance * other.grad.norm() + 1e-6
    policy.verify()
    undo()

"""Weights in the engine: every way, every layout, and what is done about those that go wrong."""

from contextlib import contextmanager

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

from hacpo_fast import engine_weights
from hacpo_fast.engine_probe import ProbeFailure, changed, probe
from hacpo_fast.engine_weights import connect
from hacpo_fast.errors import UserError
from hacpo_fast.policy.engine_views import UnknownLayout, engine_views
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.policy.policy import Policy
from hacpo_fast.policy.weight_sync import ReloadedWeights
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.rollouts.vllm_engine import VllmEngine, VllmSettings
from hacpo_fast.scoring import score

pytestmark = pytest.mark.vllm

LIMIT = 0.1
LONG = np.random.default_rng(1).integers(20, 200, size=290)
WINDOW = {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
FAMILIES = {
    "llama": ("llama", {}),
    "llama_untied": ("llama", {"tie_word_embeddings": False}),
    "llama_bias": ("llama", {"attention_bias": True, "num_key_value_heads": 2}),
    "qwen2": ("qwen2", {"hidden_size": 64}),
    "qwen2_untied": ("qwen2", {"hidden_size": 64, "tie_word_embeddings": False}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {**WINDOW, "query_pre_attn_scalar": 32}),
    "gemma3": ("gemma3", {**WINDOW, "query_pre_attn_scalar": 32}),
    "phi3": ("phi3", {"hidden_size": 64, "tie_word_embeddings": False, "pad_token_id": 0}),
}


@contextmanager
def served(folder, unpacked=True, dtype=torch.float32):
    """A policy and an engine of the same model, not yet connected."""
    policy = Policy.load(str(folder))
    engine = VllmEngine(VllmSettings(str(folder), [1], dtype, policy.device, 320, 32, 16 << 20, unpacked))
    try:
        yield policy, engine
    finally:
        engine.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def get(name):
        if name not in made:
            architecture, changes = FAMILIES[name]
            shape = {"max_position_embeddings": 512, **changes}
            made[name] = tiny.write_model(root / name, tiny.byte_tokenizer(), architecture, seed=2, **shape)
        return made[name]

    return get


def mismatch(policy, engine, prompt=LONG):
    samples = [s for s in engine.generate([prompt], Sampling(4, 0.7, 8), seed=0)[0]]
    scores = score(policy, [(prompt, s.token_ids) for s in samples], 0.7, 4096)
    return float(np.abs(np.concatenate(scores) - np.concatenate([s.logprobs for s in samples])).max())


def train(policy, steps=2):
    """Optimiser steps large enough to be seen."""
    optimizer = MasterAdamW(policy.model.named_parameters())
    for step in range(steps):
        ids = torch.arange(20 + step, 90)[None]
        policy.model(ids, labels=ids, use_cache=False).loss.backward()
        optimizer.clip_and_norm(1.0)
        assert optimizer.step(lr=0.02).applied


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_shared_and_follow_the_optimiser(folders, family, tmp_path):
    with served(folders(family)) as (policy, engine):
        before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
        found = connect(policy, engine, "auto", 0.6, LIMIT)
        assert found.way == "shared" and not found.rejected and found.mismatch < 1e-4
        for name, parameter in policy.model.named_parameters():  # the probe undid what it did
            torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
        storages = {parameter.untyped_storage().data_ptr() for parameter in engine.module.parameters()}
        assert {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()} == storages
        old = engine.generate([LONG], Sampling(1, 0.0, 8), seed=0)[0][0]
        train(policy)
        engine.sync()
        new = engine.generate([LONG], Sampling(1, 0.0, 8), seed=0)[0][0]
        assert np.abs(new.logprobs[0] - old.logprobs[0]) > 0.01
        assert mismatch(policy, engine) < 1e-4
        policy.model.save_pretrained(tmp_path / "saved")
        state = {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}
    saved = load_file(tmp_path / "saved/model.safetensors")
    again = Policy.load(str(tmp_path / "saved")).model
    assert set(saved) == {name for name, _ in policy.model.named_parameters()}
    for name, parameter in policy.model.named_parameters():  # the policy outlives the engine
        torch.testing.assert_close(saved[name], parameter.detach(), rtol=0, atol=0)
        torch.testing.assert_close(again.get_parameter(name), parameter, rtol=0, atol=0)
        torch.testing.assert_close(state[name], parameter.detach(), rtol=0, atol=0)
    policy.model.load_state_dict(state)


@pytest.mark.parametrize(("way", "family"), [("copy", "llama"), ("reload", "gemma3"), ("reload", "qwen2_untied")])
def test_weights_are_copied_or_reloaded(folders, way, family):
    with served(folders(family), unpacked=way != "reload") as (policy, engine):
        assert connect(policy, engine, way, 0.6, LIMIT).mismatch < 1e-4
        train(policy)
        assert mismatch(policy, engine) > 0.01  # not yet
        engine.sync()
        assert mismatch(policy, engine) < 1e-4


def test_an_engine_of_another_dtype_gets_copies(folders):
    with served(folders("llama"), dtype=torch.bfloat16) as (policy, engine):
        found = connect(policy, engine, "auto", 0.6, max_mismatch=0.5)
        assert found.way == "copy" and "the engine torch.bfloat16" in found.rejected[0]
        assert 1e-4 < found.mismatch < 0.5
        train(policy)
        engine.sync()
        assert 1e-4 < mismatch(policy, engine) < 0.5


def test_packed_weights_are_reloaded(folders):
    with served(folders("llama"), unpacked=False) as (policy, engine):
        found = connect(policy, engine, "auto", 0.6, LIMIT)
        assert found.way == "reload" and [reason.split(":")[0] for reason in found.rejected] == ["shared", "copy"]
        with pytest.raises(UserError, match=r"rollout.weights=shared.*of the engine is \(0,\)"):
            connect(policy, engine, "shared", 0.6, LIMIT)


def test_a_shared_parameter_that_moved_is_noticed_at_once(folders):
    with served(folders("llama")) as (policy, engine):
        connect(policy, engine, "shared", 0.6, LIMIT)
        norm = policy.model.model.norm.weight
        norm.data = norm.data.clone()
        with pytest.raises(RuntimeError, match=r"1 parameters, model.norm.weight first"):
            engine.sync()


def test_unknown_layouts_fall_back(folders, monkeypatch):
    """Views that are wrong are never trusted: neither missing nor exchanged ones."""
    with served(folders("qwen3")) as (policy, engine):
        right = engine_views(policy.model, engine.module)
        a, b = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
        swapped = {**right, a: right[b], b: right[a]}
        monkeypatch.setattr(engine_weights, "engine_views", lambda *_: swapped)
        found = connect(policy, engine, "auto", 0.6, LIMIT)
        assert found.way == "reload" and "gate_proj.weight first, lie elsewhere" in found.rejected[0]
        assert found.mismatch < 1e-4
        monkeypatch.undo()
        monkeypatch.setattr(type(engine.module), "packed_modules_mapping", {})
        assert (
            "the engine has no model.layers.0.self_attn.q_proj"
            in connect(policy, engine, "auto", 0.6, LIMIT).rejected[0]
        )


def test_layouts_must_cover_each_other(folders):
    """No engine needed: two plain models, of which only one has an output head of its own."""
    tied, untied = (Policy.load(str(folders(name))).model for name in ("llama", "llama_untied"))
    assert engine_views(tied, tied).keys() == dict(tied.named_parameters()).keys()
    with pytest.raises(UnknownLayout, match=r"the engine has no lm_head\.weight"):
        engine_views(untied, tied)
    with pytest.raises(UnknownLayout, match=r"0 of 263 rows of the engine's lm_head.weight are the policy's"):
        engine_views(tied, untied)


class Broken:
    """Everything that has been seen to go wrong with an engine, on purpose."""

    def stale_weights(self, policy, engine, patch):
        patch.setattr(engine, "synchronise", lambda: None)

    def tied_head(self, policy, engine, patch):
        names = [(name, parameter) for name, parameter in policy.model.named_parameters()]
        patch.setattr(engine, "synchronise", lambda: engine.reload(names))

    def old_keys_and_values(self, policy, engine, patch):
        patch.setattr(engine.llm, "reset_prefix_cache", lambda: True)

    def temperature(self, policy, engine, patch):
        right = engine.generate
        patch.setattr(engine, "generate", lambda p, s, seed: right(p, s._replace(temperature=1.0), seed))

    def tokenizer(self, policy, engine, patch):
        right = engine.generate
        patch.setattr(engine, "generate", lambda p, s, seed: right([ids + 1 for ids in p], s, seed))


@pytest.fixture(scope="module")
def reloaded(folders):
    """Packed weights, as vLLM comes: its tied output head is a tensor of its own there."""
    with served(folders("llama"), unpacked=False) as (policy, engine):
        connect(policy, engine, "reload", 0.6, LIMIT)
        yield policy, engine


@pytest.mark.parametrize("what", [name for name in vars(Broken) if not name.startswith("_")])
def test_the_probe_catches(reloaded, monkeypatch, what):
    policy, engine = reloaded
    assert probe(policy, engine, 0.6, LIMIT) < 1e-4
    with monkeypatch.context() as patch:
        getattr(Broken(), what)(policy, engine, patch)
        with pytest.raises(ProbeFailure, match="differ by"):
            probe(policy, engine, 0.6, LIMIT)
    engine.sync()
    assert probe(policy, engine, 0.6, LIMIT) < 1e-4


def test_what_passes_nowhere_is_an_error(reloaded, monkeypatch):
    policy, engine = reloaded
    monkeypatch.setattr(ReloadedWeights, "__call__", lambda self: None)
    with (
        pytest.raises(UserError, match=r"rollout.weights=auto.*reload: engine and policy log-probs differ"),
        changed(policy),
    ):
        connect(policy, engine, "auto", 0.6, LIMIT)
    monkeypatch.undo()
    connect(policy, engine, "reload", 0.6, LIMIT)

from __future__ import annotations

from dataclasses import replace

import numpy as np
import policy_models as tiny
import pytest
import torch
import transformers as hf

from hacpo_fast.errors import UserError
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.policy import Policy


def packed_gradients(policy: Policy, groups: list[list], weights: torch.Tensor, temperature: float = 1.0) -> dict:
    """Gradients of sum(weights * logprobs), one backward pass for each group of sequences."""
    start = 0
    for group in groups:
        logprobs = policy.token_logprobs(PackedBatch.build(group), temperature)
        (logprobs * weights[start : start + len(logprobs)]).sum().backward()
        start += len(logprobs)
    return tiny.gradients(policy.model)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("name", tiny.BUILDERS)
def test_equals_single_sequences(name, temperature):
    """Log-probs and every gradient, against the model's own logits with its own attention and no packing."""
    pairs = tiny.sequences()
    alone = tiny.build(name)
    alone.set_attn_implementation("eager")
    expected = tiny.single_logprobs(alone, pairs, temperature)
    weights = tiny.weights(len(expected))
    (expected * weights).sum().backward()

    policy = Policy(tiny.build(name))
    logprobs = policy.token_logprobs(PackedBatch.build(pairs), temperature)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    tiny.assert_same_gradients(tiny.gradients(alone), packed_gradients(policy, [pairs], weights, temperature))


def test_the_comparison_notices_broken_positions_and_boundaries():
    pairs = tiny.sequences()
    policy = Policy(tiny.build("llama"))
    batch = PackedBatch.build(pairs)
    expected = policy.score(batch)
    tokens = len(batch.input_ids)
    shifted = replace(batch, position_ids=torch.stack([batch.position_ids[0], *batch.position_ids[:-1]]))
    leaking = replace(batch, cu_seqlens=torch.tensor([0, tokens], dtype=torch.int32), max_length=tokens)
    for broken in (shifted, leaking):
        assert (policy.score(broken) - expected).abs().max() > 1e-2
    learned = Policy(tiny.build("gpt2_learned_positions"))
    running = replace(batch, position_ids=torch.arange(tokens))
    assert (learned.score(running) - learned.score(batch)).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["qwen3", "gemma2_window_softcap", "gpt2_learned_positions"])
def test_gradients_do_not_depend_on_the_micro_batch(name):
    pairs = tiny.sequences(count=16)
    policy = Policy(tiny.build(name))
    weights = tiny.weights(sum(len(response) for _, response in pairs))
    at_once = packed_gradients(policy, [pairs], weights)
    for size in (1, 8):
        groups = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        tiny.assert_same_gradients(at_once, packed_gradients(policy, groups, weights))


@pytest.mark.parametrize("name", ["llama", "gemma2_window_softcap", "gpt2_learned_positions", "gpt_neox"])
def test_gradient_checkpointing_changes_nothing(name):
    pairs = tiny.sequences()
    weights = tiny.weights(sum(len(response) for _, response in pairs))
    plain = Policy(tiny.build(name))
    checkpointed = Policy(tiny.build(name), gradient_checkpointing=True)
    expected = packed_gradients(plain, [pairs], weights)

    runs = []
    norm = next(module for name, module in checkpointed.model.named_modules() if "layernorm" in name or "ln_1" in name)
    norm.register_forward_hook(lambda *_: runs.append(1))
    # The batch is gone, and the packed context left, when the backward pass runs the layers again.
    tiny.assert_same_gradients(expected, packed_gradients(checkpointed, [pairs], weights))
    assert len(runs) == 2  # once more in the backward pass: it really is checkpointed
    torch.testing.assert_close(checkpointed.score(PackedBatch.build(pairs)), plain.score(PackedBatch.build(pairs)))
    assert not any(module.training for module in checkpointed.model.modules())


def test_dropout_is_off_with_and_without_checkpointing():
    for checkpointing in (False, True):
        model = tiny.build("gpt2_learned_positions")
        assert model.config.attn_pdrop > 0
        policy = Policy(model, gradient_checkpointing=checkpointing)
        batch = PackedBatch.build(tiny.sequences())
        assert torch.equal(policy.token_logprobs(batch), policy.token_logprobs(batch))


def test_tied_weights_get_gradient_from_head_and_embedding():
    pairs = tiny.sequences()
    policy = Policy(tiny.build("llama"))
    weight = policy.model.get_input_embeddings().weight
    assert policy.head.weight is weight
    batch = PackedBatch.build(pairs)
    hidden = policy.hidden_rows(batch)
    logprobs = policy.token_logprobs(batch)
    weights = tiny.weights(len(logprobs))
    through_both = torch.autograd.grad((logprobs * weights).sum(), weight)[0]
    through_head = torch.autograd.grad(
        ((hidden.detach() @ weight.T).log_softmax(-1).gather(-1, batch.targets[:, None])[:, 0] * weights).sum(), weight
    )[0]
    at_hidden = hidden.detach().requires_grad_()
    loss = (at_hidden @ weight.detach().T).log_softmax(-1).gather(-1, batch.targets[:, None])[:, 0] * weights
    through_embedding = torch.autograd.grad(hidden, weight, torch.autograd.grad(loss.sum(), at_hidden)[0])[0]
    assert through_head.abs().max() > 1e-2 and through_embedding.abs().max() > 1e-2
    torch.testing.assert_close(through_both, through_head + through_embedding, rtol=1e-4, atol=1e-4)


def test_score_has_no_gradient_and_the_same_values():
    policy = Policy(tiny.build("qwen3"))
    batch = PackedBatch.build(tiny.sequences())
    scored = policy.score(batch, temperature=0.6)
    assert not scored.requires_grad
    assert torch.equal(scored, policy.token_logprobs(batch, temperature=0.6).detach())


def test_empty_responses_only():
    policy = Policy(tiny.build("qwen3"))
    batch = PackedBatch.build([(np.array([3, 4]), np.array([], np.int64))] * 2)
    logprobs = policy.token_logprobs(batch)
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert all(not gradient.any() for gradient in tiny.gradients(policy.model).values())


def test_bfloat16():
    pairs = tiny.sequences()
    policy = Policy(tiny.build("qwen3", dtype=torch.bfloat16))
    logprobs = policy.token_logprobs(PackedBatch.build(pairs))
    assert logprobs.dtype == torch.float32 and policy.hidden_rows(PackedBatch.build(pairs)).dtype == torch.bfloat16
    expected = tiny.single_logprobs(tiny.build("qwen3"), pairs)
    assert (logprobs - expected).abs().mean() < 0.05


def test_load_from_a_folder(tmp_path):
    model = tiny.build("qwen3")
    model.save_pretrained(tmp_path)
    pairs = tiny.sequences()
    policy = Policy.load(str(tmp_path), gradient_checkpointing=True)
    assert policy.name == str(tmp_path) and all(p.requires_grad for p in policy.model.parameters())
    torch.testing.assert_close(policy.score(PackedBatch.build(pairs)), tiny.single_logprobs(model, pairs))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("model.safetensors", lambda old: old[:1000], "SafetensorError"),
        ("model.safetensors", lambda old: b"", "SafetensorError"),
        (
            "config.json",
            lambda old: old.replace(b'"num_hidden_layers": ', b'"num_hidden_layers": 1'),
            "lack .* tensors",
        ),
        ("config.json", lambda old: old.replace(b'"intermediate_size": ', b'"intermediate_size": 1'), "RuntimeError"),
        ("config.json", lambda old: old.replace(b'"silu"', b'"silly"'), "KeyError: 'silly'"),
    ],
)
def test_a_damaged_folder_is_no_model(tmp_path, name, change, said):
    """Above all, no weight that the files lack is drawn at random, which transformers does with a warning."""
    tiny.build("llama").save_pretrained(tmp_path)
    old = (tmp_path / name).read_bytes()
    assert change(old) != old
    (tmp_path / name).write_bytes(change(old))
    with pytest.raises(UserError, match=f"cannot load the model '.*': .*{said}"):
        Policy.load(str(tmp_path))


def test_load_says_what_is_missing(tmp_path):
    with pytest.raises(UserError, match="cannot load the model"):
        Policy.load(str(tmp_path))


def test_too_long_a_sequence():
    policy = Policy(tiny.build("gpt2_learned_positions"))
    assert policy.max_length == 128
    with pytest.raises(UserError, match="129 tokens, the model takes 128"):
        policy.score(PackedBatch.build([(np.arange(60), np.arange(60)), (np.full(100, 3), np.full(30, 3))]))


def test_long_rope_is_limited_to_the_lengths_that_packing_does_not_change():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    config = hf.Phi3Config(**{**tiny.SIZE, "head_dim": 8}, rope_parameters=rope, original_max_position_embeddings=32)
    policy = Policy(hf.Phi3ForCausalLM(config))
    assert policy.max_length == 32
    policy.verify()

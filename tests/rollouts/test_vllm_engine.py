"""The engine alone, against plain transformers on the same weights."""

import json
import os

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

from hacpo_fast.errors import UserError
from hacpo_fast.policy.weight_sync import checkpoint_weights
from hacpo_fast.rollouts import vllm_library
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.rollouts.vllm_engine import VllmEngine, VllmSettings

pytestmark = pytest.mark.vllm

CPU = torch.device("cpu")
LONG = np.random.default_rng(0).integers(60, 250, size=300)  # two whole blocks of the KV cache, and a part
PROMPTS = [np.array(ids) for ids in ([5, 9], [7], [8, 20, 33, 41, 6])] + [LONG]
ENDS = range(60)  # many end tokens: responses of many lengths


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_model(
        tmp_path_factory.mktemp("m") / "m", tiny.byte_tokenizer(), "qwen3", seed=1, max_position_embeddings=512
    )


@pytest.fixture(scope="module")
def model(folder):
    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")


def start(folder, model, ends=ENDS, **changes) -> VllmEngine:
    settings = VllmSettings(str(folder), list(ends), torch.float32, CPU, 400, 64, 64 << 20)._replace(**changes)
    engine = VllmEngine(settings)
    engine.synchronise = lambda: engine.load(checkpoint_weights(model, engine.module))
    engine.sync()
    return engine


@pytest.fixture(scope="module")
def engine(folder, model):
    engine = start(folder, model)
    yield engine
    engine.close()


def plain_logprobs(model, prompt, response, temperature):
    ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.from_numpy(response)[:, None])[:, 0].detach().numpy()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_are_those_of_the_model_at_the_temperature(engine, model, temperature):
    answers = engine.generate(PROMPTS, Sampling(5, temperature, 12), seed=3)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        assert len(group) == 5
        for sample in group:
            assert sample.token_ids.dtype == np.int64 and sample.logprobs.dtype == np.float32
            expected = plain_logprobs(model, prompt, sample.token_ids, temperature)
            np.testing.assert_allclose(sample.logprobs, expected, atol=5e-5)


def test_every_end_token_ends_is_kept_and_only_then(engine):
    samples = [s for group in engine.generate(PROMPTS, Sampling(16, 1.0, 8), seed=0) for s in group]
    assert {len(s.token_ids) for s in samples} >= {1, 2, 8}
    for sample in samples:
        inside, last = sample.token_ids[:-1].tolist(), int(sample.token_ids[-1])
        assert not set(ENDS) & set(inside)
        assert sample.ended == (last in ENDS)
        assert sample.ended or len(sample.token_ids) == 8


def test_the_seed_decides_whatever_is_sampled_beside_and_samples_of_a_prompt_differ(engine):
    def texts(prompts, seed):
        answers = engine.generate(prompts, Sampling(8, 1.0, 12), seed)
        return [[tuple(sample.token_ids) for sample in group] for group in answers]

    first = texts(PROMPTS, 1)
    assert first == texts(PROMPTS, 1)
    assert first[:2] == texts(PROMPTS[:2], 1)
    assert first != texts(PROMPTS, 2)
    assert all(len(set(group)) > 4 for group in first)


def test_greedy_is_the_argmax(engine, model):
    for prompt, (sample,) in zip(PROMPTS, engine.generate(PROMPTS, Sampling(1, 0.0, 10), seed=0), strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, sample.token_ids]))[None]
        assert model(ids).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist() == sample.token_ids.tolist()
        np.testing.assert_allclose(sample.logprobs, plain_logprobs(model, prompt, sample.token_ids, 1.0), atol=5e-5)


@pytest.mark.parametrize("filters", [{"top_k": 2}, {"top_p": 0.5}])
def test_filters_leave_the_likeliest_tokens(engine, model, filters):
    (group,) = engine.generate([PROMPTS[0]], Sampling(200, 1.0, 1, **filters), seed=5)
    probabilities = model(torch.from_numpy(PROMPTS[0])[None]).logits[0, -1].softmax(-1)
    ordered = probabilities.argsort(descending=True)
    size = filters.get("top_k") or 1 + int((probabilities[ordered].cumsum(0) < filters["top_p"]).sum())
    sampled, allowed = {int(sample.token_ids[0]) for sample in group}, ordered[:size].tolist()
    assert {*allowed[:2]} <= sampled <= {*allowed}


def test_sampling_follows_the_distribution(engine, model):
    (group,) = engine.generate([PROMPTS[0]], Sampling(2000, 1.0, 1), seed=5)
    counts = np.bincount([int(sample.token_ids[0]) for sample in group], minlength=model.config.vocab_size)
    probabilities = model(torch.from_numpy(PROMPTS[0])[None]).logits[0, -1].softmax(-1).detach().numpy()
    cells = probabilities * 2000 >= 5
    statistic = ((counts - 2000 * probabilities) ** 2 / (2000 * probabilities))[cells].sum()
    assert statistic < cells.sum() + 6 * (2 * cells.sum()) ** 0.5


def test_a_sync_drops_keys_and_values_of_the_old_weights(engine, model):
    def error(answers):
        return max(np.abs(s.logprobs - plain_logprobs(model, LONG, s.token_ids, 1.0)).max() for g in answers for s in g)

    sampling = Sampling(4, 1.0, 8)
    engine.generate([LONG], sampling, seed=0)
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.synchronise()  # new weights, old cache: what must not happen can be seen
        assert error(engine.generate([LONG], sampling, seed=0)) > 0.01
        engine.sync()
        assert error(engine.generate([LONG], sampling, seed=0)) < 5e-5
    finally:
        model.load_state_dict(kept, strict=False)
        engine.sync()


def test_more_prompt_tokens_than_are_computed_at_once(engine, model):
    prompts = list(np.random.default_rng(2).integers(60, 250, size=(40, 300)))
    answers = engine.generate(prompts, Sampling(2, 1.0, 4), seed=0)
    for prompt, group in zip(prompts[::13], answers[::13], strict=True):
        for sample in group:
            np.testing.assert_allclose(sample.logprobs, plain_logprobs(model, prompt, sample.token_ids, 1.0), atol=5e-5)


def test_no_prompts_no_answers(engine):
    assert engine.generate([], Sampling(2, 1.0, 4), seed=0) == []


def test_the_process_is_as_before(engine):
    assert torch.set_num_threads.__name__ == "set_num_threads"  # and not vLLM's, which refuses to
    assert "libgomp" not in os.environ.get("LD_PRELOAD", "")
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32


def test_models_that_cannot_be_served_are_named_before_anything_is_generated(tmp_path, engine):
    small = tiny.write_model(tmp_path / "small", tiny.byte_tokenizer(), "llama", head_dim=16)
    reason = vllm_library.unsupported(AutoModelForCausalLM.from_pretrained(small).config, CPU)
    assert "no heads of 16, only of [32, 64" in reason
    config = AutoModelForCausalLM.from_pretrained(small).config
    config.architectures = ["NovelForCausalLM"]
    assert vllm_library.unsupported(config, CPU) == "vLLM has no model named NovelForCausalLM"


def test_engines_are_made_after_one_failed_and_after_all_were_closed(tmp_path, folder, model, engine):
    """Last of this file: it closes the engine that the others used."""
    expected = engine.generate(PROMPTS, Sampling(2, 1.0, 6), seed=1)[0][0].token_ids.tolist()
    engine.close()
    # vLLM's Qwen2 derives the head size from the width, whatever the configuration says of it.
    own_idea = tiny.write_model(tmp_path / "m", tiny.byte_tokenizer(), "qwen2", hidden_size=32, num_attention_heads=2)
    with pytest.raises(UserError, match="no heads of 16"):
        VllmEngine(engine.settings._replace(model=str(own_idea), max_tokens=200))
    broken = json.loads((folder / "config.json").read_text())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text(json.dumps({**broken, "hidden_act": "none"}))
    with pytest.raises(UserError, match="vLLM cannot serve"):
        VllmEngine(engine.settings._replace(model=str(tmp_path / "broken")))
    two = [start(folder, model), start(folder, model, ends=[0])]
    assert two[0].generate(PROMPTS, Sampling(2, 1.0, 6), seed=1)[0][0].token_ids.tolist() == expected
    longer = [s for group in two[1].generate(PROMPTS, Sampling(2, 1.0, 6), seed=1) for s in group]
    assert all(s.ended == (s.token_ids[-1] == 0) and (s.ended or len(s.token_ids) == 6) for s in longer)
    for one in two:
        one.close()


def test_a_full_cache_postpones_and_changes_nothing(folder, model):
    block = 128 * 2 * 2 * 32 * 4  # bytes: tokens, keys and values, layers, width of the one head, float32
    prompts = list(np.random.default_rng(3).integers(60, 250, size=(12, 120)))

    def answers(blocks):
        engine = start(folder, model, ends=[0], kv_cache_bytes=blocks * block)
        try:
            return [s for group in engine.generate(prompts, Sampling(1, 1.0, 20), seed=4) for s in group]
        finally:
            engine.close()

    for one, other in zip(answers(8), answers(64), strict=True):  # every sequence grows into a second block
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=5e-5)

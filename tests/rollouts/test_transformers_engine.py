import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

from hacpo_fast.policy.policy import Policy
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.rollouts.transformers_engine import TransformersEngine, _filtered

PROMPTS = [np.array(ids) for ids in ([5, 9], [7], [8, 20, 33, 41, 6], [9, 9, 9])]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request, tmp_path_factory):
    return tiny.write_model(tmp_path_factory.mktemp("m") / "m", tiny.byte_tokenizer(), request.param, seed=1)


@pytest.fixture
def model(folder):
    return Policy.load(str(folder)).model


def engine(model, ends=range(60), batch_sequences=64):
    return TransformersEngine(model, ends, batch_sequences)  # many end tokens: responses of many lengths


def plain_logprobs(model, prompt, response, temperature):
    ids = torch.from_numpy(np.concatenate([prompt, response]))[None]
    logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, torch.from_numpy(response)[:, None])[:, 0].detach().numpy()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_logprobs_are_those_of_the_model_at_the_temperature(folder, model, temperature):
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    answers = engine(model).generate(PROMPTS, Sampling(5, temperature, 12), seed=3)
    for prompt, group in zip(PROMPTS, answers, strict=True):
        assert len(group) == 5
        for sample in group:
            expected = plain_logprobs(plain, prompt, sample.token_ids, temperature)
            np.testing.assert_allclose(sample.logprobs, expected, atol=3e-5)


def test_every_end_token_ends_and_only_then(model):
    ends = set(range(60))
    samples = [s for group in engine(model, ends).generate(PROMPTS, Sampling(16, 1.0, 8), seed=0) for s in group]
    assert {len(s.token_ids) for s in samples} >= {1, 2, 8}
    for sample in samples:
        inside, last = sample.token_ids[:-1].tolist(), int(sample.token_ids[-1])
        assert not ends & set(inside)
        assert sample.ended == (last in ends)
        assert sample.ended or len(sample.token_ids) == 8


def test_the_seed_decides_and_samples_of_a_prompt_differ(model):
    def texts(seed):
        answers = engine(model).generate(PROMPTS, Sampling(8, 1.0, 12), seed)
        return [[tuple(sample.token_ids) for sample in group] for group in answers]

    first = texts(1)
    assert first == texts(1)
    assert first != texts(2)
    assert all(len(set(group)) > 4 for group in first)


def test_greedy_is_the_argmax_whatever_the_batch(model):
    sampling = Sampling(1, 0.0, 10)
    together = engine(model, [0]).generate(PROMPTS, sampling, seed=0)
    alone = [engine(model, [0], batch_sequences=1).generate([prompt], sampling, seed=0)[0] for prompt in PROMPTS]
    for a, b, prompt in zip(together, alone, PROMPTS, strict=True):
        assert a[0].token_ids.tolist() == b[0].token_ids.tolist()
        ids = torch.from_numpy(np.concatenate([prompt, a[0].token_ids]))[None]
        argmax = model(ids).logits[0, len(prompt) - 1 : -1].argmax(-1)
        assert argmax.tolist() == a[0].token_ids.tolist()


def test_sampling_follows_the_distribution(model):
    (group,) = engine(model).generate([PROMPTS[0]], Sampling(4000, 1.0, 1), seed=5)
    counts = np.bincount([int(sample.token_ids[0]) for sample in group], minlength=model.config.vocab_size)
    probabilities = model(torch.from_numpy(PROMPTS[0])[None]).logits[0, -1].softmax(-1).detach().numpy()
    # Pearson's statistic over the cells with enough expected counts; 6 standard deviations above its mean is no chance.
    cells = probabilities * 4000 >= 5
    statistic = ((counts - 4000 * probabilities) ** 2 / (4000 * probabilities))[cells].sum()
    assert statistic < cells.sum() + 6 * (2 * cells.sum()) ** 0.5


def test_filters():
    logprobs = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    assert _filtered(logprobs, top_p=1.0, top_k=2).exp().tolist()[0] == pytest.approx([0.5, 0.3, 0, 0])
    assert _filtered(logprobs, top_p=0.6, top_k=0).exp().tolist()[0] == pytest.approx([0.5, 0.3, 0, 0])
    assert _filtered(logprobs, top_p=0.01, top_k=0).exp().tolist()[0] == pytest.approx([0.5, 0, 0, 0])


def test_a_step_of_the_optimiser_is_in_the_engine_at_once(model):
    sampling = Sampling(1, 0.0, 10)
    before = engine(model).generate(PROMPTS, sampling, seed=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    after = engine(model).generate(PROMPTS, sampling, seed=0)
    for (sample,), prompt in zip(after, PROMPTS, strict=True):
        np.testing.assert_allclose(sample.logprobs, plain_logprobs(model, prompt, sample.token_ids, 1.0), atol=3e-5)
    assert any(a[0].logprobs[0] != b[0].logprobs[0] for a, b in zip(before, after, strict=True))

"""Tokens per second of the engines on the same prompts: 4 prompts of 64 tokens, 8 samples of each, 32 tokens long.

pytest bench/bench_rollout.py. `tokens_per_second` is of the fastest round.
"""

import numpy as np
import pytest
import served_models
import torch

from hacpo_fast.engine_weights import connect
from hacpo_fast.policy.policy import Policy
from hacpo_fast.rollouts import vllm_library
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.rollouts.transformers_engine import TransformersEngine
from hacpo_fast.rollouts.vllm_engine import VllmEngine, VllmSettings

PROMPTS, TOKENS, SAMPLING = 4, 64, Sampling(samples=8, temperature=1.0, max_tokens=32)


@pytest.fixture(scope="module", params=served_models.SHAPES)
def folder(request, tmp_path_factory):
    return served_models.write(tmp_path_factory.mktemp("m") / request.param, request.param)


@pytest.fixture(scope="module", params=["transformers", "vllm shared", "vllm reload"])
def engine(request, folder):
    policy = Policy.load(str(folder), device="cuda" if torch.cuda.is_available() else "cpu")
    if request.param == "transformers":
        yield policy, TransformersEngine(policy.model, [policy.model.config.vocab_size], 64)
        return
    if not vllm_library.installed():
        pytest.skip("vLLM is not installed")
    way = request.param.split()[1]
    settings = VllmSettings(
        str(folder), [], torch.float32, policy.device, TOKENS + 32, 64, 256 << 20, unpacked=way == "shared"
    )
    engine = VllmEngine(settings)
    connect(policy, engine, way, 1.0, 0.1)
    yield policy, engine
    engine.close()


def bench_rollout(benchmark, engine):
    policy, engine = engine
    prompts = list(np.random.default_rng(0).integers(policy.model.config.vocab_size, size=(PROMPTS, TOKENS)))

    def rollout():
        engine.sync()
        return engine.generate(prompts, SAMPLING, seed=0)

    answers = benchmark.pedantic(rollout, rounds=2, warmup_rounds=1)
    tokens = sum(len(sample.token_ids) for group in answers for sample in group)
    assert tokens == PROMPTS * SAMPLING.samples * SAMPLING.max_tokens  # nothing ends
    benchmark.extra_info["tokens_per_second"] = round(tokens / benchmark.stats.stats.min)

"""Does an engine give its policy's log-probs, and does it follow when the policy changes? Ask both, at the start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hacpo_fast.policy.policy import Policy
from hacpo_fast.rollouts.engine import Sampling
from hacpo_fast.rollouts.vllm_engine import VllmEngine
from hacpo_fast.scoring import score

ROUNDING_32_BITS = 2e-3  # nats per token; measured are less than 1e-4
RESPONSE = 8  # tokens
TOKEN_BUDGET = 8192


class ProbeFailure(Exception):
    """Engine and policy disagree; the message says when and by how much."""


def probe(policy: Policy, engine: VllmEngine, temperature: float, max_mismatch: float) -> float:
    """Compare log-probs of random prompts' responses token by token, before and after the policy changes.

    Some prompts fill several blocks of the KV cache: old keys and values answer only those. The change gives every
    parameter other values, so one that is left behind (an untied head, say) is seen; it is undone to the last bit.

    max_mismatch: nats per token that may be explained by rounding where either side has 16 bits.

    Returns:
        The mean difference of a token's log-prob with the policy's own weights.

    Raises:
        ProbeFailure: a difference is above rounding error.
    """
    wide = policy.model.dtype == engine.settings.dtype == torch.float32
    limit = min(max_mismatch, ROUNDING_32_BITS) if wide else max_mismatch
    prompts = _prompts(policy, engine)
    longest = max(map(len, prompts))
    engine.sync()
    mismatch, sequences, before = _compare(policy, engine, prompts, temperature)
    _judge(mismatch, limit, f"with prompts of up to {longest} tokens")
    with changed(policy):
        engine.sync()
        after = np.concatenate(score(policy, sequences, temperature, TOKEN_BUDGET))
        followed, _, _ = _compare(policy, engine, prompts, temperature)
        # Scrambled weights of a large model can amplify rounding; yet old ones would be off by as much as the change.
        moved = float(np.abs(after - before).mean())
        _judge(followed, max(limit, 0.0 if wide else moved / 10), "after the policy changed (are weights left behind?)")
    engine.sync()
    return mismatch


@contextmanager
@torch.no_grad()
def changed(policy: Policy) -> Iterator[None]:
    """Inside, every parameter has other values of about the same size; afterwards the old ones, bit by bit."""
    matrices = [parameter for parameter in policy.model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in policy.model.parameters() if parameter.ndim <= 1]
    kept = [vector.detach().clone() for vector in vectors]
    try:
        for matrix in matrices:  # moved row by row, not scaled: needs no second copy of a large model
            matrix.copy_(matrix.roll(1, 0))
        for vector in vectors:
            vector.add_(torch.linspace(-0.1, 0.1, vector.numel(), device=vector.device).to(vector.dtype))
        yield
    finally:
        for matrix in matrices:
            matrix.copy_(matrix.roll(-1, 0))
        torch._foreach_copy_(vectors, kept)


def _prompts(policy: Policy, engine: VllmEngine) -> list[np.ndarray]:
    room, block = engine.settings.max_tokens - RESPONSE, engine.cache_block
    generator = np.random.default_rng(0)
    vocabulary = policy.model.get_input_embeddings().num_embeddings
    lengths = {max(1, min(room, length)) for length in (5, block + 3, 3 * block + 7)}
    return [generator.integers(vocabulary, size=length) for length in sorted(lengths)]


def _compare(policy: Policy, engine: VllmEngine, prompts, temperature: float):
    """Mean absolute difference of log-probs, the (prompt, response) pairs, and the policy's log-probs of them."""
    answers = engine.generate(prompts, Sampling(4, temperature, min(RESPONSE, engine.settings.max_tokens - 1)), seed=0)
    pairs = [(prompt, sample) for prompt, group in zip(prompts, answers, strict=True) for sample in group]
    sequences = [(prompt, sample.token_ids) for prompt, sample in pairs]
    scores = np.concatenate(score(policy, sequences, temperature, TOKEN_BUDGET))
    reported = np.concatenate([sample.logprobs for _, sample in pairs])
    return float(np.abs(scores - reported).mean(dtype=np.float64)), sequences, scores


def _judge(mismatch: float, limit: float, when: str) -> None:
    if not mismatch <= limit:  # NaN is not
        raise ProbeFailure(
            f"engine and policy log-probs differ by {mismatch:.2g} nats per token {when}; rounding explains {limit:.2g}"
        )

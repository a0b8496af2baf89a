"""What one learner trains on in a step: the shared pool, weighed and seen by that learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.algorithm.advantage import joint_advantages
from hacpo_fast.algorithm.importance import sequence_weight, token_weights
from hacpo_fast.config import AdvantageConfig, AlgorithmConfig
from hacpo_fast.policy.batch import to_device
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.records import RolloutPool
from hacpo_fast.rollouts.views import View, views_for
from hacpo_fast.run.phases import timed


@dataclass(frozen=True)
class LearnerBatch:
    """One row per response of the pool, R in all. `advantages` are not yet weighted by `capability_ratio` (Eq. 10)."""

    prompt_tokens: Sequence[np.ndarray]  # R prompts in the learner's tokens
    views: Sequence[View]  # R responses in the learner's tokens
    prompt: np.ndarray  # [R] int64: number of the problem
    source: np.ndarray  # [R] int64: number of the agent that sampled the response
    from_self: np.ndarray  # [R] bool: that agent is the learner
    own_objective: np.ndarray  # [R] bool: trained with the objective of own responses (Eq. 12)
    advantages: np.ndarray  # [R] float64
    capability_ratio: np.ndarray  # [R] float64
    source_mean_logprobs: np.ndarray  # [R] float64: the ratio's denominator
    uniform: np.ndarray  # [R] bool: all rewards of the prompt are equal
    scorable: np.ndarray  # [R] bool: the learner's tokens and context can hold it (False without an advantage, too)
    dropped: np.ndarray  # [R] bool: of a group with a failed reward; counts in the loss's denominator and nowhere else
    importance: np.ndarray | None = None  # [R] float64: in `advantages` already; for the log
    token_importance: Sequence[np.ndarray] | None = None  # R times [L] float32: weights of the tokens' gradients

    @property
    def taught(self) -> np.ndarray:
        """[R] bool: rows with something to teach, whether or not the learner can see them."""
        return self.advantages * self.capability_ratio != 0

    @property
    def matters(self) -> np.ndarray:
        """[R] bool: rows with a gradient. The rest count in the loss's denominator and nowhere else."""
        return self.scorable & self.taught

    def needed(self, kl: bool) -> np.ndarray:
        """[R] bool: rows that a pass has to compute. A KL term gives every own response a gradient, if not dropped."""
        return self.matters | (self.from_self & ~self.dropped & kl)

    def sampled_logprobs(self, rows: np.ndarray) -> np.ndarray:
        """[T] float32: rollout-time log-probs token by token, `rows` end to end, NaN for responses of others."""
        parts = [np.zeros(0, dtype=np.float32)]
        for row in rows:
            view = self.views[row]
            known = view.source_logprobs
            parts.append(known if known is not None else np.full(len(view.token_ids), np.nan, dtype=np.float32))
        return np.concatenate(parts)

    def columns(self, rows: np.ndarray, device: torch.device, tokens: bool) -> dict[str, Tensor | None]:
        """What the loss takes of `rows`, in single precision; tokens: rollout-time log-probs token by token, too."""

        def column(values: np.ndarray) -> Tensor:
            values = values[rows]
            return to_device(values.astype(np.float32) if values.dtype == np.float64 else values, device)

        return {
            "source_mean_logprobs": column(self.source_mean_logprobs),
            "advantages": column(self.advantages),
            "is_own": column(self.own_objective),
            "capability_ratio": column(self.capability_ratio),
            "source_token_logprobs": to_device(self.sampled_logprobs(rows), device) if tokens else None,
        }

    def sequence(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        return self.prompt_tokens[row], self.views[row].token_ids

    @property
    def unscorable_share(self) -> float:
        """Share of the responses with an advantage that the learner's tokens and context cannot hold."""
        return float((self.taught & ~self.scorable).sum() / max(self.taught.sum(), 1))

    def with_denominators(self, rows: np.ndarray, token_logprobs: Sequence[np.ndarray]) -> LearnerBatch:
        """The same batch with `token_logprobs` (each [L] float32) as the denominators of `rows`."""
        means, views = self.source_mean_logprobs.copy(), list(self.views)
        for row, logprobs in zip(rows, token_logprobs, strict=True):
            means[row] = logprobs.mean(dtype=np.float64) if len(logprobs) else 0.0
            views[row] = views[row]._replace(source_logprobs=logprobs)
        return replace(self, source_mean_logprobs=means, views=views)


@timed("assemble")
def assemble(
    pool: RolloutPool,
    learner: int,
    codec: Codec,
    prompt_tokens: Sequence[np.ndarray],
    context: int,
    ratios: Tensor,
    algorithm: AlgorithmConfig,
    score_eos: bool,
) -> LearnerBatch:
    """The learner's batch of `pool`.

    prompt_tokens: the pool's problems in the learner's tokens; context: tokens that its sequences may have; ratios
    [agents, agents]: `algorithm.capability.capability_ratios`. Algorithms that do not share leave the others out.
    """
    if not algorithm.shares:
        pool = pool.of(learner)
    prompt, source = torch.from_numpy(pool.prompt), torch.from_numpy(pool.source)
    weights = _weights(algorithm)
    result = joint_advantages(torch.from_numpy(pool.reward), prompt, source, ratios, learner, weights)
    capability_ratio = ratios[learner, source].numpy() if weights.modulation else np.ones(len(pool.prompt))
    prompts = [prompt_tokens[i] for i in pool.prompt]
    # What has no advantage is never scored, so it need not be seen in the learner's tokens either.
    advantages = np.where(pool.dropped, 0.0, result.advantage.numpy())
    taught = advantages * capability_ratio != 0
    # The last token of a response is predicted but never read.
    views = views_for(learner, pool.rollouts, codec, score_eos, [context - len(ids) + 1 for ids in prompts], taught)
    from_self = pool.source == learner
    importance, token_importance = _importance(pool, views, from_self, algorithm)
    return LearnerBatch(
        prompt_tokens=prompts,
        views=views,
        prompt=pool.prompt,
        source=pool.source,
        from_self=from_self,
        own_objective=np.ones_like(from_self) if algorithm.name == "naive" else from_self,
        advantages=advantages * (1.0 if importance is None else importance),
        capability_ratio=capability_ratio,
        source_mean_logprobs=np.array([view.source_mean_logprob for view in views], dtype=np.float64),
        uniform=result.uniform.numpy(),
        scorable=np.array([view.scorable for view in views], dtype=bool),
        dropped=pool.dropped,
        importance=importance,
        token_importance=token_importance,
    )


def _importance(
    pool: RolloutPool, views: Sequence[View], from_self: np.ndarray, algorithm: AlgorithmConfig
) -> tuple[np.ndarray | None, list[np.ndarray] | None]:
    """Weights of responses or of their tokens, see `algorithm.importance`; None where the level is another."""
    cap = algorithm.importance_cap
    if algorithm.importance_correction == "sequence":
        weights = [sequence_weight(r.logprobs, r.engine_logprobs, cap) for r in pool.rollouts]
        return np.array(weights, dtype=np.float64), None
    if algorithm.importance_correction == "token":
        return None, [
            token_weights(rollout.logprobs, rollout.engine_logprobs, cap)[: len(view.token_ids)]
            if own
            else np.ones(len(view.token_ids), dtype=np.float32)
            for rollout, view, own in zip(pool.rollouts, views, from_self, strict=True)
        ]
    return None, None


def _weights(algorithm: AlgorithmConfig) -> AdvantageConfig:
    if algorithm.name != "naive":
        return algorithm.advantage
    return algorithm.advantage.model_copy(
        update={"capability_baseline": False, "modulation": False, "reward_max_guard": False}
    )

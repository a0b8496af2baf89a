"""Answers to held-out problems, with sampling settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hacpo_fast.config import SamplingConfig
from hacpo_fast.reward_watch import Check
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Engine, Sampling
from hacpo_fast.rollouts.records import record_rollouts
from hacpo_fast.run.metrics import summarise_samples
from hacpo_fast.tasks import Problem, RewardPool


def validate(
    engine: Engine,
    codec: Codec,
    problems: Sequence[Problem],
    prompts: Sequence[np.ndarray],
    settings: Mapping[str, SamplingConfig],
    max_tokens: int,
    rewards: RewardPool,
    reward_max: float,
    seed: int,
    watch: Callable[[Sequence[Check]], int],
) -> dict[str, dict[str, float]]:
    """Scores by name of the sampling settings: accuracy for one sample per problem, avg@k, pass@k and best@k for k.

    A response whose reward failed counts as 0. `watch` (RewardWatch.failures) is shown all checks and counts those;
    where there are some, the scores have the number as `reward_errors`.
    """
    engine.sync()
    scores = {}
    for name, chosen in settings.items():
        sampling = Sampling(chosen.samples, chosen.temperature, max_tokens, chosen.top_p, chosen.top_k)
        rollouts = record_rollouts(0, codec, engine.generate(prompts, sampling, seed))
        results = rewards.score([(rollout.text, problems[rollout.prompt]) for rollout in rollouts])
        failed = watch(
            [
                (rollout.text, problems[rollout.prompt], result)
                for rollout, result in zip(rollouts, results, strict=True)
            ]
        )
        values = np.array([result.value for result in results]).reshape(len(problems), chosen.samples)
        scores[name] = summarise_samples(values, reward_max) | ({"reward_errors": failed} if failed else {})
    return scores

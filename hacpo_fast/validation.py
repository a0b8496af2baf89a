"""Answers to problems that are not trained on, with sampling settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hacpo_fast.config import SamplingConfig
from hacpo_fast.reward_watch import Check
from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Engine, Sampling
from hacpo_fast.rollouts.records import Rollout, record_rollouts
from hacpo_fast.run.metrics import summarise_samples
from hacpo_fast.tasks import Problem, RewardPool, RewardResult


class Answered(NamedTuple):
    """A problem with all responses to it and what the reward said of each."""

    problem: Problem
    rollouts: list[Rollout]
    results: list[RewardResult]

    @property
    def checks(self) -> list[Check]:
        return [(one.text, self.problem, result) for one, result in zip(self.rollouts, self.results, strict=True)]


def answer(
    engine: Engine,
    codec: Codec,
    problems: Sequence[Problem],
    prompts: Sequence[np.ndarray],
    chosen: SamplingConfig,
    max_tokens: int,
    rewards: RewardPool,
    seed: int,
) -> list[Answered]:
    """`chosen.samples` verified responses to every problem, in the order of the problems.

    prompts: each problem's in the agent's tokens. engine: of the weights that it was last synced to.
    """
    sampling = Sampling(chosen.samples, chosen.temperature, max_tokens, chosen.top_p, chosen.top_k)
    rollouts = record_rollouts(0, codec, engine.generate(prompts, sampling, seed))
    results = rewards.score([(rollout.text, problems[rollout.prompt]) for rollout in rollouts])
    k = chosen.samples
    return [
        Answered(problem, rollouts[i * k : (i + 1) * k], results[i * k : (i + 1) * k])
        for i, problem in enumerate(problems)
    ]


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
        answered = answer(engine, codec, problems, prompts, chosen, max_tokens, rewards, seed)
        failed = watch([check for one in answered for check in one.checks])
        values = [[result.value for result in one.results] for one in answered]
        scores[name] = summarise_samples(values, reward_max) | ({"reward_errors": failed} if failed else {})
    return scores

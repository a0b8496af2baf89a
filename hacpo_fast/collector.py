"""The first half of a step: every agent answers every prompt, and the answers are verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hacpo_fast.agent import Agent
from hacpo_fast.config import Config
from hacpo_fast.mismatch import recompute
from hacpo_fast.reward_watch import RewardWatch
from hacpo_fast.rollouts.records import Rollout, RolloutPool, drop_failed_groups
from hacpo_fast.run.output import RunOutput
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.seeds import Purpose, derive
from hacpo_fast.tasks import Problem, RewardPool, RewardResult

Prompts = Callable[[Agent, Sequence[Problem]], list[np.ndarray]]


class Collected(NamedTuple):
    """The answers of a step; by agent, how far recomputed log-probs were from the engine's, where they were."""

    pool: RolloutPool
    mismatch: dict[str, float]
    reward_p95_seconds: float


class Collector:
    """Nothing here changes an agent: what is collected for a step may be thrown away and collected again.

    prompts: an agent's tokens of problems.
    """

    def __init__(
        self, agents: Sequence[Agent], prompts: Prompts, config: Config, rewards: RewardPool, output: RunOutput
    ):
        self.agents, self.prompts, self.config = agents, prompts, config
        self.rewards, self.output = rewards, output
        self.watch = RewardWatch(config.task.reward_failure, output.note)
        self.noted_large_rewards = False

    def collect(self, step: int, problems: Sequence[Problem], phases: Phases) -> Collected:
        """Answers of all agents to `problems`. They are verified while the next agent samples or scores."""
        rollouts, verifying = [], []
        for agent in self.agents:
            seed = derive(self.config.run.seed, Purpose.ROLLOUT, step, agent.index)
            self.output.phase(f"{agent.name} answers")
            with phases("rollout", agent.name):
                answers = agent.rollout(self.prompts(agent, problems), self.config.samples_per_prompt, seed)
            verifying.append(self.rewards.submit([(answer.text, problems[answer.prompt]) for answer in answers]))
            rollouts += answers
        pool = RolloutPool(problems, [agent.name for agent in self.agents], rollouts)
        mismatch: dict[str, float] = {}
        if self.config.scores_rollouts:
            with phases("recompute"):
                pool, mismatch = recompute(pool, self.agents, self.prompts, self.config)
        with phases("verify"):
            results = [result for handle in verifying for result in handle.result()]
        self._look_at_rewards(step, pool, results, phases)
        seconds = float(np.quantile([result.seconds for result in results], 0.95))
        return Collected(replace(pool, rollouts=self._verified(pool.rollouts, results)), mismatch, seconds)

    def _verified(self, rollouts: Sequence[Rollout], results: Sequence[RewardResult]) -> list[Rollout]:
        verified = [
            replace(rollout, reward=result.value, reward_error=result.error)
            for rollout, result in zip(rollouts, results, strict=True)
        ]
        if self.config.task.reward_failure == "drop_group":
            return drop_failed_groups(verified, self.config.algorithm.shares)
        return verified

    def _look_at_rewards(self, step: int, pool: RolloutPool, results: Sequence[RewardResult], phases: Phases) -> None:
        """Tells of rewards that fail, are slow or are larger than the settings say; some failures stop the run."""
        checks = [
            (self.agents[rollout.source].name, (rollout.text, pool.problems[rollout.prompt], result))
            for rollout, result in zip(pool.rollouts, results, strict=True)
        ]
        for agent in self.agents:
            self.watch.failures(f"step {step}", agent.name, [check for name, check in checks if name == agent.name])
        self.watch.slow(f"step {step}", phases.spent("verify", ""), phases.seconds()["total"], checks)
        largest, limit = max(result.value for result in results), self.config.algorithm.advantage.reward_max
        if largest > limit and not self.noted_large_rewards:
            self.noted_large_rewards = True
            self.output.note(f"a reward of {largest:g} is above algorithm.advantage.reward_max={limit:g}: raise it")

"""Whether an agent's engine and its policy agree on the log-probs of what was sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hacpo_fast.agent import Agent
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.rollouts.records import RolloutPool
from hacpo_fast.scoring import score
from hacpo_fast.tasks import Problem


def recompute(
    pool: RolloutPool,
    agents: Sequence[Agent],
    prompts: Callable[[Agent, Sequence[Problem]], list[np.ndarray]],
    config: Config,
) -> tuple[RolloutPool, dict[str, float]]:
    """The pool with log-probs of each source's own policy in place of the engine's, and their mean difference."""
    rollouts, mismatch = [], {}
    for agent in agents:
        own = pool.of(agent.index).rollouts
        tokens = prompts(agent, pool.problems)
        sequences = [(tokens[rollout.prompt], rollout.token_ids) for rollout in own]
        problems = np.array([rollout.prompt for rollout in own])
        scores = score(agent.policy, sequences, agent.temperature, config.training.token_budget, problems)
        differences = np.concatenate([np.abs(new - rollout.logprobs) for new, rollout in zip(scores, own, strict=True)])
        mismatch[agent.name] = float(differences.mean(dtype=np.float64)) if len(differences) else 0.0
        check(agent.name, mismatch[agent.name], config.rollout.max_mismatch)
        rollouts += [
            replace(rollout, logprobs=new, engine_logprobs=rollout.logprobs)
            for rollout, new in zip(own, scores, strict=True)
        ]
    return replace(pool, rollouts=rollouts), mismatch


def check(agent: str, mismatch: float, limit: float) -> None:
    """Raises UserError if the mean difference of an agent's log-probs (nats per token) is above `limit`."""
    if not mismatch <= limit:  # also catches NaN
        raise UserError(
            f"agents.{agent}: engine and policy log-probs of its own responses differ by {mismatch:.3g} nats per token "
            f"(rollout.max_mismatch is {limit:g}). Likely causes: the engine answers with old weights or from "
            "keys and values cached for them, a tied output head that one of the two does not tie, another "
            "temperature, prompts of a tokenizer that is not the model's, or a precision too low for these weights "
            "(then raise the limit, with rollout.logprobs=recompute)"
        )

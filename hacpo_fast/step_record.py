"""What a training step leaves behind: numbers for the logs and a sample of its responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hacpo_fast.agent import Agent
from hacpo_fast.learner import Learner
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.rollouts.records import RolloutPool
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.rollout_log import RolloutSample


def no_signal_share(pool: RolloutPool) -> float:
    """Share of prompts whose rewards, of all agents together, are all equal, or that were dropped: nothing to learn."""
    order = np.argsort(pool.prompt, kind="stable")
    starts = np.flatnonzero(np.diff(pool.prompt[order], prepend=-1))
    rewards, dropped = pool.reward[order], pool.dropped[order]
    equal = np.maximum.reduceat(rewards, starts) == np.minimum.reduceat(rewards, starts)
    return float(np.mean(equal | np.logical_and.reduceat(dropped, starts)))


def agent_record(
    agent: Agent, pool: RolloutPool, learner: Learner, capability: float, phases: Phases, reward_max: float
) -> dict[str, Any]:
    """One agent's numbers of one step. Ratios are those before clipping; shares and means are over responses.

    Reward and accuracy leave out dropped responses, and are None where all were.
    """
    own = pool.of(agent.index)
    verified = own.verified_reward
    lengths = np.array([len(rollout.token_ids) for rollout in own.rollouts])
    means, spreads = learner.passes.accumulator.means(), learner.passes.accumulator.spreads()
    record = {
        "updates": agent.updates,
        "time": phases.seconds_of(agent.name),
        "peak_memory": phases.peaks(agent.name),
        "skipped_updates": learner.skipped_updates,
        "reward": float(verified.mean()) if len(verified) else None,
        "accuracy": float((verified >= reward_max).mean()) if len(verified) else None,
        "capability": capability,
        "no_signal_share": _share_by_prompt(learner.batch),
        "reward_errors": sum(rollout.reward_error is not None for rollout in own.rollouts),
        "dropped_prompts": len(np.unique(learner.batch.prompt[learner.batch.dropped])),
        "response_tokens": float(lengths.mean()),
        "truncated_share": float(np.mean([not rollout.ended for rollout in own.rollouts])),
        # -log p of what the policy itself sampled estimates its entropy without bias, at no cost.
        "entropy": float(-np.concatenate([rollout.logprobs for rollout in own.rollouts]).mean(dtype=np.float64)),
        "lr": learner.lr,
        "cross_lower": learner.algorithm.cross_lower,
        "generated_tokens_per_second": float(lengths.sum() / phases.spent("rollout", agent.name)),
        "trained_tokens_per_second": learner.passes.trained_tokens / phases.spent("learn", agent.name),
        "unscorable_share": learner.batch.unscorable_share,
        "live_share": float(learner.passes.needed.mean()),
        "screened_share": learner.passes.screened_out / len(learner.batch.prompt),
        **{f"{name}_std": spread for name, spread in spreads.items() if name.endswith("_ratio")},
    }
    for name, mean in means.items():
        record[f"{name}_mean" if name.endswith("_ratio") else name] = mean
    return record


def _share_by_prompt(batch: LearnerBatch) -> float:
    """Share of the prompts from whose responses, as this learner sees them, nothing can be learnt."""
    silent = batch.uniform | batch.dropped
    return float(np.mean(silent[np.unique(batch.prompt, return_index=True)[1]]))


def sample_rollouts(
    step: int, pool: RolloutPool, batches: Mapping[str, LearnerBatch], per_agent: int, rng: np.random.Generator
) -> list[RolloutSample]:
    """Some responses of each agent, drawn at random, with the advantage that every learner gave them.

    Responses whose reward failed come first, as many again: those are looked for.
    """
    samples = []
    for source, agent in enumerate(pool.agents):
        rows = np.flatnonzero(pool.source == source)
        drawn = sorted(rng.choice(rows, size=min(per_agent, len(rows)), replace=False).tolist())
        failed = [row for row in rows.tolist() if pool.rollouts[row].reward_error is not None][:per_agent]
        for row in failed + [row for row in drawn if row not in failed]:
            rollout = pool.rollouts[row]
            samples.append(
                RolloutSample(
                    step=step,
                    agent=agent,
                    prompt=pool.problems[rollout.prompt].prompt,
                    response=rollout.text,
                    reward=rollout.reward,
                    error=rollout.reward_error,
                    dropped=rollout.dropped,
                    advantages=_advantages(row, source, pool, batches),
                    truncated=not rollout.ended,
                )
            )
    return samples


def _advantages(row: int, source: int, pool: RolloutPool, batches: Mapping[str, LearnerBatch]) -> dict[str, float]:
    """Each learner's advantage of the pool's response `row`, if it trains on it."""
    advantages = {}
    for learner, batch in batches.items():
        if len(batch.prompt) == len(pool.prompt):
            advantages[learner] = float(batch.advantages[row])
        elif learner == pool.agents[source]:  # not shared: the batch holds the agent's own responses alone
            advantages[learner] = float(batch.advantages[np.flatnonzero(pool.source == source).searchsorted(row)])
    return advantages

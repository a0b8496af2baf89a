"""Rollouts as agents exchange them: tokenizer-neutral records, and the pool of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hacpo_fast.rollouts.codec import Codec
from hacpo_fast.rollouts.engine import Sample
from hacpo_fast.tasks.problems import Problem


@dataclass(frozen=True)
class Rollout:
    """One agent's response to one prompt of a step."""

    prompt: int  # number of the problem within the step
    source: int  # number of the agent that sampled it
    text: str  # what the others read
    token_ids: np.ndarray  # [L] int64 in the source's tokens, byte for byte as sampled, end token included
    logprobs: np.ndarray  # [L] float32 under the source's policy at rollout time, at its sampling temperature
    exchanged: np.ndarray  # [L] bool: tokens that `text` is made of
    ended: bool  # by an end token; False: cut at the token limit
    engine_logprobs: np.ndarray | None = None  # [L] float32, where `logprobs` are no longer those of the engine
    reward: float = 0.0
    reward_error: str | None = None
    dropped: bool = False  # nobody learns from it, nor does it count in a capability

    @property
    def exchanged_mean_logprob(self) -> float:
        """Mean log-prob of the exchanged text on the source's tokens.

        A response of special tokens alone (an immediate end, say) is exchanged as the empty text, and what the source
        did is then all that it sampled.
        """
        chosen = self.logprobs[self.exchanged] if self.exchanged.any() else self.logprobs
        return float(chosen.mean(dtype=np.float64)) if len(chosen) else 0.0


def record_rollouts(source: int, codec: Codec, samples: Sequence[Sequence[Sample]]) -> list[Rollout]:
    """Records of one agent's samples, prompt by prompt."""
    flat = [(prompt, sample) for prompt, group in enumerate(samples) for sample in group]
    exchanged = [codec.exchanged(sample.token_ids) for _, sample in flat]
    texts = codec.decode([sample.token_ids[keep] for (_, sample), keep in zip(flat, exchanged, strict=True)])
    return [
        Rollout(prompt, source, text, sample.token_ids, sample.logprobs, keep, sample.ended)
        for (prompt, sample), keep, text in zip(flat, exchanged, texts, strict=True)
    ]


def drop_failed_groups(rollouts: Sequence[Rollout], shared: bool) -> list[Rollout]:
    """The same, with every response dropped whose group holds one that could not be verified.

    A group is what is compared with each other: all responses to a prompt, or one agent's where agents do not share.
    """

    def group(rollout: Rollout) -> tuple[int, ...]:
        return (rollout.prompt,) if shared else (rollout.prompt, rollout.source)

    failed = {group(rollout) for rollout in rollouts if rollout.reward_error is not None}
    return [replace(rollout, dropped=True) if group(rollout) in failed else rollout for rollout in rollouts]


@dataclass(frozen=True)
class RolloutPool:
    """All responses of one step, with their rewards: what every agent learns from."""

    problems: Sequence[Problem]
    agents: Sequence[str]
    rollouts: Sequence[Rollout]

    @cached_property
    def prompt(self) -> np.ndarray:
        """[R] int64: number of each response's problem."""
        return np.array([rollout.prompt for rollout in self.rollouts], dtype=np.int64)

    @cached_property
    def source(self) -> np.ndarray:
        """[R] int64: number of the agent that sampled each response."""
        return np.array([rollout.source for rollout in self.rollouts], dtype=np.int64)

    @cached_property
    def reward(self) -> np.ndarray:
        """[R] float64."""
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)

    @cached_property
    def dropped(self) -> np.ndarray:
        """[R] bool: responses that have no influence on anything that is learnt."""
        return np.array([rollout.dropped for rollout in self.rollouts], dtype=bool)

    @property
    def verified_reward(self) -> np.ndarray:
        """[<= R] float64: rewards of the responses that are not dropped."""
        return self.reward[~self.dropped]

    def of(self, agent: int) -> RolloutPool:
        """The responses of one agent alone, for algorithms that do not share."""
        return replace(self, rollouts=[rollout for rollout in self.rollouts if rollout.source == agent])

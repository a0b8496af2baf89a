"""Capability-aware advantages over the joint responses of all agents (Eq. 5-7)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hacpo_fast.config import AdvantageConfig


class Advantages(NamedTuple):
    advantage: Tensor  # [R]; not yet weighted by the capability ratio (Eq. 10)
    baseline: Tensor  # [R]; what each reward was held against
    uniform: Tensor  # [R] bool; all rewards of its prompt are equal


def joint_advantages(
    rewards: Tensor, prompt: Tensor, source: Tensor, ratios: Tensor, learner: int, settings: AdvantageConfig
) -> Advantages:
    """Advantages for `learner` of all responses to the prompts of a step.

    rewards [R] float; prompt [R] and source [R] int64, numbering prompts and agents from 0; ratios [agents, agents]
    with ratios[k, j] = capability of j over that of k (`capability_ratios`). Prompts may have any number of responses.
    All results have the dtype of `rewards`.
    """
    prompts = int(prompt.max()) + 1 if len(prompt) else 0

    def mean_by_prompt(values: Tensor, chosen: Tensor | None = None) -> Tensor:
        weights = torch.ones_like(values) if chosen is None else chosen.to(values.dtype)
        total = values.new_zeros(prompts).index_add_(0, prompt, values * weights)
        return total / values.new_zeros(prompts).index_add_(0, prompt, weights)  # NaN where nothing was chosen

    plain = mean_by_prompt(rewards)
    spread = rewards - plain[prompt]
    count = torch.bincount(prompt, minlength=prompts)
    variance = mean_by_prompt(spread * spread) * count / (count - 1).clamp(min=1)
    high = rewards.new_zeros(prompts).scatter_reduce_(0, prompt, rewards, "amax", include_self=False)
    low = rewards.new_zeros(prompts).scatter_reduce_(0, prompt, rewards, "amin", include_self=False)
    uniform = high == low

    def baseline_of(agent: int) -> Tensor:
        baseline = plain
        if settings.capability_baseline:
            baseline = mean_by_prompt(rewards / ratios[agent, source])
        if settings.reward_max_guard:
            own = mean_by_prompt(rewards, source == agent)
            own = torch.where(own.isnan(), plain, own)
            baseline = torch.where(baseline > settings.reward_max, own, baseline)
        if settings.uniform_guard:  # high, not the mean: equal rewards must cancel to exactly 0
            baseline = torch.where(uniform, high, baseline)
        return baseline

    if settings.cross == "learner":
        baseline = baseline_of(learner)[prompt]
    else:
        baseline = torch.stack([baseline_of(agent) for agent in range(len(ratios))])[source, prompt]
    advantage = (rewards - baseline) / (variance.sqrt()[prompt] + settings.eps)
    return Advantages(advantage, baseline, uniform[prompt])

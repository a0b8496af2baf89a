"""Capability of the agents and their ratio (Eq. 8-9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from torch import Tensor

from hacpo_fast.config import CapabilityConfig


class CapabilityTracker:
    """Moving average of what each agent achieved on its own rollouts in the last `window` steps (Eq. 8)."""

    def __init__(self, agents: Sequence[str], settings: CapabilityConfig):
        self.settings = settings
        self._history = {agent: deque(maxlen=settings.window) for agent in agents}

    def update(self, own_rewards: Mapping[str, Tensor]) -> dict[str, float]:
        """Takes each agent's own rewards [R] of this step; returns every agent's capability, this step included.

        An agent without a reward in this step keeps what it had.
        """
        for agent, rewards in own_rewards.items():
            if len(rewards):
                rewards = rewards.double()
                achieved = rewards.mean() if self.settings.metric == "mean_reward" else (rewards > 0).double().mean()
                self._history[agent].append(max(achieved.item(), self.settings.floor))
        return self.capabilities()

    def capabilities(self) -> dict[str, float]:
        """Every agent's capability; `floor` before its first rewards."""
        return {
            agent: sum(history) / len(history) if history else self.settings.floor
            for agent, history in self._history.items()
        }

    def state_dict(self) -> dict[str, list[float]]:
        return {agent: list(history) for agent, history in self._history.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        for agent, history in self._history.items():
            history.clear()
            history.extend(state[agent])


def capability_ratios(capability: Tensor, settings: CapabilityConfig) -> Tensor:
    """`ratios[k, j]`: how capable source j is beside learner k, bounded (Eq. 9).

    capability: [agents]. Returns [agents, agents] in the same dtype, 1 on the diagonal. The bound is applied here:
    the baseline divides by this ratio and the gradient multiplies by it, so that the two stay each other's inverse.
    """
    ratios = capability[None, :] / capability[:, None]
    ratios = ratios.clamp(settings.ratio_min, settings.ratio_max)
    return ratios.fill_diagonal_(1.0)

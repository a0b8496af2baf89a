"""The lower end of the range in which other agents' responses count, kept where a share of them stays live.

The paper fixes it (`cross_lower`, Eq. 13). How far the ratios of other agents' responses lie below 1 depends on how
unlike the agents are, from pair to pair and in the course of a run: a fixed end that lets half of them through for one
pair discards nearly all for another. Here the end follows from what was measured. In a step, let s_i be the ratios
before clipping and m_i the number of updates before theirs; response i is live under the end b if

    b + m_i * cross_lower_step <= s_i <= cross_upper.

The b under which the target share of a step's responses would have been live is a quantile of s_i - m_i *
cross_lower_step, where those above cross_upper count as least. The next step has the mean of these b over the last
WINDOW steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from hacpo_fast.config import AlgorithmConfig

WINDOW = 3
"""Steps: ratios drift within a few of them, and those of one alone are too noisy a measurement."""


class CrossBound:
    """The lower end for one learner; `cross_lower` while nothing has been measured, and always where it is fixed."""

    def __init__(self, settings: AlgorithmConfig):
        self.settings = settings
        self._measured: deque[float] = deque(maxlen=WINDOW)
        self._seen: list[tuple[Tensor, Tensor]] = []  # of this step: ratios less the rise at their update, which count

    @property
    def lower(self) -> float:
        """For the first update of a step."""
        return sum(self._measured) / len(self._measured) if self._measured else self.settings.cross_lower

    def applied(self, algorithm: AlgorithmConfig) -> AlgorithmConfig:
        """`algorithm` with the lower end as it is now."""
        return algorithm.model_copy(update={"cross_lower": self.lower})

    def observe(self, ratios: Tensor, cross: Tensor, updates_done: int) -> None:
        """Ratios [R] before clipping in an update that follows `updates_done` others; those of `cross` [R] bool count.

        Nothing is read here, so that a GPU is not waited for.
        """
        if self.settings.cross_bound == "adaptive":
            ratios = ratios.detach().double()
            risen = ratios - updates_done * self.settings.cross_lower_step
            self._seen.append((torch.where(ratios <= self.settings.cross_upper, risen, -torch.inf), cross))

    def end_step(self) -> None:
        """Takes in what was observed since the last call. The end moves here, never within a step."""
        values = [values[cross] for values, cross in self._seen]
        self._seen.clear()
        if any(len(each) for each in values):
            self._measured.append(live_bound(torch.cat(values), self.settings.cross_live_target))

    def state_dict(self) -> list[float]:
        return list(self._measured)

    def load_state_dict(self, state: Sequence[float]) -> None:
        self._measured.clear()
        self._measured.extend(state)


def live_bound(values: Tensor, target: float) -> float:
    """The largest bound in [0, 1] at or above which lies a share of at least `target` of `values` [R], R > 0.

    0 where even all values that are not negative are fewer.
    """
    wanted = max(1, -int(-target * len(values) // 1))  # rounded up
    bound = values.sort(descending=True).values[min(wanted, len(values)) - 1].item()
    return min(1.0, max(0.0, bound))

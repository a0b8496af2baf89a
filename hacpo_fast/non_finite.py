"""What happens when numbers are not finite: of an update, or of the weights that a run starts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from hacpo_fast.errors import UserError
from hacpo_fast.policy.optimizer import Update

if TYPE_CHECKING:
    from hacpo_fast.learner import Learner
    from hacpo_fast.passes import MiniBatch


class TooManySkipped(Exception):
    """So many updates in a row were left out that the run is to stop.

    Attributes:
        learner, minibatch: what the last of them was made of. The agent is as it was before all of them.
    """

    def __init__(self, learner: Learner, minibatch: MiniBatch):
        agent = learner.agent
        super().__init__(
            f"agents.{agent.name}: {agent.skipped_in_a_row} updates in a row had a loss or gradient that is not finite "
            "and were left out (training.max_skipped_updates)"
        )
        self.learner, self.minibatch = learner, minibatch


def watch(learner: Learner, update: Update, minibatch: MiniBatch) -> None:
    """Looks at the update of a mini-batch that has just been made or left out.

    A gradient that is not finite changes nothing, and the run goes on: it is rare, and one response may be to blame.
    Weights that are not finite end the run at once: all that follows would be made of them, and to be able to undo an
    update would take a second copy of the weights. Checkpoints are written after whole steps, so none has them.

    Raises:
        TooManySkipped: training.max_skipped_updates were left out in a row.
        UserError: a weight is not finite.
    """
    agent = learner.agent
    if update.status == "non_finite":
        agent.skipped_in_a_row += 1
        if agent.skipped_in_a_row >= learner.config.training.max_skipped_updates:
            raise TooManySkipped(learner, minibatch)
    elif update.applied:
        agent.skipped_in_a_row = 0
        if not agent.optimizer.weights_are_finite():
            raise UserError(
                f"agents.{agent.name}: an update made weights that are not finite (gradient norm {update.norm:.3g}, "
                f"learning rate {learner.lr:.3g}). The checkpoints are from before; lower training.lr or "
                "training.max_grad_norm, and look at training.adam_eps"
            )


def check_weights(agent: str, place: str, model: nn.Module) -> None:
    """Looks once at the weights of `agent` that have just been loaded from `place`: about 0.4 s per 10^9 of them.

    Raises:
        UserError: some are NaN or infinite; it names the first tensors that hold such.
    """
    if broken := broken_weights(model):
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise UserError(
            f"agents.{agent}.model: {place} has weights that are NaN or infinite, in {', '.join(broken[:3])}{more}; "
            "the file is damaged, or the training that wrote it failed. Take an earlier checkpoint, or fetch it again"
        )


def broken_weights(model: nn.Module) -> list[str]:
    """Names of the weights that hold a number that is not finite."""
    return [name for name, weight in model.named_parameters() if weight.numel() and not _finite(weight.detach())]


def _finite(weight: torch.Tensor) -> bool:
    # Smallest and largest are NaN where one weight is, exact in every dtype, and need no copy as isfinite does.
    return bool(torch.stack(torch.aminmax(weight)).isfinite().all())

"""An update that stopped a run, made again: response by response, then as it was."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn

from hacpo_fast.agent import Agent, read_card
from hacpo_fast.non_finite import broken_weights
from hacpo_fast.passes import Passes
from hacpo_fast.policy.optimizer import Update
from hacpo_fast.replay_file import Replay
from hacpo_fast.run.text import printable


@dataclass(frozen=True)
class RowResult:
    """One response's part of an update: its share of the loss and the norm of its gradient, alone."""

    row: int
    loss: float
    grad_norm: float

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True)
class Result:
    """broken_weights: names of weights that are not finite. rows: responses with a gradient. update: all together."""

    agent: Agent
    broken_weights: list[str]
    rows: list[RowResult]
    update: Update


def replay(saved: Replay, device: torch.device) -> Result:
    """Makes the update on the agent's saved state, first response by response without updating, then as it was."""
    agent = _agent(saved, device)
    passes = Passes(agent, saved.batch, saved.config, saved.config.algorithm, saved.reference_logprobs)
    optimizer = agent.optimizer
    broken = broken_weights(agent.policy.model)
    needed, rows = np.flatnonzero(passes.needed), []
    for row in needed:
        loss = passes.train(np.array([row]), saved.minibatch).item()
        rows.append(RowResult(int(row), loss, nn.utils.get_total_norm([*optimizer.gradients().values()]).item()))
        optimizer.zero_grad()
    loss = sum(passes.train(part, saved.minibatch).item() for part in passes.micro_batches(needed))
    optimizer.clip_and_norm(saved.config.training.max_grad_norm)
    update = optimizer.step(saved.lr) if math.isfinite(loss) else optimizer.discard()
    return Result(agent, broken, rows, update)


def _agent(saved: Replay, device: torch.device) -> Agent:
    # The tokenizer is read from the saved state too, and so is what a KL term needs: the models may be gone.
    settings = saved.config.agents[saved.agent].model_copy(
        update={"model": str(saved.state), "tokenizer": None, "revision": None}
    )
    plain = saved.config.algorithm.model_copy(update={"kl_coef": 0.0})
    config = saved.config.model_copy(update={"algorithm": plain})
    index = list(saved.config.agents).index(saved.agent)
    return Agent(index, read_card(saved.agent, settings), config, device, saved.state)


def show(saved: Replay, result: Result, console: Console) -> None:
    """Prints the table of responses, the worst first, and what is to blame."""
    batch, names = saved.batch, list(saved.config.agents)
    console.print(
        f"step {saved.step}, agents.{saved.agent}, update {saved.minibatch.updates_done + 1} of the step: "
        f"{len(batch.prompt)} responses, {len(result.rows)} of them with a gradient, learning rate {saved.lr:g}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    table = Table(
        "response", "problem", "by", "tokens", "advantage", "loss", "gradient norm", "text", box=box.SIMPLE_HEAD
    )
    tokenizer = result.agent.codec.tokenizer
    for one in sorted(result.rows, key=lambda one: (one.finite, -one.grad_norm)):
        tokens = batch.views[one.row].token_ids
        table.add_row(
            str(one.row), str(batch.prompt[one.row]), names[batch.source[one.row]], str(len(tokens)),
            f"{batch.advantages[one.row] * batch.capability_ratio[one.row]:.3g}", f"{one.loss:.3g}",
            f"{one.grad_norm:.3g}", Text(printable(tokenizer.decode(tokens), limit=60)),
            style=None if one.finite else "red",
        )  # fmt: skip
    console.print(table)
    culprits = [str(one.row) for one in result.rows if not one.finite]
    if result.broken_weights:
        verdict = f"the agent's own weights are not finite: {', '.join(result.broken_weights[:5])}"
    elif culprits:
        verdict = f"not finite alone: response {', '.join(culprits)}"
    elif result.update.status == "non_finite":
        verdict = "every response is finite alone, their sum is not: the gradients are too large"
    else:
        verdict = "all is finite here; on the device of the run it was not"
    console.print(
        f"{verdict}\nthe update as a whole: {result.update.status}, gradient norm {result.update.norm:.3g}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip

"""Passes of an agent's model over the responses of a mini-batch: training ones, and ones that only look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.kl import k3_penalty
from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.config import AlgorithmConfig, Config
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.policy.batch import PackedBatch, to_device
from hacpo_fast.policy.micro_batches import micro_batches
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.metrics import Accumulator
from hacpo_fast.run.phases import timed
from hacpo_fast.scoring import score
from hacpo_kernels import PolicyLossStats, linear_policy_loss, policy_loss


@dataclass(frozen=True)
class MiniBatch:
    """The responses of one optimiser update."""

    rows: np.ndarray  # [n] int64; the loss is divided by n, though some need not be computed
    updates_done: int  # in this step, before this one
    on_policy: bool  # the weights are those that the step began with


class Passes:
    """Passes over the responses of `batch`; `rows` are numbers of responses.

    Attributes:
        needed: [R] bool, the responses with a gradient: all others need no pass.
        reference_logprobs: by row, [L] float32 each, of the initial policy; where the loss has a KL term.
        accumulator: what there was to measure. trained_tokens: of the sequences that were trained on.
        screened_out: responses that were scored and then left out.
    """

    def __init__(
        self,
        agent: Agent,
        batch: LearnerBatch,
        config: Config,
        algorithm: AlgorithmConfig,
        reference_logprobs: dict[int, np.ndarray] | None = None,
    ):
        """algorithm: config.algorithm, its bounds as they are now. reference_logprobs: None: scored if wanted."""
        self.agent, self.batch, self.config, self.algorithm = agent, batch, config, algorithm
        self.needed = batch.needed(kl=bool(algorithm.kl_coef))
        self.accumulator = Accumulator()
        self.trained_tokens = 0
        self.screened_out = 0
        self._groups = self._shared_prompts()
        if reference_logprobs is None and agent.reference is not None:
            own = np.flatnonzero(self.needed & batch.from_self)
            reference_logprobs = dict(zip(own.tolist(), self.score(own, agent.reference), strict=True))
        self.reference_logprobs = reference_logprobs

    @timed("pack")
    def micro_batches(self, rows: np.ndarray) -> list[np.ndarray]:
        """`rows`, as they go through the model together."""
        parts = micro_batches(self._sequences(rows), self._groups_of(rows), self.config.training.token_budget)
        return [rows[part] for part in parts]

    def train(self, rows: np.ndarray, minibatch: MiniBatch) -> Tensor:
        """Adds the gradient of these rows' part of the loss, a sum over them divided by the mini-batch's size.

        Returns that part of the loss, [] and detached.
        """
        policy, temperature = self.agent.policy, self.agent.temperature
        with timed("pack"):
            packed = PackedBatch.build(self._sequences(rows), policy.device, self._groups_of(rows))
            arguments = self._loss_arguments(rows, minibatch, policy.device)
        compared = self.reference_logprobs is not None or self.batch.token_importance is not None
        if compared or self.is_own_denominator(minibatch):
            with timed("forward"):
                token_logprobs = policy.token_logprobs(packed, temperature)
            with timed("loss"):
                loss, stats = self._loss(token_logprobs, packed.response_cu_seqlens, rows, minibatch, arguments)
        else:
            with timed("forward"):
                hidden = policy.hidden_rows(packed)
            on_host = self._cu_seqlens(rows)  # the operator would wait for a device's copy
            with timed("loss"):
                loss, token_logprobs, stats = linear_policy_loss(
                    hidden, targets=packed.targets, cu_seqlens=on_host, **arguments,
                    **policy.head.arguments(temperature),
                )  # fmt: skip
        with timed("backward"):
            loss.backward()
        self.trained_tokens += packed.sequence_tokens
        self._measure(stats, rows, minibatch)
        # With denominators of its own, only the first mini-batch still has the engine's log-probs.
        if minibatch.updates_done == 0 and (minibatch.on_policy or not self.config.old_policy_is_denominator):
            self.measure_mismatch(token_logprobs.detach().cpu().numpy(), rows)
        return loss.detach()

    def screen(self, rows: np.ndarray, minibatch: MiniBatch) -> tuple[np.ndarray, Tensor]:
        """Scores other agents' responses among `rows` and leaves out those that the clip discards.

        Returns:
            (the rest, the loss of what is left out: it has a value, though no gradient).
        """
        others = rows[~self.batch.from_self[rows]]
        if not len(others) or self.is_own_denominator(minibatch):
            return rows, torch.zeros(())
        scores = self.score(others, self.agent.policy)
        _, stats = self._loss_of_scores(scores, others, minibatch)
        out = np.flatnonzero(~stats.live.numpy())
        loss, stats = self._loss_of_scores([scores[i] for i in out], others[out], minibatch)
        self._measure(stats, others[out], minibatch)
        self.screened_out += len(out)
        return rows[~np.isin(rows, others[out])], loss

    def score(self, rows: np.ndarray, policy: Policy) -> list[np.ndarray]:
        """Token log-probs of each row under `policy`, [L] float32 each."""
        budget = self.config.training.token_budget
        return score(policy, self._sequences(rows), self.agent.temperature, budget, self.batch.prompt[rows])

    def is_own_denominator(self, minibatch: MiniBatch) -> bool:
        """Whether its ratios are all 1: the policy is held against itself, before any update."""
        return minibatch.on_policy and self.config.old_policy_is_denominator

    def _loss(
        self,
        token_logprobs: Tensor,
        cu_seqlens: Tensor,
        rows: np.ndarray,
        minibatch: MiniBatch,
        arguments: dict[str, Any],
    ) -> tuple[Tensor, PolicyLossStats]:
        """The loss of given log-probs, which a KL term, importance weights or denominators of their own need."""
        if self.is_own_denominator(minibatch):
            arguments = arguments | _denominators(token_logprobs.detach(), cu_seqlens)
        loss, stats = policy_loss(self._weighed(token_logprobs, rows), cu_seqlens, **arguments)
        if self.reference_logprobs is not None:
            loss = loss + self._kl(token_logprobs, cu_seqlens, rows) / len(minibatch.rows)
        return loss, stats

    def _loss_of_scores(
        self, scores: list[np.ndarray], rows: np.ndarray, minibatch: MiniBatch
    ) -> tuple[Tensor, PolicyLossStats]:
        token_logprobs = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.float32), *scores]))
        arguments = self._loss_arguments(rows, minibatch, token_logprobs.device)
        return policy_loss(token_logprobs, self._cu_seqlens(rows), **arguments)

    def _loss_arguments(self, rows: np.ndarray, minibatch: MiniBatch, device: torch.device) -> dict[str, Any]:
        """What `policy_loss` takes beside log-probs and where the responses end."""
        return {
            **self.batch.columns(rows, device, tokens=self.algorithm.name == "grpo"),
            "denominator": float(len(minibatch.rows)),
            **loss_arguments(self.algorithm, minibatch.updates_done),
        }

    def _weighed(self, token_logprobs: Tensor, rows: np.ndarray) -> Tensor:
        """The same log-probs [T], whose gradients are multiplied by importance weights where there are any."""
        if self.batch.token_importance is None:
            return token_logprobs
        parts = [self.batch.token_importance[row] for row in rows]
        own = np.repeat(self.batch.from_self[rows], [len(part) for part in parts])  # others' tokens are not weighed
        self.accumulator.add("importance_weight", np.concatenate(parts), own)
        weights = to_device(np.concatenate(parts), token_logprobs.device)
        weighed = token_logprobs.view_as(token_logprobs)  # another tensor: a KL term is not to be weighed
        weighed.register_hook(lambda gradient: gradient * weights)
        return weighed

    def _kl(self, token_logprobs: Tensor, cu_seqlens: Tensor, rows: np.ndarray) -> Tensor:
        parts = [
            self.reference_logprobs.get(row, np.zeros(len(self.batch.views[row].token_ids), dtype=np.float32))
            for row in rows.tolist()
        ]
        reference = to_device(np.concatenate(parts), token_logprobs.device)
        own = to_device(self.batch.from_self[rows], token_logprobs.device)
        penalty = k3_penalty(token_logprobs, reference, cu_seqlens, own)
        self.accumulator.add("kl", penalty / own.sum().clamp(min=1), own.sum())
        return self.algorithm.kl_coef * penalty

    @timed("measure")
    def _measure(self, stats: PolicyLossStats, rows: np.ndarray, minibatch: MiniBatch) -> None:
        own = to_device(self.batch.from_self[rows], stats.ratio.device)
        for kind, chosen in (("own", own), ("cross", ~own)):
            self.accumulator.add(f"{kind}_ratio", stats.ratio, chosen)
            self.accumulator.add(f"{kind}_clip_low", stats.clipped_low, chosen)
            self.accumulator.add(f"{kind}_clip_high", stats.clipped_high, chosen)
        self.accumulator.add("cross_live", stats.live, ~own)
        cross_objective = to_device(~self.batch.own_objective[rows], stats.ratio.device)
        self.agent.cross_bound.observe(stats.ratio, cross_objective, minibatch.updates_done)
        if self.batch.importance is not None:
            self.accumulator.add("importance_weight", self.batch.importance[rows])

    def measure_mismatch(self, token_logprobs: np.ndarray, rows: np.ndarray) -> None:
        """How far the engine's log-probs are from those [T] of the policy that it sampled from."""
        sampled = self.batch.sampled_logprobs(rows)
        known = ~np.isnan(sampled)
        if known.any():
            self.accumulator.add("mismatch", np.abs(token_logprobs[known] - sampled[known]))

    def _shared_prompts(self) -> np.ndarray | None:
        """[R] number of each row's prompt if prompts are laid out once in this step, which does not change results."""
        rows = np.flatnonzero(self.needed)
        together = self.batch.prompt[rows]
        if self.algorithm.minibatch_order == "own_first":  # each source has mini-batches of its own
            together = together * (self.batch.source.max() + 1) + self.batch.source[rows]
        shared = self.agent.policy.groups(self._sequences(rows), together)
        return None if shared is None else self.batch.prompt

    def _groups_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self._groups is None else self._groups[rows]

    def _sequences(self, rows: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        return [self.batch.sequence(row) for row in rows]

    def _cu_seqlens(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.cumsum([0, *(len(self.batch.views[row].token_ids) for row in rows)]))


def _denominators(token_logprobs: Tensor, cu_seqlens: Tensor) -> dict[str, Tensor]:
    """Arguments of a loss whose ratios are all 1: against the very policy that is being trained."""
    lengths = cu_seqlens.diff().long()
    means = torch.segment_reduce(token_logprobs.double(), "mean", lengths=lengths, initial=0.0)
    return {"source_mean_logprobs": means.float(), "source_token_logprobs": token_logprobs}

"""The updates of one agent in one step: mini-batches, packed micro-batches, loss, optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.minibatch import minibatches
from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.config import Config
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.mismatch import check
from hacpo_fast.non_finite import watch
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.micro_batches import micro_batches
from hacpo_fast.run.metrics import Accumulator
from hacpo_fast.run.phases import timed
from hacpo_fast.scoring import score
from hacpo_fast.screening import break_even
from hacpo_kernels import PolicyLossStats, linear_policy_loss, policy_loss


@dataclass(frozen=True)
class MiniBatch:
    """The responses of one optimiser update."""

    rows: np.ndarray  # [n] int64; the loss is divided by n, though some need not be computed
    updates_done: int  # in this step, before this one
    on_policy: bool  # the weights are those that the step began with


class Learner:
    """Trains `agent` on one `LearnerBatch`; `accumulator` holds what there was to measure."""

    def __init__(self, agent: Agent, batch: LearnerBatch, config: Config, lr: float, rng: np.random.Generator):
        """rng: draws the order of the prompts in the mini-batches."""
        self.agent, self.config, self.lr = agent, config, lr
        self.algorithm = agent.cross_bound.applied(config.algorithm)
        self.accumulator = Accumulator()
        self.trained_tokens = 0
        self.skipped_updates = 0
        self.screened_out = 0  # responses that were scored, and then left out
        # A KL term gives every own response a gradient, also those whose advantage is 0, if nobody dropped them.
        self.needed = batch.matters | (batch.from_self & ~batch.dropped & bool(self.algorithm.kl_coef))
        size = config.training.minibatch_responses
        self.minibatches = minibatches(
            batch.prompt, batch.source, agent.index, size, self.algorithm.minibatch_order, rng
        )
        self.groups = self._shared_prompts(batch)
        self.batch = self._with_old_policy(batch) if config.old_policy_is_denominator else batch
        self.reference_logprobs = self._reference_logprobs()
        self.screens = self._screens()

    def learn(self) -> None:
        """All updates of the step.

        Raises:
            UserError: engine and policy disagree, or the weights are not finite any more.
            TooManySkipped: too many updates in a row were not finite.
        """
        updates_done = 0
        for number, rows in enumerate(self.minibatches):
            if self._update(MiniBatch(rows, updates_done, on_policy=number == 0)):
                updates_done += 1
        self.agent.updates += updates_done
        others = int(np.sum(self.needed & ~self.batch.from_self))
        self.agent.clip_history.add(others - int(self.accumulator.totals().get("cross_live", 0)), others)
        self.agent.cross_bound.end_step()

    def _update(self, minibatch: MiniBatch) -> bool:
        """One optimiser update; False if nothing in it had a gradient, or one that is not finite."""
        rows = minibatch.rows[self.needed[minibatch.rows]]
        losses = []
        if self.screens and not self._is_own_denominator(minibatch):
            rows, loss = self._screen(rows, minibatch)
            losses.append(loss)
        losses += [self._backward(micro, minibatch) for micro in self._micro_batches(rows)]
        loss = sum(loss.item() for loss in losses)
        finite = math.isfinite(loss)
        unspoilt = finite and self.skipped_updates == 0  # else the mean difference is not finite either
        if minibatch.updates_done == 0 and unspoilt and "mismatch" in (means := self.accumulator.means()):
            check(self.agent.name, means["mismatch"], self.config.rollout.max_mismatch)
        with timed("optimizer"):
            self.agent.optimizer.clip_and_norm(self.config.training.max_grad_norm)
            update = self.agent.optimizer.step(self.lr) if finite else self.agent.optimizer.discard()
        self.accumulator.add("loss", loss)
        if update.applied:
            self.accumulator.add("grad_norm", update.norm)
        self.skipped_updates += update.status == "non_finite"
        watch(self, update, minibatch)
        return update.applied

    def _is_own_denominator(self, minibatch: MiniBatch) -> bool:
        """Whether its ratios are all 1: the policy is held against itself, before any update."""
        return minibatch.on_policy and self.config.old_policy_is_denominator

    @timed("pack")
    def _micro_batches(self, rows: np.ndarray) -> list[np.ndarray]:
        sequences = [self.batch.sequence(row) for row in rows]
        parts = micro_batches(sequences, self._groups(rows), self.config.training.token_budget)
        return [rows[part] for part in parts]

    def _backward(self, rows: np.ndarray, minibatch: MiniBatch) -> Tensor:
        """Adds the gradient of these rows' part of the loss: a sum over them, divided by the mini-batch's size."""
        policy, temperature = self.agent.policy, self.agent.temperature
        with timed("pack"):
            packed = PackedBatch.build([self.batch.sequence(row) for row in rows], policy.device, self._groups(rows))
            arguments = self._loss_arguments(rows, minibatch)
        weighed_or_compared = self.reference_logprobs is not None or self.batch.token_importance is not None
        if weighed_or_compared or self._is_own_denominator(minibatch):
            with timed("forward"):
                token_logprobs = policy.token_logprobs(packed, temperature)
            with timed("loss"):
                loss, stats = self._loss(token_logprobs, packed.response_cu_seqlens, rows, minibatch, arguments)
        else:
            lengths = [len(self.batch.views[row].token_ids) for row in rows]
            on_host = torch.from_numpy(np.cumsum([0, *lengths]))  # the operator would wait for a device's copy
            with timed("forward"):
                hidden = policy.hidden_rows(packed)
            with timed("loss"):
                loss, token_logprobs, stats = linear_policy_loss(
                    hidden, targets=packed.targets, cu_seqlens=on_host, **arguments,
                    **policy.head.arguments(temperature),
                )  # fmt: skip
        with timed("backward"):
            loss.backward()
        self.trained_tokens += packed.sequence_tokens
        self._measure(stats, rows, minibatch)
        if minibatch.updates_done == 0:
            self._measure_mismatch(token_logprobs.detach(), rows)
        return loss.detach()

    def _loss(
        self,
        token_logprobs: Tensor,
        cu_seqlens: Tensor,
        rows: np.ndarray,
        minibatch: MiniBatch,
        arguments: dict[str, Any],
    ) -> tuple[Tensor, PolicyLossStats]:
        """The loss of given log-probs, which a KL term, importance weights or denominators of their own need."""
        if self._is_own_denominator(minibatch):
            arguments = arguments | _denominators(token_logprobs.detach(), cu_seqlens)
        loss, stats = policy_loss(self._weighed(token_logprobs, rows), cu_seqlens, **arguments)
        if self.reference_logprobs is not None:
            loss = loss + self._kl(token_logprobs, cu_seqlens, rows, len(minibatch.rows))
        return loss, stats

    def _screen(self, rows: np.ndarray, minibatch: MiniBatch) -> tuple[np.ndarray, Tensor]:
        """Scores other agents' responses among `rows` and leaves out those that the clip discards.

        Returns:
            (the rest, the loss of what is left out: it has a value, though no gradient).
        """
        others = rows[~self.batch.from_self[rows]]
        if not len(others):
            return rows, torch.zeros(())
        scores = self._score(self.batch, others, self.agent.policy)
        _, stats = self._loss_of_scores(scores, others, minibatch)
        out = np.flatnonzero(~stats.live.numpy())
        loss, stats = self._loss_of_scores([scores[i] for i in out], others[out], minibatch)
        self._measure(stats, others[out], minibatch)
        self.screened_out += len(out)
        return rows[~np.isin(rows, others[out])], loss

    def _loss_of_scores(
        self, scores: list[np.ndarray], rows: np.ndarray, minibatch: MiniBatch
    ) -> tuple[Tensor, PolicyLossStats]:
        token_logprobs = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.float32), *scores]))
        cu_seqlens = torch.from_numpy(np.cumsum([0, *map(len, scores)]))
        arguments = self._loss_arguments(rows, minibatch, torch.device("cpu"))
        return policy_loss(token_logprobs, cu_seqlens, **arguments)

    def _loss_arguments(
        self, rows: np.ndarray, minibatch: MiniBatch, device: torch.device | None = None
    ) -> dict[str, Any]:
        """What `policy_loss` takes beside log-probs and where the responses end."""
        batch, device = self.batch, device or self.agent.policy.device

        def column(values: np.ndarray) -> Tensor:
            values = values[rows]
            return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values).to(device)

        token_level = self.algorithm.name == "grpo"
        return {
            "source_mean_logprobs": column(batch.source_mean_logprobs),
            "advantages": column(batch.advantages),
            "is_own": column(batch.own_objective),
            "capability_ratio": column(batch.capability_ratio),
            "source_token_logprobs": torch.from_numpy(self._sampled_logprobs(rows)).to(device) if token_level else None,
            "denominator": float(len(minibatch.rows)),
            **loss_arguments(self.algorithm, minibatch.updates_done),
        }

    def _weighed(self, token_logprobs: Tensor, rows: np.ndarray) -> Tensor:
        """The same log-probs [T], whose gradients are multiplied by importance weights where there are any."""
        if self.batch.token_importance is None:
            return token_logprobs
        weights = np.concatenate([self.batch.token_importance[row] for row in rows])
        self.accumulator.add("importance_weight", weights)
        weights = torch.from_numpy(weights).to(token_logprobs.device)
        weighed = token_logprobs.view_as(token_logprobs)  # another tensor: a KL term is not to be weighed
        weighed.register_hook(lambda gradient: gradient * weights)
        return weighed

    def _sampled_logprobs(self, rows: np.ndarray) -> np.ndarray:
        """[T] float32: rollout-time log-probs token by token, NaN for responses of others."""
        parts = []
        for row in rows:
            view = self.batch.views[row]
            known = view.source_logprobs
            parts.append(known if known is not None else np.full(len(view.token_ids), np.nan, dtype=np.float32))
        return np.concatenate(parts)

    def _kl(self, token_logprobs: Tensor, cu_seqlens: Tensor, rows: np.ndarray, denominator: int) -> Tensor:
        """kl_coef times the k3 estimate of KL(policy || initial policy): mean over tokens, own responses only."""
        lengths = cu_seqlens.diff().long()
        own = torch.from_numpy(self.batch.from_self[rows]).to(lengths.device)
        weight = torch.repeat_interleave(own / lengths.clamp(min=1), lengths)
        reference = torch.from_numpy(np.concatenate([self.reference_logprobs[row] for row in rows])).to(lengths.device)
        log_ratio = torch.where(weight > 0, reference - token_logprobs, 0.0)
        k3 = log_ratio.exp() - log_ratio - 1
        per_response = (weight * k3).detach()
        self.accumulator.add("kl", per_response.sum() / own.sum().clamp(min=1), own.sum())
        return self.algorithm.kl_coef * (weight * k3).sum() / denominator

    @timed("measure")
    def _measure(self, stats: PolicyLossStats, rows: np.ndarray, minibatch: MiniBatch) -> None:
        own = torch.from_numpy(self.batch.from_self[rows]).to(stats.ratio.device)
        for kind, chosen in (("own", own), ("cross", ~own)):
            self.accumulator.add(f"{kind}_ratio", stats.ratio, chosen)
            self.accumulator.add(f"{kind}_clip_low", stats.clipped_low, chosen)
            self.accumulator.add(f"{kind}_clip_high", stats.clipped_high, chosen)
        self.accumulator.add("cross_live", stats.live, ~own)
        cross_objective = torch.from_numpy(~self.batch.own_objective[rows]).to(stats.ratio.device)
        self.agent.cross_bound.observe(stats.ratio, cross_objective, minibatch.updates_done)
        if self.batch.importance is not None:
            self.accumulator.add("importance_weight", self.batch.importance[rows])

    def _measure_mismatch(self, token_logprobs: Tensor, rows: np.ndarray) -> None:
        """How far the engine's log-probs are from those of the policy that it sampled from."""
        sampled = self._sampled_logprobs(rows)
        known = ~np.isnan(sampled)
        if known.any():
            self.accumulator.add("mismatch", np.abs(token_logprobs.cpu().numpy()[known] - sampled[known]))

    def _with_old_policy(self, batch: LearnerBatch) -> LearnerBatch:
        """The batch with denominators of the learner before its first update.

        The first mini-batch needs none: what its training pass computes are the old policy's log-probs.
        """
        later = np.concatenate([np.zeros(0, dtype=np.int64), *self.minibatches[1:]])
        rows = np.sort(later[self.needed[later]])
        return batch.with_denominators(rows, self._score(batch, rows, self.agent.policy))

    def _reference_logprobs(self) -> dict[int, np.ndarray] | None:
        if self.agent.reference is None:
            return None
        own = np.flatnonzero(self.needed & self.batch.from_self)
        scored = dict(zip(own.tolist(), self._score(self.batch, own, self.agent.reference), strict=True))
        blank = {row: np.zeros(len(view.token_ids), dtype=np.float32) for row, view in enumerate(self.batch.views)}
        return blank | scored

    def _screens(self) -> bool:
        wanted = self.config.training.score_first
        if wanted != "auto":
            return wanted == "always"
        policy = self.agent.policy
        checkpointed = self.config.training.gradient_checkpointing
        return self.agent.clip_history.share > break_even(policy.model, policy.head.weight, checkpointed)

    def _score(self, batch: LearnerBatch, rows: np.ndarray, policy) -> list[np.ndarray]:
        sequences = [batch.sequence(row) for row in rows]
        budget = self.config.training.token_budget
        return score(policy, sequences, self.agent.temperature, budget, batch.prompt[rows])

    def _shared_prompts(self, batch: LearnerBatch) -> np.ndarray | None:
        """[R] number of each row's prompt if prompts are laid out once in this step, which does not change results."""
        rows = np.flatnonzero(self.needed)
        shared = self.agent.policy.groups([batch.sequence(row) for row in rows], batch.prompt[rows])
        return None if shared is None else batch.prompt

    def _groups(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.groups is None else self.groups[rows]


def _denominators(token_logprobs: Tensor, cu_seqlens: Tensor) -> dict[str, Tensor]:
    """Arguments of a loss whose ratios are all 1: against the very policy that is being trained."""
    lengths = cu_seqlens.diff().long()
    means = torch.segment_reduce(token_logprobs.double(), "mean", lengths=lengths, initial=0.0)
    return {"source_mean_logprobs": means.float(), "source_token_logprobs": token_logprobs}

"""The updates of one agent in one step: mini-batches, packed micro-batches, loss, optimiser."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.minibatch import minibatches
from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.config import Config
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.mismatch import check
from hacpo_fast.policy.batch import PackedBatch
from hacpo_fast.policy.micro_batches import micro_batches
from hacpo_fast.run.metrics import Accumulator
from hacpo_fast.scoring import score
from hacpo_kernels import policy_loss


class Learner:
    """Trains `agent` on one `LearnerBatch`; `accumulator` holds what there was to measure."""

    def __init__(self, agent: Agent, batch: LearnerBatch, config: Config, lr: float):
        self.agent, self.config, self.lr = agent, config, lr
        self.algorithm = config.algorithm
        self.accumulator = Accumulator()
        self.trained_tokens = 0
        self.skipped_updates = 0
        # A KL term gives every own response a gradient, also those whose advantage is 0.
        self.needed = batch.matters | (batch.from_self & bool(self.algorithm.kl_coef))
        self.groups = self._shared_prompts(batch)
        self.batch = self._with_old_policy(batch)
        self.reference_logprobs = self._reference_logprobs()

    def learn(self, rng: np.random.Generator) -> None:
        """All updates of the step, in the configured order of mini-batches."""
        batch, algorithm = self.batch, self.algorithm
        size = self.config.training.minibatch_responses
        updates_done = 0
        for rows in minibatches(batch.prompt, batch.source, self.agent.index, size, algorithm.minibatch_order, rng):
            if self._update(rows, updates_done):
                updates_done += 1
        self.agent.updates += updates_done

    def _update(self, rows: np.ndarray, updates_done: int) -> bool:
        """One optimiser update; False if nothing in it had a gradient, or one that is not finite."""
        live = rows[self.needed[rows]]
        loss = 0.0
        for micro in self._micro_batches(live):
            loss += self._backward(micro, len(rows), updates_done)
        if updates_done == 0 and "mismatch" in (means := self.accumulator.means()):
            check(self.agent.name, means["mismatch"], self.config.rollout.max_mismatch)
        self.agent.optimizer.clip_and_norm(self.config.training.max_grad_norm)
        update = self.agent.optimizer.step(self.lr)
        self.accumulator.add("loss", loss)
        if update.applied:
            self.accumulator.add("grad_norm", update.norm)
        self.skipped_updates += update.status == "non_finite"
        return update.applied

    def _micro_batches(self, rows: np.ndarray) -> list[np.ndarray]:
        sequences = [self.batch.sequence(row) for row in rows]
        parts = micro_batches(sequences, self._groups(rows), self.config.training.token_budget)
        return [rows[part] for part in parts]

    def _backward(self, rows: np.ndarray, denominator: int, updates_done: int) -> float:
        """Adds the gradient of these rows' part of the loss (a sum over them, divided by `denominator`)."""
        batch, device = self.batch, self.agent.policy.device
        packed = PackedBatch.build([batch.sequence(row) for row in rows], device, self._groups(rows))
        token_logprobs = self.agent.policy.token_logprobs(packed, self.agent.temperature)
        cu_seqlens = packed.response_cu_seqlens

        def column(values: np.ndarray) -> Tensor:
            values = values[rows]
            return torch.from_numpy(values.astype(np.float32) if values.dtype == np.float64 else values).to(device)

        token_level = self.algorithm.name == "grpo"
        sampled = self._sampled_logprobs(rows)
        loss, stats = policy_loss(
            self._weighed(token_logprobs, rows),
            cu_seqlens,
            column(batch.source_mean_logprobs),
            column(batch.advantages),
            column(batch.own_objective),
            column(batch.capability_ratio),
            denominator=float(denominator),
            source_token_logprobs=torch.from_numpy(sampled).to(device) if token_level else None,
            **loss_arguments(self.algorithm, updates_done),
        )
        total = loss
        if self.reference_logprobs is not None:
            total = total + self._kl(token_logprobs, cu_seqlens, rows, denominator)
        total.backward()
        self.trained_tokens += packed.sequence_tokens
        self._measure(stats, rows)
        if updates_done == 0 and not np.isnan(sampled).all():
            known = ~np.isnan(sampled)
            difference = token_logprobs.detach().cpu().numpy()[known] - sampled[known]
            self.accumulator.add("mismatch", np.abs(difference))
        return total.item()

    def _weighed(self, token_logprobs: Tensor, rows: np.ndarray) -> Tensor:
        """The same log-probs [T], whose gradients are multiplied by importance weights where there are any."""
        if self.batch.importance is not None:
            self.accumulator.add("importance_weight", self.batch.importance[rows])
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

    def _measure(self, stats, rows: np.ndarray) -> None:
        own = torch.from_numpy(self.batch.from_self[rows]).to(stats.ratio.device)
        for kind, chosen in (("own", own), ("cross", ~own)):
            self.accumulator.add(f"{kind}_ratio", stats.ratio, chosen)
            self.accumulator.add(f"{kind}_clip_low", stats.clipped_low, chosen)
            self.accumulator.add(f"{kind}_clip_high", stats.clipped_high, chosen)
        self.accumulator.add("cross_live", stats.live, ~own)

    def _with_old_policy(self, batch: LearnerBatch) -> LearnerBatch:
        """naive with its own old policy: the denominators are the learner's before its first update."""
        if self.algorithm.name != "naive" or self.algorithm.naive_reference == "source":
            return batch
        rows = np.flatnonzero(self.needed)
        scored = self._score(batch, rows, self.agent.policy)
        return batch.with_denominators(rows, np.array([part.mean(dtype=np.float64) for part in scored]))

    def _reference_logprobs(self) -> dict[int, np.ndarray] | None:
        if self.agent.reference is None:
            return None
        own = np.flatnonzero(self.needed & self.batch.from_self)
        scored = dict(zip(own.tolist(), self._score(self.batch, own, self.agent.reference), strict=True))
        blank = {row: np.zeros(len(view.token_ids), dtype=np.float32) for row, view in enumerate(self.batch.views)}
        return blank | scored

    def _score(self, batch: LearnerBatch, rows: np.ndarray, policy) -> list[np.ndarray]:
        sequences = [batch.sequence(row) for row in rows]
        budget = self.config.training.token_budget
        return score(policy, sequences, self.agent.temperature, budget, batch.prompt[rows])

    def _shared_prompts(self, batch: LearnerBatch) -> np.ndarray | None:
        """[R] number of each row's prompt if prompts are laid out once in this step, which does not change results."""
        rows = np.flatnonzero(self.needed)
        together = batch.prompt[rows]
        if self.algorithm.minibatch_order == "own_first":  # each source has mini-batches of its own
            together = together * (batch.source.max() + 1) + batch.source[rows]
        shared = self.agent.policy.groups([batch.sequence(row) for row in rows], together)
        return None if shared is None else batch.prompt

    def _groups(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.groups is None else self.groups[rows]

"""The updates of one agent in one step."""

from __future__ import annotations

import math

import numpy as np

from hacpo_fast.agent import Agent
from hacpo_fast.algorithm.minibatch import minibatches
from hacpo_fast.config import Config
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.mismatch import check
from hacpo_fast.non_finite import watch
from hacpo_fast.passes import MiniBatch, Passes
from hacpo_fast.run.phases import timed
from hacpo_fast.screening import break_even


class Learner:
    """Trains `agent` on one `LearnerBatch`; `passes` holds what there was to measure."""

    def __init__(self, agent: Agent, batch: LearnerBatch, config: Config, lr: float, rng: np.random.Generator):
        """rng: draws the order of the prompts in the mini-batches."""
        self.agent, self.config, self.lr = agent, config, lr
        self.algorithm = agent.cross_bound.applied(config.algorithm)
        self.passes = Passes(agent, batch, config, self.algorithm)
        self.skipped_updates = 0
        size, order = config.training.minibatch_responses, self.algorithm.minibatch_order
        self.minibatches = minibatches(batch.prompt, batch.source, agent.index, size, order, rng)
        if config.old_policy_is_denominator:
            self._take_old_policy()

    @property
    def batch(self) -> LearnerBatch:
        return self.passes.batch

    def learn(self) -> None:
        """All updates of the step.

        Raises:
            UserError: engine and policy disagree, or the weights are not finite any more.
            TooManySkipped: too many updates in a row were not finite.
        """
        scores_first, updates_done = self.scores_first(), 0
        for number, rows in enumerate(self.minibatches):
            if self._update(MiniBatch(rows, updates_done, on_policy=number == 0), scores_first):
                updates_done += 1
        self.agent.updates += updates_done
        others = int(np.sum(self.passes.needed & ~self.batch.from_self))
        self.agent.clip_history.add(others - int(self.passes.accumulator.totals().get("cross_live", 0)), others)
        self.agent.cross_bound.end_step()

    def scores_first(self) -> bool:
        """Whether other agents' responses are scored before they are trained on, so that those clipped are not."""
        wanted, policy = self.config.training.score_first, self.agent.policy
        if wanted != "auto":
            return wanted == "always"
        checkpointed = self.config.training.gradient_checkpointing
        return self.agent.clip_history.share > break_even(policy.model, policy.head.weight, checkpointed)

    def _update(self, minibatch: MiniBatch, scores_first: bool) -> bool:
        """One optimiser update; False if nothing in it had a gradient, or one that is not finite."""
        passes, optimizer = self.passes, self.agent.optimizer
        rows = minibatch.rows[passes.needed[minibatch.rows]]
        losses = []
        if scores_first:
            rows, loss = passes.screen(rows, minibatch)
            losses.append(loss)
        losses += [passes.train(micro, minibatch) for micro in passes.micro_batches(rows)]
        loss = sum(loss.item() for loss in losses)
        finite = math.isfinite(loss)
        if minibatch.updates_done == 0 and finite and self.skipped_updates == 0:  # else the difference is not finite
            self._check_mismatch()
        with timed("optimizer"):
            optimizer.clip_and_norm(self.config.training.max_grad_norm)
            update = optimizer.step(self.lr) if finite else optimizer.discard()
        passes.accumulator.add("loss", loss)
        if update.applied:
            passes.accumulator.add("grad_norm", update.norm)
        self.skipped_updates += update.status == "non_finite"
        watch(self, update, minibatch)
        return update.applied

    def _check_mismatch(self) -> None:
        means = self.passes.accumulator.means()
        if "mismatch" in means:
            check(self.agent.name, means["mismatch"], self.config.rollout.max_mismatch)

    def _take_old_policy(self) -> None:
        """Makes the learner's own policy, as it is before its first update, the denominator of all ratios.

        The first mini-batch needs no scores: what its training pass computes are the old policy's log-probs.
        """
        later = np.concatenate([np.zeros(0, dtype=np.int64), *self.minibatches[1:]])
        rows = np.sort(later[self.passes.needed[later]])
        scores = self.passes.score(rows, self.agent.policy)
        self.passes.measure_mismatch(np.concatenate([np.zeros(0, dtype=np.float32), *scores]), rows)
        self.passes.batch = self.batch.with_denominators(rows, scores)

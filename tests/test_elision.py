"""What a learner does not compute changes nothing: its gradients are those of a plain loop over all responses."""

from dataclasses import replace

import numpy as np
import pytest
import runs
import torch

from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.errors import UserError
from hacpo_fast.learner import Learner
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.preparation import prepare
from hacpo_fast.screening import ClipHistory, break_even
from hacpo_fast.trainer import Trainer
from hacpo_kernels import policy_loss


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def first_learner(models, tmp_path):
    def make(training, **changes):
        agents = {name: models[name] for name in ("ada", "bea")}
        # Every other problem rewards all answers alike: nothing can be learnt from it.
        reward = "def reward(response, answer, row):\n    return int(answer) % 2 or len(response) % 2\n"
        (tmp_path / "half.py").write_text(reward)
        changes = {"algorithm__cross_lower": 0.3, "task__reward": f"{tmp_path / 'half.py'}:reward"} | changes
        config = runs.settings(agents, tmp_path, **changes)
        return runs.first_learner(Trainer(prepare(config), tmp_path / "run"), **training)

    return make


def learn(learner, monkeypatch):
    """The gradients [before clipping] of all updates of a step, the weights standing still."""
    updates = []

    def keep(self, max_norm):
        updates.append({name: gradient.clone() for name, gradient in self.gradients().items()})
        return clip(self, max_norm)

    clip = MasterAdamW.clip_and_norm
    learner.lr = 0.0
    with monkeypatch.context() as patched:
        patched.setattr(MasterAdamW, "clip_and_norm", keep)
        learner.learn()
    return updates


def plainly(learner):
    """Loss and gradients of every update: response by response, all logits, nothing left out, no kernel."""
    model, batch = learner.agent.policy.model, learner.batch
    model.set_attn_implementation("eager")
    losses, gradients, updates_done = [], [], 0
    for rows in learner.minibatches:
        token_logprobs = []
        for row in rows:
            prompt, response = map(torch.from_numpy, batch.sequence(row))
            logits = model(torch.cat([prompt, response]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
            logprobs = torch.log_softmax(logits / learner.agent.temperature, dim=-1)
            token_logprobs.append(logprobs.gather(1, response.unsqueeze(1)).squeeze(1))
        loss, _ = policy_loss(
            torch.cat(token_logprobs),
            torch.tensor(np.cumsum([0, *map(len, token_logprobs)])),
            *(torch.from_numpy(values[rows].astype(np.float32)) for values in (
                batch.source_mean_logprobs, batch.advantages)),
            torch.from_numpy(batch.own_objective[rows]),
            torch.from_numpy(batch.capability_ratio[rows].astype(np.float32)),
            denominator=float(len(rows)),
            **loss_arguments(learner.algorithm, updates_done),
            backend="reference",
        )  # fmt: skip
        model.zero_grad()
        loss.backward()
        losses.append(loss.item())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        updates_done += any(gradient.any() for gradient in gradients[-1].values())
    model.zero_grad(set_to_none=True)
    return losses, gradients


@pytest.mark.parametrize("score_first", ["always", "never"])
@pytest.mark.parametrize("order", ["own_first", "mixed"])
def test_gradients_are_those_of_a_plain_loop(first_learner, monkeypatch, score_first, order):
    monkeypatch.setattr("hacpo_fast.learner_batch.views_for", seeing_everything)
    whole = first_learner({"score_first": "never"}, algorithm__minibatch_order=order)
    losses, expected = plainly(whole)
    monkeypatch.undo()
    learner = first_learner({"score_first": score_first, "token_budget": 200}, algorithm__minibatch_order=order)
    gradients = learn(learner, monkeypatch)
    assert not whole.passes.needed.all()  # something could be left out
    assert len(gradients) == len(expected) > 1
    for ours, theirs in zip(gradients, expected, strict=True):
        for name, gradient in theirs.items():
            torch.testing.assert_close(ours.get(name, torch.zeros_like(gradient)), gradient, rtol=1e-4, atol=2e-6)
    # What has no advantage has no loss either, and counts in the denominator alone.
    assert learner.passes.accumulator.means()["loss"] == pytest.approx(np.mean(losses), abs=1e-6)


def seeing_everything(*arguments):
    from hacpo_fast.rollouts.views import views_for

    return views_for(*arguments[:-1], [True] * len(arguments[1]))


def test_scoring_first_changes_no_number(first_learner, monkeypatch):
    records, trained = [], []
    for score_first in ("never", "always"):
        learner = first_learner({"score_first": score_first})
        learn(learner, monkeypatch)
        spreads = {f"{name}_std": spread for name, spread in learner.passes.accumulator.spreads().items()}
        records.append(learner.passes.accumulator.means() | spreads)
        trained.append(learner.passes.trained_tokens)
    assert records[0].keys() == records[1].keys()
    for name, value in records[0].items():
        assert records[1][name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert 0 < records[0]["cross_live"] < 1
    assert trained[1] < trained[0]
    others = (learner.passes.needed & ~learner.batch.from_self).sum()
    assert learner.passes.screened_out == round((1 - records[0]["cross_live"]) * others)


def test_whether_to_score_first_follows_from_what_was_discarded(first_learner):
    learner = first_learner({"score_first": "auto"})
    assert not learner.scores_first()
    policy = learner.agent.policy
    limit = break_even(policy.model, policy.head.weight, checkpointed=False)
    assert 1 / 3 < limit < 1
    learner.agent.clip_history.add(int(1000 * limit) - 1, 1000)
    assert not learner.scores_first()
    learner.agent.clip_history.add(1000, 1000)
    assert learner.scores_first()


def test_break_even_is_where_the_products_are_equal():
    head = torch.nn.Linear(8, 100, bias=False)
    trunk = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 50), torch.nn.LayerNorm(50))
    t, v = 8 * 50, 8 * 100
    for checkpointed, passes in ((False, 3), (True, 4)):
        share = break_even(torch.nn.Sequential(trunk, head), head.weight, checkpointed)
        assert share * (passes * t + v) == pytest.approx(t + v)


def test_the_history_is_a_window_and_survives_saving():
    history = ClipHistory()
    assert history.share == 0
    for discarded in (100, 0, 0, 10, 0, 0):  # the first one is forgotten again
        history.add(discarded, 100)
    history.add(0, 0)
    assert history.share == 10 / 500
    other = ClipHistory()
    other.load_state_dict(history.state_dict())
    for each in (history, other):
        each.add(100, 100)
    assert other.share == history.share == 110 / 500


@pytest.mark.parametrize("name", ["gspo", "naive", "grpo"])
def test_the_first_update_needs_no_scores_of_the_old_policy(first_learner, monkeypatch, name):
    """Recomputed denominators: one pass serves the first mini-batch both as score and as training pass."""
    scored = []

    def count(policy, sequences, *rest):
        scored.append(len(sequences))
        return score(policy, sequences, *rest)

    from hacpo_fast.scoring import score

    monkeypatch.setattr("hacpo_fast.passes.score", count)
    changes = {"algorithm__name": name, "algorithm__naive_reference": "learner", "rollout__logprobs": "recompute"}
    learner = first_learner({"minibatch_responses": 8}, **changes)
    assert scored == [int(np.sum(learner.passes.needed[np.concatenate(learner.minibatches[1:])]))]
    learn(learner, monkeypatch)
    means = learner.passes.accumulator.means()
    assert means["own_ratio"] == pytest.approx(1, abs=1e-5)  # at standing weights all ratios are 1
    assert learner.passes.accumulator.spreads()["own_ratio"] < 1e-5
    assert means["mismatch"] < 1e-4
    if name == "naive":
        assert means["cross_ratio"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["gspo", "naive"])
def test_an_engine_of_another_policy_is_noticed_though_the_first_update_has_nothing_to_learn(first_learner, name):
    changes = {"algorithm__name": name, "algorithm__naive_reference": "learner", "rollout__logprobs": "recompute"}
    learner = first_learner({"minibatch_responses": 8}, **changes)
    silent, *others = learner.minibatches
    off = [view if view.source_logprobs is None else view._replace(source_logprobs=view.source_logprobs + 5)
           for view in learner.batch.views]  # fmt: skip
    advantages = learner.batch.advantages.copy()
    advantages[silent] = 0
    batch = replace(learner.batch, views=off, advantages=advantages)
    learner = Learner(learner.agent, batch, learner.config, lr=0.0, rng=np.random.default_rng(0))
    assert not learner.passes.needed[silent].any() and learner.passes.needed[np.concatenate(others)].any()
    with pytest.raises(UserError, match="differ by 5"):
        learner.learn()


@pytest.mark.parametrize("score_first", ["always", "never"])
def test_the_mean_importance_weight_is_that_of_own_tokens(first_learner, monkeypatch, score_first):
    learner = first_learner({"score_first": score_first}, algorithm__importance_correction="token")
    rng = np.random.default_rng(0)
    weights = [
        rng.uniform(0.5, 2, len(view.token_ids)).astype(np.float32) if own else np.ones(len(view.token_ids), np.float32)
        for view, own in zip(learner.batch.views, learner.batch.from_self, strict=True)
    ]
    learner.passes.batch = replace(learner.batch, token_importance=weights)
    learn(learner, monkeypatch)
    own = [weights[row] for row in np.flatnonzero(learner.passes.needed & learner.batch.from_self)]
    assert learner.passes.accumulator.means()["importance_weight"] == pytest.approx(
        np.concatenate(own).mean(), abs=1e-6
    )

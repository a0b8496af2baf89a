"""training.share_prompts in a run: it changes how much is computed, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import runs
import torch

from hacpo_fast.errors import UserError
from hacpo_fast.passes import MiniBatch
from hacpo_fast.policy import policy
from hacpo_fast.preparation import prepare
from hacpo_fast.trainer import Trainer

LONG = {"task__prompt": "What is the sum of {prompt}"}  # enough to be worth it


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(*agents, **changes):
        return runs.settings({name: models[name] for name in agents}, tmp_path, **changes)

    return make


def read_tokens(policy):
    """A list that every forward pass of `policy` adds its number of input tokens to."""
    seen = []
    policy.model.get_input_embeddings().register_forward_hook(lambda _, inputs, output: seen.append(output.shape[1]))
    return seen


def test_gradients_of_a_step_do_not_depend_on_it(settings, tmp_path):
    gradients, tokens, trained, kl = [], [], [], []
    for share in (False, "auto"):
        config = settings("ada", "bea", training__share_prompts=share, algorithm__kl_coef=0.01, **LONG)
        trainer = Trainer(prepare(config), tmp_path / "run")
        assert trainer.agents[0].notes == []
        learner = runs.first_learner(trainer, token_budget=60)
        seen = read_tokens(trainer.agents[0].policy)
        rows = np.flatnonzero(learner.passes.needed)
        for micro in learner.passes.micro_batches(rows):
            learner.passes.train(micro, MiniBatch(np.arange(32), updates_done=0, on_policy=True))
        gradients.append({name: g.clone() for name, g in trainer.agents[0].optimizer.gradients().items()})
        tokens.append(sum(seen))
        trained.append(learner.passes.trained_tokens)
        kl.append(np.concatenate([*learner.passes.reference_logprobs.values()]))
    assert tokens[1] < tokens[0] == trained[0] == trained[1]  # trained are sequences, however they are laid out
    np.testing.assert_allclose(kl[1], kl[0], rtol=1e-5, atol=1e-5)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


def test_recomputed_log_probs_do_not_depend_on_it(settings, tmp_path):
    records = [
        runs.train(
            settings("ada", training__share_prompts=share, rollout__logprobs="recompute", run__steps=1, **LONG),
            tmp_path / f"run-{share}",
        )[0]["agents"]
        for share in (False, True)
    ]
    for name, agent in records[0].items():
        assert records[1][name]["mismatch"] == pytest.approx(agent["mismatch"], abs=1e-5)
        assert records[1][name]["loss"] == pytest.approx(agent["loss"], rel=1e-3, abs=1e-5)


def test_a_model_that_cannot_is_noted_or_refused(settings, tmp_path, monkeypatch):
    def fail(policy):
        raise UserError("a token's log-prob changes by 1 nats")

    monkeypatch.setattr(policy, "check_sharing", fail)
    trainer = Trainer(prepare(settings("ada")), tmp_path / "run")
    assert trainer.agents[0].notes == [
        "agents.ada: responses do not share the copy of their prompt: a token's log-prob changes by 1 nats"
    ]
    assert not trainer.agents[0].policy.shares_prompts
    with pytest.raises(
        UserError, match=r"agents\.ada: training\.share_prompts=true is not possible: .*; set it to auto"
    ):
        Trainer(prepare(settings("ada", training__share_prompts=True)), tmp_path / "run")
    assert Trainer(prepare(settings("ada", training__share_prompts=False)), tmp_path / "run").agents[0].notes == []

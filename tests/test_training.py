"""Whole runs of tiny real models: what a run must do whatever its numbers are."""

import json

import numpy as np
import pytest
import runs
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hacpo_fast.errors import UserError
from hacpo_fast.passes import MiniBatch
from hacpo_fast.policy.policy import Policy
from hacpo_fast.rollouts.transformers_engine import TransformersEngine
from hacpo_fast.run.place import Place
from hacpo_fast.run.telemetry import read_metrics
from hacpo_fast.train import run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(*agents, **changes):
        return runs.settings({name: models[name] for name in agents}, tmp_path, **changes)

    return make


def test_three_agents_of_different_tokenizers_learn_from_each_other(settings, models, tmp_path):
    records = runs.train(settings("ada", "bea", "cy", run__steps=3), tmp_path / "run")
    assert [record["step"] for record in records] == [1, 2, 3]
    first = records[0]["agents"]
    for name, agent in first.items():
        assert 1 <= agent["updates"] <= 3  # 48 responses, 16 to an update; one in which nothing is live is left out
        assert 0 <= agent["cross_clip_low"] <= 1 and agent["cross_ratio_mean"] > 0
        assert agent["mismatch"] < 1e-4
        assert not runs.same_weights(runs.weights(tmp_path / "run", name), runs.weights_of(models[name]))
    assert first["cy"]["unscorable_share"] > 0  # bytes of the others that its letters cannot write
    assert first["ada"]["unscorable_share"] == 0


@pytest.mark.parametrize("order", ["own_first", "mixed"])
def test_one_agent_is_gspo(settings, tmp_path, order):
    for name in ("hacpo", "gspo"):
        config = settings("ada", algorithm__name=name, algorithm__minibatch_order=order)
        runs.train(config, tmp_path / name)
    assert runs.same_weights(*(runs.weights(tmp_path / name, "ada") for name in ("hacpo", "gspo")))
    rows = [runs.timeless(runs.train(settings("ada", algorithm__name="gspo"), tmp_path / "again"))]
    assert "cross_ratio_mean" not in rows[0][0]["agents"]["ada"]


def test_the_seed_decides_everything(settings, tmp_path):
    records = [
        runs.timeless(runs.train(settings("ada", "bea", run__seed=seed), tmp_path / name))
        for name, seed in (("first", 7), ("same", 7), ("other", 8))
    ]
    assert records[0] == records[1] != records[2]
    for agent in ("ada", "bea"):
        first, same, other = (runs.weights(tmp_path / name, agent) for name in ("first", "same", "other"))
        assert runs.same_weights(first, same) and not runs.same_weights(first, other)
    assert (tmp_path / "first/rollouts.jsonl").read_text() == (tmp_path / "same/rollouts.jsonl").read_text()


@pytest.mark.parametrize("logprobs", ["engine", "recompute"])
@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_the_first_update_finds_own_ratios_of_one(settings, tmp_path, temperature, logprobs):
    config = settings(
        "ada", "bea", rollout__temperature=temperature, rollout__logprobs=logprobs,
        training__minibatch_responses=64, run__steps=1,
    )  # fmt: skip
    (record,) = runs.train(config, tmp_path / "run")
    for agent in record["agents"].values():
        assert agent["own_ratio_mean"] == pytest.approx(1, abs=1e-4)
        assert agent["own_ratio_std"] < 1e-4
        assert agent["mismatch"] < 1e-4
        assert abs(agent["cross_ratio_mean"] - 1) > 0.01  # the others' policy is another one


def test_agents_with_temperatures_of_their_own(settings, tmp_path):
    config = settings("ada", "bea", agents__ada__temperature=0.5, agents__bea__temperature=1.5, run__steps=1)
    (record,) = runs.train(config, tmp_path / "run")
    assert record["agents"]["ada"]["entropy"] < record["agents"]["bea"]["entropy"]
    assert all(agent["mismatch"] < 1e-4 for agent in record["agents"].values())


def test_equal_rewards_leave_the_weights_untouched(settings, models, tmp_path):
    (tmp_path / "one.py").write_text("def reward(response, answer, row):\n    return 1\n")
    config = settings("ada", "bea", task__reward=f"{tmp_path / 'one.py'}:reward", training__weight_decay=0.1)
    records = runs.train(config, tmp_path / "run")
    assert all(record["no_signal_share"] == 1 for record in records)
    assert all(agent["updates"] == 0 for agent in records[-1]["agents"].values())
    for name in ("ada", "bea"):
        assert runs.same_weights(runs.weights(tmp_path / "run", name), runs.weights_of(models[name]))


def test_an_engine_with_old_weights_stops_the_run(settings, tmp_path, monkeypatch):
    class Stale(TransformersEngine):
        def __init__(self, model, *others):
            super().__init__(Policy.load(model.config.name_or_path).model, *others)

    monkeypatch.setattr("hacpo_fast.engines.TransformersEngine", Stale)
    config = settings("ada", run__steps=8, training__lr=0.05, rollout__max_mismatch=0.02)
    with pytest.raises(UserError, match=r"agents.ada: engine and policy .* old weights"):
        run(config, Place(tmp_path / "run"))
    (saved,) = (tmp_path / "run" / "checkpoints").iterdir()  # what was learnt before is not lost
    assert saved.name.startswith("failed-in-step-") and (saved / "ada" / "model.safetensors").exists()


@pytest.mark.parametrize("logprobs", ["engine", "recompute"])
def test_an_engine_at_another_temperature_stops_the_run(settings, tmp_path, monkeypatch, logprobs):
    right = TransformersEngine.generate
    wrong = lambda self, prompts, sampling, seed: right(self, prompts, sampling._replace(temperature=0.5), seed)  # noqa: E731
    monkeypatch.setattr(TransformersEngine, "generate", wrong)
    with pytest.raises(UserError, match=r"agents.ada: engine and policy .* temperature"):
        run(settings("ada", "bea", rollout__logprobs=logprobs), Place(tmp_path / "run"))


def test_saved_agents_load_and_answer_like_the_trained_ones(settings, models, tmp_path):
    runs.train(settings("ada", "bea"), tmp_path / "run")
    for name in ("ada", "bea"):
        folder = tmp_path / "run" / "agents" / name
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        before = AutoModelForCausalLM.from_pretrained(models[name])
        ids = tokenizer("7+5=", return_tensors="pt")["input_ids"]
        assert (model(ids).logits - before(ids).logits).abs().max() > 1e-3
        assert model.generation_config.eos_token_id == before.generation_config.eos_token_id
        assert tokenizer.chat_template == AutoTokenizer.from_pretrained(models[name]).chat_template


@pytest.mark.parametrize("name", ["gspo", "gspo_x2", "grpo", "naive"])
def test_the_other_algorithms(settings, tmp_path, name):
    records = runs.train(settings("ada", "bea", algorithm__name=name), tmp_path / "run")
    updates = {"gspo": 1, "gspo_x2": 2, "grpo": 1, "naive": 2}[name]  # a step; 16 or 32 responses, 16 to an update
    for agent in records[0]["agents"].values():
        assert agent["updates"] == updates
        assert ("cross_ratio_mean" in agent) == (name == "naive")
    samples = [json.loads(line) for line in (tmp_path / "run/rollouts.jsonl").read_text().splitlines()]
    assert all(set(s["advantages"]) == ({"ada", "bea"} if name == "naive" else {s["agent"]}) for s in samples)


def test_naive_with_its_own_old_policy_starts_at_ratios_of_one(settings, tmp_path):
    config = settings(
        "ada", "bea", algorithm__name="naive", algorithm__naive_reference="learner",
        training__minibatch_responses=64, run__steps=1,
    )  # fmt: skip
    (record,) = runs.train(config, tmp_path / "run")
    for agent in record["agents"].values():
        assert agent["cross_ratio_mean"] == pytest.approx(1, abs=1e-4)


def test_kl_to_the_initial_policy(settings, tmp_path):
    plain = runs.train(settings("ada", "bea"), tmp_path / "plain")
    records = runs.train(settings("ada", "bea", algorithm__kl_coef=10.0), tmp_path / "kl")
    first, last = (record["agents"]["ada"]["kl"] for record in (records[0], records[-1]))
    assert 0 <= first < last
    assert "kl" not in plain[0]["agents"]["ada"]
    assert all(record["agents"]["ada"]["live_share"] == 1 for record in records)


def test_problems_in_boxed_mathematics_with_the_users_own_models(models, tmp_path):
    rows = [
        {"question": f"What is \\frac{{{i}}}{{2}} plus {i}?", "solution": f"It is \\boxed{{\\frac{{{3 * i}}}{{2}}}}."}
        for i in range(1, 31)
    ]
    (tmp_path / "maths.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = runs.settings(
        {name: models[name] for name in ("ada", "bea")}, tmp_path,
        task__name=str(tmp_path / "maths.jsonl"), task__prompt="{question}", task__answer="solution",
        task__reward="math", validation__every=2, validation__problems=3, run__steps=2,
    )  # fmt: skip
    records = runs.train(config, tmp_path / "run")
    assert [("validation" in record) for record in records] == [True, False, False, True]
    assert records[0]["validation"]["ada"]["greedy"]["problems"] == 3
    assert all(agent["reward_errors"] == 0 for agent in records[1]["agents"].values())


def test_data_order(settings, tmp_path):
    from hacpo_fast.preparation import prepare

    prepared = prepare(settings("ada", run__steps=None, task__holdout=0.0))
    assert prepared.steps == 10
    seen = [problem.id for step in range(1, 11) for problem in prepared.batch(step)]
    assert len(set(seen)) == 40  # one pass holds every problem once
    again = [problem.id for step in range(11, 21) for problem in prepared.batch(step)]
    assert set(again) == set(seen) and again != seen


def test_dry_run_loads_no_weights_and_leaves_nothing(settings, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Policy, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    assert run(settings("ada", "bea"), Place(tmp_path / "run"), dry_run=True) == 0
    printed = capsys.readouterr().out
    assert "2 agent(s)" in printed and "weights" in printed
    assert "reference" not in printed and "kv_cache" not in printed  # rows that would be empty
    assert printed.endswith("dry run: all of this can be trained; nothing was started\n")
    assert not (tmp_path / "run").exists()


def test_a_warm_up_longer_than_the_run_ends_with_it(settings, tmp_path, capsys):
    config = settings("ada", training__warmup_steps=9, training__lr=1e-3, run__steps=2)
    rates = [record["agents"]["ada"]["lr"] for record in runs.train(config, tmp_path / "run")]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3])
    said = " ".join(capsys.readouterr().out.split())
    assert "training.warmup_steps: 9 are more than the run has; the learning rate rises over 2" in said


@pytest.mark.parametrize(
    ("changes", "updates"),
    [
        ({}, 2),  # 4 prompts x 4 responses of both agents, 16 in an update
        ({"training__minibatch_responses": 15}, 3),
        ({"training__minibatch_responses": 32}, 1),
        ({"training__minibatch_responses": 5, "algorithm__minibatch_order": "mixed"}, 4),  # whole prompts
        ({"algorithm__name": "gspo"}, 1),
        ({"algorithm__name": "gspo_x2"}, 2),
    ],
)
def test_the_plan_says_how_many_updates_a_step_has(settings, tmp_path, capsys, changes, updates):
    config = settings("ada", "bea", validation__every=0, run__steps=1, **changes)
    assert run(config, Place(tmp_path / "dry"), dry_run=True) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f" in {updates} update{'s' if updates > 1 else ''} per step" in said
    assert ("one update per step: own ratios are then 1" in said) == (updates == 1)
    assert ("never narrows" in said) == (updates == 1 and config.algorithm.name == "hacpo")
    (record,) = runs.train(config, tmp_path / "run")
    assert {metrics["updates"] for metrics in record["agents"].values()} == {updates}


def test_an_agent_that_cannot_read_the_prompts_is_told_of(settings, tmp_path):
    from hacpo_fast.preparation import prepare

    rows = [{"prompt": f"{i} → ?", "answer": str(i)} for i in range(40)]
    (tmp_path / "arrows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = prepare(settings("ada", "cy", task__name=str(tmp_path / "arrows.jsonl")))
    (note,) = [note for note in prepared.notes if "tokenizer does not know" in note]
    assert note.startswith(f"agents.cy: {len(prepared.train)} of {len(prepared.train)} prompts")


def test_validation_may_ask_the_same_problem_in_other_words(settings, tmp_path):
    from hacpo_fast.preparation import prepare

    config = settings("bea", task__system_prompt="Train.")
    own = config.task.model_copy(update={"system_prompt": "Validate."})
    validation = config.validation.model_copy(update={"task": own, "every": 1})
    config = config.model_copy(update={"validation": validation})
    prepared = prepare(config)
    decode = prepared.cards[0].codec.tokenizer.decode
    shared = prepared.held_out[0].id
    assert "Train." in decode(prepared.prompt_tokens["bea"][shared])
    assert "Validate." in decode(prepared.held_out_tokens["bea"][shared])


def test_a_failed_validation_loses_nothing(settings, tmp_path, monkeypatch):
    from hacpo_fast.trainer import Trainer

    right = Trainer.validate

    def fail_later(self, step):
        if step:
            raise RuntimeError("the reward server is gone")
        return right(self, step)

    config = settings("ada", validation__every=2, validation__problems=3)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "validate", fail_later)
        with pytest.raises(RuntimeError, match="reward server"):
            run(config, Place(tmp_path / "run"))
    assert run(config, Place(tmp_path / "run", continued=True)) == 0
    records = read_metrics(tmp_path / "run")
    assert [(record["step"], "validation" in record) for record in records] == [
        (0, True), (1, False), (2, False), (2, True),
    ]  # fmt: skip


def test_an_output_folder_is_never_overwritten(settings, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="exists, and nothing is overwritten"):
        run(settings("ada"), Place(tmp_path / "run"))


def test_gradients_of_a_step_do_not_depend_on_the_micro_batches(settings, tmp_path):
    from hacpo_fast.preparation import prepare
    from hacpo_fast.trainer import Trainer

    config = settings("ada", "bea", training__minibatch_responses=32)
    gradients = []
    for budget in (1, 150, 1 << 20):
        trainer = Trainer(prepare(config.model_copy(deep=True)), tmp_path / "run")
        learner = runs.first_learner(trainer, token_budget=budget)
        rows = np.flatnonzero(learner.passes.needed)
        for micro in learner.passes.micro_batches(rows):
            learner.passes.train(micro, MiniBatch(np.arange(32), updates_done=0, on_policy=True))
        gradients.append({name: g.clone() for name, g in trainer.agents[0].optimizer.gradients().items()})
    assert len(learner.passes.micro_batches(rows)) == 1
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-6)


def noisy(monkeypatch, size):
    """An engine whose log-probs are off, as those of one in lower precision are."""
    right = TransformersEngine.generate

    def generate(self, prompts, sampling, seed):
        generator = np.random.default_rng(seed)

        def off(sample):
            noise = size * generator.standard_normal(len(sample.logprobs))
            return sample._replace(logprobs=sample.logprobs + noise.astype(np.float32))

        return [[off(sample) for sample in group] for group in right(self, prompts, sampling, seed)]

    monkeypatch.setattr(TransformersEngine, "generate", generate)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_correction_of_an_exact_engine_changes_nothing(settings, tmp_path, level):
    changes = {"run__steps": 1, "training__minibatch_responses": 64}
    plain = runs.train(settings("ada", "bea", rollout__logprobs="recompute", **changes), tmp_path / "plain")
    config = settings("ada", "bea", algorithm__importance_correction=level, **changes)
    (record,) = runs.train(config, tmp_path / level)
    for name, agent in record["agents"].items():
        assert agent["importance_weight"] == pytest.approx(1, abs=1e-4)
        assert agent["loss"] == pytest.approx(plain[0]["agents"][name]["loss"], abs=1e-5)
        assert "importance_weight" not in plain[0]["agents"][name]


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_correction_takes_the_engines_noise_out_of_the_ratios(settings, tmp_path, monkeypatch, level):
    noisy(monkeypatch, 0.05)
    changes = {"run__steps": 1, "training__minibatch_responses": 64}
    raw = runs.train(settings("ada", "bea", **changes), tmp_path / "raw")
    config = settings("ada", "bea", algorithm__importance_correction=level, **changes)
    (record,) = runs.train(config, tmp_path / level)
    for name, agent in record["agents"].items():
        assert raw[0]["agents"][name]["own_ratio_std"] > 0.01
        assert agent["own_ratio_mean"] == pytest.approx(1, abs=1e-4) and agent["own_ratio_std"] < 1e-4
        assert 0.02 < agent["mismatch"] < 0.06
        assert 0.9 < agent["importance_weight"] < 1.1 and agent["importance_weight"] != 1


def test_importance_weights_enter_where_they_should(settings, tmp_path, monkeypatch):
    """Sequence weights scale whole responses; token weights scale the tokens' gradients and leave values alone."""
    from dataclasses import replace

    from hacpo_fast.preparation import prepare
    from hacpo_fast.trainer import Trainer

    trainer = Trainer(prepare(settings("ada", training__minibatch_responses=32)), tmp_path / "run")
    learner = runs.first_learner(trainer)
    rows, optimizer = np.flatnonzero(learner.passes.needed), trainer.agents[0].optimizer

    def backward(batch):
        learner.passes.batch = batch
        loss = learner.passes.train(rows, MiniBatch(np.arange(32), updates_done=0, on_policy=True))
        gradients = {name: gradient.clone() for name, gradient in optimizer.gradients().items()}
        optimizer.zero_grad()
        return loss.item(), gradients

    plain = learner.batch
    loss, gradients = backward(plain)
    halves = [np.full(len(view.token_ids), 0.5, dtype=np.float32) for view in plain.views]
    same_loss, halved = backward(replace(plain, token_importance=halves))
    assert same_loss == pytest.approx(loss)
    half_loss, also_halved = backward(replace(plain, advantages=plain.advantages * 0.5))
    assert half_loss == pytest.approx(loss / 2)
    for name, gradient in gradients.items():
        torch.testing.assert_close(halved[name], gradient / 2, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(also_halved[name], gradient / 2, rtol=1e-4, atol=1e-6)


def test_an_adaptive_bound_follows_what_was_measured(settings, tmp_path):
    changes = {"run__steps": 5, "training__lr": 1e-5, "algorithm__cross_upper": 10.0, "rollout__samples_per_prompt": 12}
    fixed = runs.train(settings("ada", "bea", **changes), tmp_path / "fixed")
    changes |= {"algorithm__cross_bound": "adaptive", "algorithm__cross_live_target": 0.5}
    adaptive = runs.train(settings("ada", "bea", **changes), tmp_path / "adaptive")
    for name in ("ada", "bea"):
        lower = [record["agents"][name]["cross_lower"] for record in adaptive]
        assert lower[0] == 0.8 and 0 < lower[-1] < 0.8
        assert {record["agents"][name]["cross_lower"] for record in fixed} == {0.8}
        live = [np.mean([r["agents"][name]["cross_live"] for r in records[1:]]) for records in (fixed, adaptive)]
        assert live[0] < 0.25 and 0.35 < live[1] < 0.65

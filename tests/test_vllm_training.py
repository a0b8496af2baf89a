"""Whole runs whose responses vLLM generates."""

import gc

import pytest
import runs
import tiny
import torch

from hacpo_fast.engines import choose_engine, open_engines
from hacpo_fast.errors import UserError
from hacpo_fast.evaluate import main as evaluate
from hacpo_fast.policy.policy import Policy
from hacpo_fast.preparation import prepare
from hacpo_fast.rollouts import vllm_library
from hacpo_fast.rollouts.transformers_engine import TransformersEngine
from hacpo_fast.rollouts.vllm_engine import VllmEngine
from hacpo_fast.run.place import Place
from hacpo_fast.train import run
from hacpo_fast.trainer import Trainer

VLLM = pytest.mark.vllm
LONG_PROMPT = "{prompt} " + "The rule is the same. " * 15  # several blocks of the KV cache


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    made = runs.write_models(root)
    letters = "0123456789+-*/=;.,:A abcdefghijklmnopqrstuvwxyz"
    # vLLM's Qwen2 derives the head size from the width, whatever the configuration says: 16 here.
    made["own_heads"] = tiny.write_model(root / "own_heads", tiny.letter_tokenizer(letters), "qwen2", seed=3)
    made["ada"] = tiny.write_model(root / "ada512", tiny.byte_tokenizer(), "qwen3", seed=1, max_position_embeddings=512)
    return made


@pytest.fixture
def settings(models, tmp_path):
    def make(*agents, **changes):
        changes = {"rollout__engine": "vllm", "rollout__temperature": 0.6, **changes}
        return runs.settings({name: models[name] for name in agents}, tmp_path, **changes)

    return make


@VLLM
def test_agents_learn_and_the_seed_decides_everything(settings, models, tmp_path, capsys):
    config = settings("bea", "cy", training__minibatch_responses=32, validation__every=2)
    records = runs.train(config, tmp_path / "first")
    printed = capsys.readouterr().out
    assert printed.count("vLLM computes with the policy's own weights; log-probs agree to") == 2
    assert runs.timeless(records) == runs.timeless(runs.train(config, tmp_path / "same"))
    steps = [record for record in records if "agents" in record]
    assert len(steps) == 2
    for name, agent in steps[0]["agents"].items():
        assert agent["updates"] == 1 and agent["mismatch"] < 1e-4
        assert agent["own_ratio_mean"] == pytest.approx(1, abs=1e-4) and agent["own_ratio_std"] < 1e-4
        trained = runs.weights(tmp_path / "first", name)
        assert runs.same_weights(trained, runs.weights(tmp_path / "same", name))
        assert not runs.same_weights(trained, runs.weights_of(models[name]))
    assert all(agent["mismatch"] < 1e-4 for agent in steps[1]["agents"].values())


def stale_weights(engine, policy):
    engine.synchronise = lambda: None


def tied_head(engine, policy):
    names = list(policy.model.named_parameters())
    engine.synchronise = lambda: engine.reload(names)


def temperature(engine, policy):
    right = engine.generate
    engine.generate = lambda prompts, sampling, seed: right(prompts, sampling._replace(temperature=1.0), seed)


def tokenizer(engine, policy):
    right = engine.generate
    engine.generate = lambda prompts, sampling, seed: right([ids + 1 for ids in prompts], sampling, seed)


@VLLM
def test_every_step_notices_what_goes_wrong_after_a_right_start(settings, tmp_path):
    config = settings(
        "ada", rollout__weights="reload", rollout__max_mismatch=0.02, run__steps=3,
        task__prompt=LONG_PROMPT, rollout__max_prompt_tokens=400, training__lr=0.03,
    )  # fmt: skip
    trainer = Trainer(prepare(config), tmp_path / "run")
    (engine,) = trainer.engines.each
    whole = dict(vars(engine))
    causes = "old weights or .* cached .* tied output head .* another temperature, .* tokenizer"
    said = f"agents.ada: engine and policy log-probs .* differ by .* nats per token .*{causes}"
    for breaks in (stale_weights, tied_head, temperature, tokenizer):
        assert all(record["agents"]["ada"]["mismatch"] < 1e-4 for record in _steps(trainer))
        breaks(engine, trainer.agents[0].policy)
        with pytest.raises(UserError, match=said):
            _steps(trainer)
        vars(engine).clear()
        vars(engine).update(whole)
    trainer.close()


@VLLM
def test_long_prompts_are_not_answered_from_the_cache_of_old_weights(settings, tmp_path, monkeypatch):
    config = settings(
        "ada", task__prompt=LONG_PROMPT, rollout__max_prompt_tokens=400, run__steps=4, training__lr=0.05,
        rollout__max_mismatch=0.02,
    )  # fmt: skip
    trainer = Trainer(prepare(config), tmp_path / "run")
    # The same problems again and again: their prompts fill blocks of the cache.
    first = trainer.prepared.batch(1)
    monkeypatch.setattr(type(trainer.prepared), "batch", lambda self, step: first)
    assert len(trainer.prepared.prompt_tokens["ada"][first[0].id]) > 2 * trainer.agents[0].engine.cache_block
    records = _steps(trainer)
    assert all(record["agents"]["ada"]["mismatch"] < 1e-4 for record in records)
    monkeypatch.setattr(trainer.agents[0].engine.llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(UserError, match=r"agents.ada: engine and policy log-probs"):
        _steps(trainer)
    trainer.close()


def _steps(trainer):
    from hacpo_fast.tasks import open_rewards

    class Silent:
        def __getattr__(self, name):
            return lambda *_, **__: None

    trainer.output = Silent()
    with open_rewards(trainer.config.task) as rewards:
        trainer.collector = runs.collector(trainer, rewards)
        return [trainer.step(step) for step in range(1, trainer.prepared.steps + 1)]


@VLLM
def test_auto_takes_vllm_or_says_why_not(settings, models, tmp_path, capsys):
    prepared = prepare(settings("ada", rollout__engine="auto"))
    assert prepared.engine == "vllm" and prepared.engine_note == "responses are generated by vllm"
    # Only vLLM's own start can tell that it has another idea of this model.
    config = settings("own_heads", rollout__engine="auto")
    prepared = prepare(config)
    policies = [Policy.load(str(models["own_heads"]))]
    engines = open_engines("vllm", policies, prepared.cards, config, [16 << 20])
    assert [type(engine) for engine in engines.each] == [TransformersEngine]
    assert "generated by transformers: " in engines.notes[0] and "no heads of 16" in engines.notes[0]
    gc.collect()
    with pytest.raises(UserError, match="no heads of 16"):
        run(settings("own_heads"), Place(tmp_path / "run"))


@VLLM
def test_evaluate_with_vllm_agrees_with_transformers(models, tmp_path, capsys, settings):
    settings("ada")  # writes the problems
    common = [
        str(models["bea"]), "task.kind=file", f"task.name={tmp_path / 'problems.jsonl'}",
        f"task.reward={tmp_path / 'parity.py'}:reward", "task.holdout=1", "rollout.max_response_tokens=6",
    ]  # fmt: skip
    for engine in ("vllm", "transformers"):
        assert evaluate([*common, f"rollout.engine={engine}", "--output", str(tmp_path / engine)]) == 0
    vllm, transformers = ((tmp_path / engine / "scores.json").read_text() for engine in ("vllm", "transformers"))
    assert vllm == transformers


def test_without_vllm(settings, monkeypatch):
    monkeypatch.setattr(vllm_library, "installed", lambda: False)
    prepared = prepare(settings("ada", rollout__engine="auto"))
    assert prepared.engine == "transformers"
    assert "transformers: vLLM is not installed (in a clone of the repository: pip install" in prepared.engine_note
    with pytest.raises(UserError, match=r"rollout.engine=vllm: vLLM is not installed"):
        prepare(settings("ada"))


def test_a_vllm_that_cannot_be_imported(settings, monkeypatch):
    def load():
        raise ImportError("no such symbol")

    monkeypatch.setattr(vllm_library, "installed", lambda: True)
    monkeypatch.setattr(vllm_library, "load", load)
    assert "cannot be imported (no such symbol)" in prepare(settings("ada", rollout__engine="auto")).engine_note


def test_transformers_needs_no_look_at_vllm(settings, monkeypatch):
    monkeypatch.setattr(vllm_library, "load", lambda: pytest.fail("vLLM was imported"))
    prepared = prepare(settings("ada", rollout__engine="transformers"))
    told = ("transformers", "responses are generated by transformers")
    assert choose_engine(prepared.cards, prepared.config, torch.device("cpu")) == told


@VLLM
def test_a_closed_trainer_leaves_room_for_another(settings, tmp_path):
    for _ in range(2):
        trainer = Trainer(prepare(settings("ada")), tmp_path / "run")
        assert all(isinstance(agent.engine, VllmEngine) for agent in trainer.agents)
        assert _steps(trainer)[-1]["agents"]["ada"]["mismatch"] < 1e-4
        trainer.close()
        trainer.close()  # once more does no harm

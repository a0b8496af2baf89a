"""Teaching a few steps, and the folder that comes of it."""

import io
import json
import os
import random
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from hacpo_fast.demo import __main__ as command
from hacpo_fast.demo import build
from hacpo_fast.demo.folder import finished
from hacpo_fast.demo.models import new_model
from hacpo_fast.demo.pair import build_agents
from hacpo_fast.demo.recipe import AGENTS, ALICE, BOB, Habits, Pace
from hacpo_fast.demo.tokenizers import KINDS
from hacpo_fast.demo.warmstart import IGNORE, encode, fit
from hacpo_fast.demo.worked import TASKS, prompt, respond, split
from hacpo_fast.errors import UserError

TASK = TASKS["chain_sum"]
QUICK = {"skill_pace": Pace(5e-3, steps=4, batch=16, warmup=2), "habit_pace": Pace(1e-3, steps=2, batch=16, warmup=2)}


@pytest.fixture
def small_task(monkeypatch):
    monkeypatch.setitem(TASKS, "chain_sum", replace(TASK, expressions=lambda: TASK.expressions()[::9]))


def taught(recipe, steps):
    tokenizer = KINDS[recipe.tokenizer](TASK.alphabet, TASK.largest)
    model = new_model(recipe.family, recipe.layers, tokenizer, seed=5)
    rng, expressions = random.Random(5), split(TASK)[0]

    def draw(count):
        return [(prompt(each), respond(TASK, each)) for each in rng.choices(expressions, k=count)]

    losses = list(fit(model, tokenizer, draw, Pace(5e-3, steps, batch=16, warmup=2)))
    return model, tokenizer, losses


def test_loss_is_on_responses_and_their_end_only():
    tokenizer = KINDS["digit_pairs"](TASK.alphabet, TASK.largest)
    inputs, targets = encode(tokenizer, [("7+5-3=", "7+5=12;12-3=9;A9"), ("1+1+1=", ";A3")])
    assert inputs.shape == targets.shape
    for row, (question, text) in enumerate([("7+5-3=", "7+5=12;12-3=9;A9"), ("1+1+1=", ";A3")]):
        learnt = targets[row][targets[row] != IGNORE]
        assert tokenizer.decode(learnt) == text + tokenizer.eos_token
        assert tokenizer.decode(inputs[row], skip_special_tokens=True) == question + text
        assert (targets[row] != IGNORE).nonzero()[0] == len(tokenizer(question)["input_ids"]) - 1


@pytest.mark.parametrize("recipe", AGENTS, ids=lambda recipe: recipe.name)
def test_loss_falls_and_comes_out_the_same_twice(recipe):
    model, _, losses = taught(recipe, 12)
    again, _, losses_again = taught(recipe, 12)
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    assert losses == losses_again
    for (name, one), (_, two) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("recipe", AGENTS, ids=lambda recipe: recipe.name)
def test_a_saved_agent_loads_with_the_same_logits(recipe, tmp_path):
    model, tokenizer, _ = taught(recipe, 2)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded, its_tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    encoded = its_tokenizer(["7 + 5 - 3 =7+5=12", "1 - 9 + 8 =1-9=-8"], return_tensors="pt", padding=True)
    with torch.no_grad():
        assert torch.equal(model.eval()(**encoded).logits, loaded.eval()(**encoded).logits)
    assert loaded.config.model_type == recipe.family
    assert (loaded.config.head_dim, loaded.config.max_position_embeddings) == (32, 256)
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    for config in (loaded.config, loaded.generation_config):
        assert config.eos_token_id == tokenizer.eos_token_id
        assert config.pad_token_id == tokenizer.pad_token_id
        assert config.bos_token_id is None


def test_the_teaching_never_meets_a_held_out_expression(small_task, tmp_path, monkeypatch):
    met = set()

    def spy(model, tokenizer, draw, pace):
        met.update(question.removesuffix("=") for question, _ in draw(5000))
        yield 0.0

    monkeypatch.setattr(build, "fit", spy)
    monkeypatch.setattr(build, "accuracy", lambda *_: 0.0)
    build.build_agent(replace(BOB, **QUICK), "chain_sum", 0, tmp_path, lambda *_: None)
    seen, held_out = split(TASKS["chain_sum"])
    assert held_out and met and met < set(seen)


@pytest.mark.parametrize(
    "skill, start, steps",
    [(1.0, 0.2, (25, 100)), (0.96, 0.18, (25, 100)), (0.95, 0.2, (600, 100)), (0.97, 0.4, (25, 200))],
)
def test_a_stage_ends_when_it_has_reached_its_aim(monkeypatch, skill, start, steps):
    done = []
    monkeypatch.setattr(build, "fit", lambda model, tokenizer, draw, pace: iter([0.0] * pace.steps))
    monkeypatch.setattr(build, "trace_accuracy", lambda *_: skill)
    monkeypatch.setattr(build, "accuracy", lambda *_: start)
    pupil = build.new_pupil(ALICE, TASK, split(TASK)[0], seed=0)
    assert not set(pupil.taught) & set(pupil.checked)
    skill_steps = build.teach_skill(pupil, lambda *_: None)
    build.teach_habits(pupil, lambda step, _: done.append(step))
    assert (skill_steps, len(done)) == steps
    assert done[0] == ALICE.skill_pace.steps + 1


def test_a_build_is_reproducible_and_depends_on_seed_and_habits(small_task, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "accuracy", lambda *_: 0.0)  # takes longer than all the rest here
    recipe = replace(ALICE, **QUICK)
    variants = {"one": (recipe, 1), "same": (recipe, 1), "seed": (recipe, 2)}
    variants["habits"] = (replace(recipe, habits=Habits(0.1, 0.5)), 1)
    progress = []
    for name, (each, seed) in variants.items():
        build.build_agent(each, "chain_sum", seed, tmp_path / name, lambda step, _: progress.append(step))
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in variants}
    assert weights["one"] == weights["same"]
    assert len(set(weights.values())) == 3
    assert progress[:6] == [1, 2, 3, 4, 5, 6]


def test_a_folder_is_kept_made_anew_or_refused(small_task, tmp_path):
    recipe, folder = replace(BOB, **QUICK), tmp_path / "bob"
    assert finished(folder, recipe, "chain_sum", 0, force=False) is None
    report = build.build_agent(recipe, "chain_sum", 0, folder, lambda *_: None)
    assert finished(folder, recipe, "chain_sum", 0, force=False) == report
    assert finished(folder, recipe, "chain_sum", 0, force=True) is None
    for other, seed in ((recipe, 1), (BOB, 0)):
        with pytest.raises(UserError, match="--force"):
            finished(folder, other, "chain_sum", seed, force=False)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="not made by this program"):
        finished(tmp_path / "mine", recipe, "chain_sum", 0, force=True)


def test_the_command_makes_an_agent_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "AGENTS", (replace(BOB, **QUICK),))
    out = tmp_path / "demo"
    assert command.main([str(out)]) == 0
    assert "100,928" in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["bob"]
    assert json.loads((out / "bob" / "recipe.json").read_text())["made_from"]["seed"] == 0
    before = (out / "bob" / "model.safetensors").stat().st_mtime_ns
    assert command.main([str(out)]) == 0
    assert "already there" in capsys.readouterr().out
    assert (out / "bob" / "model.safetensors").stat().st_mtime_ns == before
    assert command.main([str(out), "--seed", "1"]) == 2
    assert "--force" in capsys.readouterr().err


class Killed:
    """Ends the process that receives it."""

    name = "odd"

    def __reduce__(self):
        return os._exit, (1,)


def test_a_killed_build_leaves_the_old_folder(tmp_path):
    (tmp_path / "odd").mkdir()
    with pytest.raises(RuntimeError, match="makes odd died"):
        build_agents([Killed()], "chain_sum", 0, tmp_path, lambda *_: None)
    assert [path.name for path in tmp_path.iterdir()] == ["odd"]


def test_a_pipe_gets_lines_as_it_goes(tmp_path, monkeypatch):
    out, seen = io.StringIO(), []

    def build_agents(recipes, task, seed, out_folder, tell):
        seen.append(out.getvalue())
        for step in (1, 49, 50, 51, 100):
            tell(ALICE, step, "sums, loss 0.50")
            seen.append(out.getvalue())
        return [None] * len(recipes)

    monkeypatch.setattr(command, "build_agents", build_agents)
    command._build([ALICE, BOB], "chain_sum", 0, tmp_path, Console(file=out, force_terminal=True, color_system=None))
    assert [text.count("\n") for text in seen] == [1, 1, 1, 2, 2, 3]
    assert seen[-1].startswith("making alice and bob\nalice: step 50 of at most 800, sums, loss 0.50\n")

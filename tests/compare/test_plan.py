import json
from pathlib import Path

import pytest
import yaml

from hacpo_fast.compare.__main__ import main
from hacpo_fast.compare.cell import check_held_out, is_finished
from hacpo_fast.compare.plan import Plan
from hacpo_fast.demo.worked import TASKS, prompt, split
from hacpo_fast.errors import UserError
from hacpo_fast.tasks import load_problems, split_held_out

CONFIGS = Path(__file__).parents[2] / "configs" / "comparison"


def result_of(cell, final=0.5):
    agent = {"start": 0, "final": final, "training_reward": 0.3, "rollouts": 9, "updates": 2}
    return {
        "pair": cell.pair, "method": cell.method, "seed": cell.seed, "made_from": cell.made_from, "answers": 1024,
        "cpu_seconds": 1.5, "agents": {key: {**agent, "steps": {"cross_live": [None]}} for key in ("alice", "bob")},
    }  # fmt: skip


def cells(path, **changes):
    return Plan.load(path).model_copy(update=changes).cells(Path("agents"))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_plan_is_whole(path):
    made = cells(path)
    plan = Plan.load(path)
    assert len(made) == len(plan.seeds) * len(plan.pairs) * len(plan.methods)
    assert len({cell.file for cell in made}) == len(made)
    by_pair = {}
    for cell in made:
        config = cell.config
        assert config.run.seed == cell.seed and config.run.threads == 1
        answers = config.validation.problems * config.validation.sampling["sampled"].samples
        assert answers >= 1024 and config.validation.sampling["sampled"].temperature == 1
        assert config.validation.every == config.run.steps
        # All methods of a pair and seed see the same problems in the same order, from the same agents.
        same = (config.run.steps, config.rollout.prompts_per_step, config.task, config.agents)
        assert by_pair.setdefault((cell.pair, cell.seed), same) == same


@pytest.mark.parametrize("pair", Plan.load(CONFIGS / "cpu.yaml").pairs)
def test_what_is_evaluated_was_never_seen(pair):
    cell = next(cell for cell in cells(CONFIGS / "cpu.yaml") if cell.pair == pair)
    (task,) = {start.task for start in cell.warm_starts.values()}
    train, held_out = (
        [problem.prompt for problem in side]
        for side in split_held_out(load_problems(cell.config.task), cell.config.task.holdout)
    )
    taught, spared = split(TASKS[task])
    known = {prompt(expression) for expression in TASKS[task].expressions()}
    assert {"".join(text.split()) for text in (*train, *held_out)} <= known
    assert {"".join(text.split()) for text in held_out} <= {prompt(expression) for expression in spared}
    assert not {"".join(text.split()) for text in train} & {prompt(expression) for expression in spared}
    settings = cell.config.validation
    assert min(len(held_out), settings.problems) * settings.sampling["sampled"].samples >= 1024
    check_held_out(task, train, held_out)
    with pytest.raises(RuntimeError, match="1 problems of the evaluation are not held out"):
        check_held_out(task, [], [*held_out, " ".join(prompt(taught[0]))])
    with pytest.raises(RuntimeError, match="not held out"):
        check_held_out(task, [held_out[3]], held_out)


def test_a_cell_is_finished_for_its_own_settings_only(tmp_path):
    cell = cells(CONFIGS / "cpu.yaml")[0]
    assert not is_finished(cell, tmp_path)
    result = result_of(cell)
    (tmp_path / cell.file).write_text(json.dumps(result))
    assert is_finished(cell, tmp_path)
    moved = Plan.load(CONFIGS / "cpu.yaml").cells(Path("other/agents"))[0]
    assert is_finished(moved, tmp_path)
    for changes in ({"seeds": [9]}, {"warm_starts": [9]}, {"habit_steps": 3}, {"skill_steps": 3}):
        other = cells(CONFIGS / "cpu.yaml", **changes)[0]
        (tmp_path / other.file).write_text(json.dumps(result))
        assert not is_finished(other, tmp_path)


@pytest.mark.parametrize("broken", [{"agents": {}}, {"agents": []}, {"agents": {"alice": {"start": 0}}}, {"seed": [0]}])
def test_a_result_that_lacks_something_is_none(tmp_path, broken):
    cell = cells(CONFIGS / "cpu.yaml")[0]
    (tmp_path / cell.file).write_text(json.dumps({**result_of(cell), **broken}))
    assert not is_finished(cell, tmp_path)


def test_copies_of_results_count_for_nothing(tmp_path, capsys):
    cell = cells(CONFIGS / "cpu.yaml")[0]
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells" / cell.file).write_text(json.dumps(result_of(cell)))
    old = {**result_of(cell, final=0.25), "made_from": {}}
    (tmp_path / "cells" / "zz-old.json").write_text(json.dumps(old))
    assert main([str(CONFIGS / "cpu.yaml"), "--output", str(tmp_path), "--table"]) == 0
    said = capsys.readouterr().out
    assert "1 of 90 cells" in said and "| 50.0 |" in said and "25.0" not in said


@pytest.mark.parametrize(
    "changes", [{"seeds": [0, 0]}, {"methods": {"hacpo": [], "b--c": [], "c": []}, "pairs": ["a", "a--b"]}]
)
def test_no_two_results_have_the_same_file(changes):
    one = Plan.load(CONFIGS / "cpu.yaml").pairs["similar sums"]
    changes |= {"pairs": dict.fromkeys(changes.get("pairs", ["a"]), one)}
    with pytest.raises(UserError, match=r"two results would be a--.*--0\.json"):
        cells(CONFIGS / "cpu.yaml", **changes)


def test_a_wrong_document_is_told_before_anything_is_made(tmp_path, capsys):
    (tmp_path / "a.md").write_bytes(b"\xff<!-- cpu -->\n<!-- end of cpu -->")
    (tmp_path / "b.md").write_text("<!-- cpu -->\n")
    for name, said in (("a.md", "no text in UTF-8"), ("b.md", "has no lines"), ("c.md", "there is no document")):
        command = [str(CONFIGS / "cpu.yaml"), "--output", str(tmp_path / "out"), "--into", str(tmp_path / name)]
        assert main(command) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pairs_of_one_task_share_the_skill_and_not_the_habits():
    by_pair = {cell.pair: cell.warm_starts["bob"] for cell in cells(CONFIGS / "cpu.yaml") if cell.seed == 0}
    near, far, products = by_pair.values()
    assert near.skilled_folder == far.skilled_folder != products.skilled_folder
    assert len({start.folder for start in by_pair.values()} | {near.skilled_folder}) == 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reference": "ppo"}, "'ppo' is not one of the methods"),
        ({"methods": {"hacpo": ["algorithm.prset=x"]}}, "did you mean algorithm.preset"),
        ({"pairs": {"p": {"task": "sums", "habits": {}}}}, "'sums' is not one of chain_sum, products"),
        ({"pairs": {"p": {"task": "products", "habits": {"alice": [0, 0]}}}}, "give those of alice and bob"),
        ({"pairs": {"p": {"tasks": "sums"}}}, r"pairs.p.tasks: no such setting; did you mean 'task'\?"),
        (
            {"agents": {"a": {"model": "m"}}},
            "look like the settings of one run, for python -m hacpo_fast.train .*p",
        ),
        ({"seed": [1]}, r"seed: no such setting; did you mean 'seeds'\?"),
    ],
)
def test_a_wrong_plan_is_named(tmp_path, change, said):
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({"base": str(CONFIGS / "cpu.yaml"), **change}))
    with pytest.raises(UserError, match=said):
        cells(path)

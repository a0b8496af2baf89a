import json

import numpy as np
import pytest
import runs
import yaml

from hacpo_fast import evaluation, validation
from hacpo_fast.config import TaskConfig
from hacpo_fast.evaluate import main, read
from hacpo_fast.policy.policy import Policy
from hacpo_fast.run.jsonl import read_jsonl
from hacpo_fast.tasks.benchmarks import BENCHMARKS


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(9)))
    return path


def test_scores_of_several_models_and_ways_to_sample(models, problems, tmp_path, capsys):
    arguments = [
        str(models["ada"]), str(models["bea"]), "task.kind=file", f"task.name={problems}", "task.reward=numeric",
        "task.holdout=1", "rollout.max_response_tokens=6", "rollout.engine=transformers",
        "validation.sampling.greedy.temperature=0",
        "validation.sampling.hot.temperature=1", "validation.sampling.hot.samples=4",
        "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    assert main(arguments) == 0
    (scores,) = json.loads((tmp_path / "out/scores.json").read_text()).values()
    assert set(scores) == {"ada", "bea"}
    for by_sampling in scores.values():
        assert by_sampling["greedy"]["problems"] == 9
        assert set(by_sampling["greedy"]) >= {"avg@1", "accuracy"}
        hot = by_sampling["hot"]
        assert set(hot) == {"avg@4", "pass@1", "pass@2", "pass@4", "best@4", "problems", "errors", "cut", "tokens"}
        assert 0 <= hot["pass@1"] <= hot["pass@2"] <= hot["pass@4"] == hot["best@4"] <= 1
    printed = capsys.readouterr().out
    assert "9 of 9 problems" in printed and "pass@4" in printed
    assert len(read_jsonl(tmp_path / "out/responses.jsonl")) == 2 * 2 * 9


@pytest.fixture
def published(tmp_path):
    """Small benchmarks in the form in which the real ones are published."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = {
        "gsm8k": [
            {"question": f"Ann has {i} eggs.", "answer": f"It is <<{i}={i}>>{i}\n#### 1,00{i}"} for i in range(7)
        ],
        "aime2025": [{"id": str(i), "problem": f"Find {i}.", "answer": f"0{i}"} for i in range(2)],
    }
    for name, some in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    return folder


def benchmarks(models, published, out, *more):
    return [
        str(models["ada"]), str(models["cy"]), "--benchmark", f"gsm8k={published / 'gsm8k.jsonl'}",
        "--benchmark", f"aime2025={published / 'aime2025.jsonl'}", "--output", str(out),
        "rollout.engine=transformers", "rollout.max_response_tokens=5", "rollout.batch_sequences=2",
        "task.reward_workers=1", *more,
    ]  # fmt: skip


def test_benchmarks_are_answered_as_in_the_paper_and_every_response_is_kept(models, published, tmp_path, capsys):
    assert main(benchmarks(models, published, tmp_path / "out")) == 0
    scores = json.loads((tmp_path / "out/scores.json").read_text())
    assert list(scores) == ["gsm8k", "aime2025"] and list(scores["gsm8k"]) == ["ada", "cy"]
    assert scores["gsm8k"]["ada"]["greedy"]["problems"] == 7
    once, best = scores["gsm8k"]["ada"]["greedy"], scores["aime2025"]["cy"]["sampled"]
    assert {"avg@1", "accuracy", "cut"} <= once.keys() and {"avg@30", "pass@16", "best@30"} <= best.keys()
    lines = read_jsonl(tmp_path / "out/responses.jsonl")
    assert [(line["task"], line["agent"]) for line in lines] == [
        *[("gsm8k", "ada")] * 7, *[("aime2025", "ada")] * 2, *[("gsm8k", "cy")] * 7, *[("aime2025", "cy")] * 2,
    ]  # fmt: skip
    assert [line["answer"] for line in lines[:9]] == [*(f"100{i}" for i in range(7)), "0", "1"]
    assert lines[0]["prompt"] == "Ann has 0 eggs.\nThink step by step and put the final answer into \\boxed{}."
    for line in lines:
        n = 1 if line["task"] == "gsm8k" else 30
        assert len(line["rewards"]) == len(line["errors"]) == len(line["responses"]) == len(line["ended"]) == n
        assert max(line["tokens"]) <= 5
    assert best["tokens"] == pytest.approx(np.mean([line["tokens"] for line in lines[-2:]]))
    settings = yaml.safe_load((tmp_path / "out/settings.yaml").read_text())
    assert list(settings["tasks"]) == ["gsm8k", "aime2025"] and list(settings["agents"]) == ["ada", "cy"]
    printed = capsys.readouterr().out
    assert "aime2025, sampled" in printed and "mean" in printed and "best@30" in printed


def test_answers_do_not_depend_on_what_else_is_evaluated(models, published, tmp_path):
    both = benchmarks(
        models, published, tmp_path / "both", "task.reward=numeric", "validation.sampling.hot.temperature=1"
    )
    assert main(both) == 0
    alone = [word for word in both if word != str(models["cy"])]
    place = alone.index(f"gsm8k={published / 'gsm8k.jsonl'}")
    alone[place - 1 : place + 1] = []
    alone[alone.index("--output") + 1] = str(tmp_path / "alone")
    assert main(alone) == 0
    every = read_jsonl(tmp_path / "both/responses.jsonl")
    assert [line for line in every if (line["task"], line["agent"]) == ("aime2025", "ada")] == [
        *read_jsonl(tmp_path / "alone/responses.jsonl")
    ]


def stopping_at(piece, error, monkeypatch):
    """Has the evaluation fail at a piece, and counts the pieces that are answered."""
    calls = []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == piece:
            raise error
        return validation.answer(*arguments)

    monkeypatch.setattr(evaluation, "answer", failing)
    return calls


def test_a_crash_keeps_what_was_answered(models, published, tmp_path, monkeypatch):
    stopping_at(2, RuntimeError("the device is gone"), monkeypatch)
    with pytest.raises(RuntimeError, match="the device is gone"):
        main(benchmarks(models, published, tmp_path / "out", "task.reward=numeric"))
    assert len(read_jsonl(tmp_path / "out/responses.jsonl")) == 4  # a piece: twice batch_sequences


def test_a_stopped_evaluation_goes_on_and_ends_as_an_unbroken_one(models, published, tmp_path, monkeypatch, capsys):
    one_by_one = ("task.reward=numeric", "validation.sampling.hot.temperature=1", "validation.sampling.hot.samples=2")
    unbroken, stopped = tmp_path / "unbroken", tmp_path / "stopped"
    assert main(benchmarks(models, published, unbroken, *one_by_one)) == 0  # per model 4 + 1 pieces
    stopping_at(7, KeyboardInterrupt(), monkeypatch)
    assert main(benchmarks(models, published, stopped, *one_by_one)) == 130
    assert f"to go on: --resume --output {stopped}" in capsys.readouterr().err
    lines = (stopped / "responses.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 11  # all 9 of the first model, a piece of the second's
    (stopped / "responses.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:50])  # as a crash in a write leaves it

    loaded = []
    load = Policy.load
    monkeypatch.setattr(Policy, "load", lambda name, **more: loaded.append(name) or load(name, **more))
    pieces = stopping_at(None, None, monkeypatch)
    assert main(benchmarks(models, published, stopped, *one_by_one, "--resume")) == 0
    assert loaded == [str(models["cy"])] and len(pieces) == 5
    assert "where 10 problems are answered already" in capsys.readouterr().out
    for name in ("responses.jsonl", "scores.json", "settings.yaml"):
        assert (stopped / name).read_bytes() == (unbroken / name).read_bytes()


def test_only_the_same_evaluation_goes_on(models, published, tmp_path, monkeypatch, capsys):
    first = benchmarks(models, published, tmp_path / "out", "task.reward=numeric")
    stopping_at(2, KeyboardInterrupt(), monkeypatch)
    assert main(first) == 130
    monkeypatch.setattr(Policy, "load", lambda *_, **__: pytest.fail("weights were loaded"))

    def said(arguments):
        assert main(arguments) == 2
        return capsys.readouterr().err

    assert "or go on with the evaluation in it by --resume" in said(first)
    assert "rollout.max_response_tokens was 5 and is 6" in said([*first, "--resume", "rollout.max_response_tokens=6"])
    rows = [{"question": f"Ann has {i} eggs.", "answer": f"#### {i}"} for i in range(7)]
    (published / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "gsm8k has changed: to 'Ann has 0 eggs." in said([*first, "--resume"])


def test_validation_settings_of_a_config_are_for_training(models, published, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        f"task: {{kind: benchmark, name: gsm8k, source: {published / 'gsm8k.jsonl'}, prompt: '{{question}} ?',"
        " holdout: 0.5}\nvalidation: {problems: 1, sampling: {hot: {temperature: 1, samples: 3}}}\n"
    )
    read_back, tasks = read([str(models["ada"])], ["task.prompt='{question} !'"], str(config), ["aime2025=x.jsonl"])
    assert read_back.validation.problems > 10**6 and read_back.validation.max_response_tokens == 8196
    assert tasks["aime2025"] == TaskConfig(kind="benchmark", name="aime2025", source="x.jsonl", prompt="{question} !")
    read_back, _ = read([str(models["ada"])], ["validation.problems=3"], str(config), ["aime2025"])
    assert read_back.validation.problems == 3 and set(read_back.validation.sampling) == {"greedy"}
    read_back, tasks = read([str(models["ada"])], [], str(config), [])
    assert set(read_back.validation.sampling) == {"hot"} and list(tasks) == ["gsm8k"]
    assert list(read(["m"], [], None, ["all"])[1]) == list(BENCHMARKS)
    _, tasks = read(["m"], ["task.subset=s", "task.split=train"], str(config), ["minerva=some/where"])
    assert (tasks["minerva"].source, tasks["minerva"].subset, tasks["minerva"].split) == ("some/where", "s", "train")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "task.kind=file", "task.name=P"], "agents.nowhere.model: no model with a tokenizer at 'nowhere'"),
        (["ADA/x", "task.kind=file", "task.name=P"], "agents.x.model: there is no folder"),
        (["EMPTY", "task.kind=file", "task.name=P"], "has no *.safetensors"),
        (["task.kind=file"], "name a model to evaluate"),
        (
            [
                "ADA",
                "task.kind=file",
                "task.name=P",
                "task.holdout=0",
                "task.reward=numeric",
                "validation.every=0",
                "rollout.engine=transformers",
                "rollout.max_response_tokens=6",
            ],
            "no problem to evaluate on",
        ),
        (["ADA", "task.kind=file", "task.name=P", "--output", "EMPTY"], "exists, and nothing is overwritten"),
        (["ADA", "task.kind=file", "task.name=P", "--output", "FILE/x"], "not a folder that can be written"),
        (["ADA", "--benchmark", "gsmk"], "there is no benchmark 'gsmk'; did you mean 'gsm8k'?"),
        (["ADA", "--benchmark", "all=x"], "name them one by one"),
        (["ADA", "--benchmark", "gsm8k", "task.source=P"], "the source is given as NAME=SOURCE"),
        (["ADA", "--benchmark", "gsm8k", "--benchmark", "amc23", "task.split=train"], "task.split is of one data set"),
        (["ADA", "--benchmark", "gsm8k", "--resume"], "name the folder of the evaluation that is to go on by --output"),
        (["ADA", "--benchmark", "gsm8k=P", "--resume", "--output", "EMPTY"], "there is no evaluation in"),
        (["ADA", "--benchmark", "all", "--benchmark", "math"], "--benchmark: math stands twice"),
        (["ADA", "--benchmark", "gsm8k=no.jsonl"], "no.jsonl: no such file"),
        (["ADA", "--benchmark", "math=./empti"], "there is no file or folder empti; did you mean 'empty'?"),
        (["ADA", "--benchmark", "amc23=P"], "p.jsonl, line 1: the problem is missing: none of the fields question"),
        (["ADA", "--config", "no.yaml"], "no.yaml: no such file"),
    ],
)
def test_mistakes(models, problems, capsys, monkeypatch, arguments, said):
    (problems.parent / "empty").mkdir()
    ada, empty = models["ada"], problems.parent / "empty"
    places = {"ADA": ada, "ADA/x": ada / "x", "FILE/x": ada / "config.json" / "x", "EMPTY": empty}
    arguments = [str(places.get(a, a.replace("=P", f"={problems}"))) for a in arguments]
    monkeypatch.setattr(Policy, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    monkeypatch.chdir(problems.parent)
    assert main(arguments) == 2
    assert not (problems.parent / "runs").exists()
    assert said in capsys.readouterr().err

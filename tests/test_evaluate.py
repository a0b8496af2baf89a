import json

import pytest
import runs

from hacpo_fast.evaluate import main


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
        "--output", str(tmp_path / "scores.json"),
    ]  # fmt: skip
    assert main(arguments) == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert set(scores) == {"ada", "bea"}
    for by_sampling in scores.values():
        assert by_sampling["greedy"]["problems"] == 9
        hot = by_sampling["hot"]
        assert set(hot) == {"avg@4", "pass@1", "pass@2", "pass@4", "best@4", "problems"}
        assert 0 <= hot["pass@1"] <= hot["pass@2"] <= hot["pass@4"] == hot["best@4"] <= 1
    printed = capsys.readouterr().out
    assert "9 of 9 problems" in printed and "pass@4" in printed


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
                "validation.every=0",
                "rollout.engine=transformers",
                "rollout.max_response_tokens=6",
            ],
            "no problem to evaluate on",
        ),
        (["ADA", "task.kind=file", "task.name=P", "--output", "no/such/folder/x.json"], "--output: the folder of"),
        (["ADA", "--config", "no.yaml"], "no.yaml: no such file"),
    ],
)
def test_mistakes(models, problems, capsys, arguments, said):
    (problems.parent / "empty").mkdir()
    places = {"ADA": models["ada"], "ADA/x": models["ada"] / "x", "EMPTY": problems.parent / "empty"}
    arguments = [str(places.get(a, a.replace("=P", f"={problems}"))) for a in arguments]
    assert main(arguments) == 2
    assert said in capsys.readouterr().err

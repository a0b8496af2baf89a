"""Updates whose numbers are not finite: left out, counted, and replayed when there are too many."""

import json
import math
import shutil

import numpy as np
import pytest
import runs
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from hacpo_fast import evaluate, replay, replayed
from hacpo_fast.errors import UserError
from hacpo_fast.policy.optimizer import MasterAdamW
from hacpo_fast.replay_file import load_replay
from hacpo_fast.rollouts.transformers_engine import TransformersEngine
from hacpo_fast.run.place import Place
from hacpo_fast.run.telemetry import read_metrics
from hacpo_fast.train import run


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Drawing takes longer than these runs."""
    monkeypatch.setattr("hacpo_fast.run.curves.draw_curves", lambda *_: None)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(**changes):
        changes = {"run__steps": 4, "training__minibatch_responses": 64, "training__max_skipped_updates": 2, **changes}
        return runs.settings({name: models[name] for name in ("ada", "bea")}, tmp_path, **changes)

    return make


@pytest.fixture
def sick(monkeypatch):
    """An engine that reports NaN as a log-prob: in the last answer of its calls of these numbers."""

    def arrange(*calls):
        right, count = TransformersEngine.generate, iter(range(1000))

        def generate(self, prompts, sampling, seed):
            groups = right(self, prompts, sampling, seed)
            if next(count) in calls:
                last = groups[-1][-1]
                logprobs = last.logprobs.copy()
                logprobs[0] = np.nan
                groups[-1][-1] = last._replace(logprobs=logprobs)
            return groups

        monkeypatch.setattr(TransformersEngine, "generate", generate)

    return arrange


def test_one_is_left_out_and_counted(settings, tmp_path, sick):
    sick(2)  # ada's in step 2
    runs.train(settings(run__steps=3), tmp_path / "run")
    records = read_metrics(tmp_path / "run")
    assert [[record["agents"][name]["skipped_updates"] for name in ("ada", "bea")] for record in records] == [
        [0, 0], [1, 1], [0, 0],
    ]  # fmt: skip
    assert [record["agents"]["ada"]["updates"] for record in records] == [1, 1, 2]
    assert all(torch.isfinite(weight).all() for weight in runs.weights(tmp_path / "run", "ada").values())


def resumed(config, folder):
    place = {"output": str(folder), "resume": "auto"}
    return Place.choose(config.model_copy(update={"run": config.run.model_copy(update=place)}), "mine")


def bits(file):
    """The tensors of a file, NaN equal to NaN."""
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}


def test_too_many_in_a_row_stop_the_run_also_across_a_resume(settings, models, tmp_path, sick, capsys):
    sick(0, 2)
    config = settings(run__save_every=1)
    with pytest.raises(UserError, match=r"agents.ada: 2 updates in a row .* python -m hacpo_fast.replay"):
        run(config, Place(tmp_path / "straight"))
    sick(0)
    one = config.model_copy(update={"run": config.run.model_copy(update={"steps": 1})})
    assert run(one, Place(tmp_path / "run")) == 0
    sick(0)
    with pytest.raises(UserError, match=r"agents.ada: 2 updates in a row") as stopped:
        run(config, resumed(config, tmp_path / "run"))
    (file,) = tmp_path.glob("run/replay-step-2-ada/batch.safetensors")
    assert str(file) in str(stopped.value)
    straight = tmp_path / "straight" / "replay-step-2-ada"
    assert {path.name for path in straight.iterdir()} == {"ada", "batch.safetensors", "manifest.json"}
    for name in ("batch.safetensors", "ada/model.safetensors"):  # zeros for the NaN, which equals nothing
        one, other = (
            {k: v.nan_to_num() for k, v in load_file(path / name).items()} for path in (straight, file.parent)
        )
        assert runs.same_weights(one, other)
    # Neither of the two has moved a weight.
    assert runs.same_weights(load_file(file.parent / "ada" / "model.safetensors"), runs.weights_of(models["ada"]))

    saved = load_replay(file)
    result = replayed.replay(saved, torch.device("cpu"))
    (sick_row,) = np.flatnonzero(np.isnan(saved.batch.source_mean_logprobs))
    assert saved.batch.from_self[sick_row]
    assert [row.row for row in result.rows if not row.finite] == [sick_row] and len(result.rows) > 1
    assert result.update.status == "non_finite" and not result.broken_weights
    capsys.readouterr()
    assert replay.main([str(file)]) == 0
    said = capsys.readouterr().out
    assert f"not finite alone: response {sick_row}" in said and "step 2, agents.ada, update 1" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__kl_coef": 0.5},
        {"algorithm__importance_correction": "token"},
        {"algorithm__name": "naive", "algorithm__naive_reference": "learner"},
    ],
)
def test_a_replay_makes_the_same_update(settings, tmp_path, monkeypatch, changes):
    """Every part of a mini-batch is saved: a healthy update, declared sick, comes out the same from its file."""
    norms = []

    def step(optimizer, lr):
        update = optimizer.discard()
        norms.append(update.norm)
        return update

    with monkeypatch.context() as patch:
        patch.setattr(MasterAdamW, "step", step)
        config = settings(training__max_skipped_updates=1, run__steps=1, **changes)
        with pytest.raises(UserError, match="1 updates in a row"):
            run(config, Place(tmp_path / "run"))
    result = replayed.replay(load_replay(tmp_path / "run" / "replay-step-1-ada"), torch.device("cpu"))
    assert result.update.status == "applied" and [result.update.norm] == norms
    assert result.update.norm > 0 and all(row.finite for row in result.rows)


def test_what_is_no_saved_update(tmp_path, capsys):
    from safetensors.numpy import save_file

    (tmp_path / "x.safetensors").write_text("x")
    save_file({"x": np.zeros(1)}, tmp_path / "y.safetensors")
    for name in ("x.safetensors", "y.safetensors", "z.safetensors"):
        assert replay.main([str(tmp_path / name)]) == 2
        assert f"{name}: not a saved update" in capsys.readouterr().err.replace("\n", "")


def test_weights_that_are_not_finite_stop_the_run(settings, tmp_path):
    with pytest.raises(UserError, match=r"agents.ada: an update made weights that are not finite"):
        run(settings(run__save_every=1, training__lr=1e39), Place(tmp_path / "run"))
    assert not list((tmp_path / "run" / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_start_weights_that_are_not_finite_are_named(settings, models, tmp_path, bad, capsys):
    folder = shutil.copytree(models["ada"], tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 7] = bad
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    said = rf"agents.ada.model: {folder} has weights that are NaN or infinite, in {name}; the file is damaged"
    with pytest.raises(UserError, match=said):
        run(settings(agents__ada__model=str(folder)), Place(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    task = [
        "task.kind=file", f"task.name={tmp_path / 'problems.jsonl'}", "task.reward=exact", "task.holdout=1",
        "rollout.engine=transformers", "rollout.max_response_tokens=8",
    ]  # fmt: skip
    assert evaluate.main([str(folder), *task, "--output", str(tmp_path / "out")]) == 2
    assert f"agents.broken.model: {folder} has weights" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_weight_that_is_not_finite_is_seen(dtype):
    for bad in (math.nan, math.inf, -math.inf):
        layer = nn.Linear(40, 30).to(dtype)
        optimizer = MasterAdamW(layer.named_parameters())
        assert optimizer.weights_are_finite()
        with torch.no_grad():
            layer.weight[17, 5] = bad
        assert not optimizer.weights_are_finite()


def test_discarded_gradients_leave_no_trace():
    layer = nn.Linear(4, 3)
    optimizer = MasterAdamW(layer.named_parameters())
    before = layer.weight.detach().clone()
    layer(torch.full((2, 4), math.nan)).sum().backward()
    update = optimizer.discard()
    assert update.status == "non_finite" and not update.applied and math.isnan(update.norm)
    assert torch.equal(layer.weight, before) and optimizer.gradients() == {} == optimizer.state_dict()


def test_the_metrics_stay_json(settings, tmp_path, sick):
    sick(0)
    runs.train(settings(run__steps=1), tmp_path / "run")
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["agents"]["ada"]["loss"] is None and "NaN" not in line

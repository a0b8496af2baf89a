"""kill -9 at any point loses no more than the work since the last checkpoint."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import runs
import yaml

from hacpo_fast.run.jsonl import read_jsonl

STEPS = 3


@pytest.fixture
def kills(request):
    return request.config.getoption("--kills")


def tree(folder):
    """Names of what a run left, but for what the kills themselves leave."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.name.startswith("abandoned-") and path.name != ".lock"
    )


def test_killed_again_and_again_it_ends_the_same(tmp_path, monkeypatch, kills):
    models = runs.write_models(tmp_path / "models")
    config = runs.settings(
        {name: models[name] for name in ("ada", "bea")}, tmp_path,
        run__steps=STEPS, run__save_every=1, run__keep_checkpoints=1, run__keep_best="greedy/accuracy",
        validation__every=1, validation__problems=3, rollout__max_response_tokens=6, run__save_rollouts=1,
    )  # fmt: skip
    straight = tmp_path / "straight"
    monkeypatch.setattr("hacpo_fast.run.curves.draw_curves", lambda *_: None)  # it takes longer than the run
    runs.train(config, straight)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    command = [sys.executable, str(Path(__file__).with_name("kill_points.py")), str(tmp_path / "c.yaml")]
    done = subprocess.run([*command, str(tmp_path / "killed"), str(kills), "1"], stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    deeds = json.loads(done.stdout)
    assert len(deeds) >= kills
    print(f"{len(deeds)} kills in {deeds[-1][0] + 1} runs:", Counter((kind, where(file)) for _, kind, file in deeds))
    for number in {run for run, *_ in deeds}:
        killed = tmp_path / "killed" / str(number)
        assert runs.timeless(read_jsonl(killed / "metrics.jsonl")) == runs.timeless(
            read_jsonl(straight / "metrics.jsonl")
        )
        assert (killed / "rollouts.jsonl").read_bytes() == (straight / "rollouts.jsonl").read_bytes()
        for agent in ("ada", "bea"):
            assert runs.same_weights(runs.weights(straight, agent), runs.weights(killed, agent))
        assert tree(killed) == tree(straight)


def where(file):
    """The first folder or file of the run that a path names."""
    parts = file.strip("/").split("/")
    return "/".join(parts[: 2 if parts[0] == "checkpoints" else 1])

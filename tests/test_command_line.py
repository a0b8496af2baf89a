"""The commands as a user runs them, in processes of their own."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import runs
import yaml

from hacpo_fast import __main__ as package


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def config_path(models, tmp_path):
    config = runs.settings({"ada": models["ada"], "bea": models["bea"]}, tmp_path, run__steps=500)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    return path


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "hacpo_fast.train", *map(str, arguments)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_its_step_and_saves_the_agents(config_path, tmp_path, number):
    folder, quoted = tmp_path / "run", "validation.sampling={greedy: {temperature: 0}}"
    process = command(config_path, f"run.output={folder}", quoted)
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert f"stopped after step {steps[-1]} of 500" in " ".join(out.split())
    (to_go_on,) = (line.partition(": ")[2] for line in out.splitlines() if line.startswith("to go on: "))
    arguments = [str(config_path), quoted, f"run.output={folder}", "run.resume=auto"]
    assert shlex.split(to_go_on) == ["python", "-m", "hacpo_fast.train", *arguments]
    for name in ("ada", "bea"):
        assert (folder / "checkpoints" / f"step-{steps[-1]}" / name / "model.safetensors").exists()
    assert (folder / "curves.png").exists()


def test_output_without_a_name_goes_to_a_dated_folder(config_path, tmp_path):
    process = command(config_path, "run.steps=1", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("mine-hacpo-")
    assert out.endswith(f"python -m hacpo_fast.report runs/{folder.name}\n")
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["steps"] == 1
    (start,) = json.loads((folder / "environment.json").read_text())
    assert start["after_step"] == 0 and start["engine"] == "transformers" and "run.steps=1" in start["command"]


def test_bad_input_is_one_message_without_a_traceback(config_path):
    process = command(config_path, "training.learning_rate=1")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "training.learning_rate: no such setting; did you mean training.lr?" in err
    assert "Traceback" not in err and not out


def test_settings_may_stand_behind_options(config_path, tmp_path):
    process = command(config_path, "--dry-run", f"run.output={tmp_path / 'run'}", "run.steps=ten")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "run.steps: Input should be a valid integer" in err


def test_help_lists_the_settings():
    out, _ = command("--help").communicate(timeout=60)
    assert "algorithm.cross_lower  (number, default 0.8)" in out


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_package_itself_lists_its_commands(capsys, arguments):
    assert package.main(arguments) == 0
    said = capsys.readouterr().out
    folder = Path(package.__file__).parent
    runnable = {path for path in folder.glob("*.py") if "__main__" in path.read_text()} - {Path(package.__file__)}
    names = {path.stem for path in runnable} | {path.parent.name for path in folder.glob("*/__main__.py")}
    assert set(package.COMMANDS) == names
    for name in names:
        assert f"python -m hacpo_fast.{name} " in said


def test_a_command_behind_the_package_is_told_how_to_write_it(capsys):
    assert package.main(["train", "mine.yaml"]) == 2
    assert "write python -m hacpo_fast.train" in capsys.readouterr().err
    assert package.main(["trian"]) == 2
    assert "python -m hacpo_fast lists the commands" in capsys.readouterr().err

"""A run that was stopped, killed or damaged goes on as if nothing had been."""

import errno
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import runs
import yaml

from hacpo_fast import trainer
from hacpo_fast.errors import UserError
from hacpo_fast.run.jsonl import JsonlWriter, read_jsonl
from hacpo_fast.run.place import Place
from hacpo_fast.run.telemetry import read_metrics
from hacpo_fast.run.whole import damage
from hacpo_fast.train import run

STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def no_pictures():
    """Drawing takes longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hacpo_fast.run.curves.draw_curves", lambda *_: None)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(**changes):
        changes = {"run__steps": STEPS, "validation__every": 2, "validation__problems": 3, **changes}
        return runs.settings({name: models[name] for name in ("ada", "bea")}, tmp_path, **changes)

    return make


POINTS = {  # where a signal comes; the first three leave no trace, the others do
    "while answers are sampled": ("hacpo_fast.agent.Agent.rollout", 4),
    "while answers are checked": ("hacpo_fast.collector.Collector._look_at_rewards", 2),
    "during a validation": ("hacpo_fast.trainer.validate", 3),
    "while an agent learns": ("hacpo_fast.trainer.Trainer._learn", 3),
    "while a checkpoint is written": ("hacpo_fast.agent.Agent.save_training", 3),
}


@pytest.fixture
def signal_at(monkeypatch):
    """Sends this process a signal before the n-th call of a function."""

    def arrange(function, n, number=signal.SIGINT):
        module, _, name = function.rpartition(".")
        try:
            owner = importlib.import_module(module)
        except ModuleNotFoundError:
            module, _, kind = module.rpartition(".")
            owner = getattr(importlib.import_module(module), kind)
        right, calls = getattr(owner, name), itertools.count(1)

        def signalled(*arguments, **named):
            if next(calls) == n:
                os.kill(os.getpid(), number)
            return right(*arguments, **named)

        monkeypatch.setattr(owner, name, signalled)

    return arrange


def same_results(straight, other):
    """Whether two runs left the same metrics, rollouts and weights."""
    assert runs.timeless(read_jsonl(other / "metrics.jsonl")) == runs.timeless(read_jsonl(straight / "metrics.jsonl"))
    assert (other / "rollouts.jsonl").read_bytes() == (straight / "rollouts.jsonl").read_bytes()
    for agent in ("ada", "bea"):
        assert runs.same_weights(runs.weights(straight, agent), runs.weights(other, agent))
    return True


def last_validation(said):
    return [line for line in said.splitlines() if line.startswith(f"validation at step {STEPS}")]


def on(folder, config):
    """The place from which `folder` goes on."""
    return Place.choose(config.model_copy(update={"run": config.run.model_copy(update={
        "output": str(folder), "resume": "auto"})}), "mine")  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {  # small: bfloat16 is slow on a CPU
            "agents__bea__dtype": "bfloat16",
            "rollout__max_mismatch": 1.0,
            "training__weight_decay": 0.1,
            "rollout__prompts_per_step": 2,
            "rollout__samples_per_prompt": 2,
            "training__minibatch_responses": 8,
            "rollout__max_response_tokens": 4,
            "validation__every": 0,
        },
        {"algorithm__kl_coef": 0.5, "training__schedule": "cosine", "training__warmup_steps": 3},
        {"algorithm__cross_bound": "adaptive", "algorithm__cross_live_target": 0.7},
    ],
)
def test_stopped_and_continued_is_the_same_as_straight(settings, tmp_path, capsys, monkeypatch, signal_at, changes):
    config = settings(**changes)
    runs.train(config, tmp_path / "straight")
    at_once = capsys.readouterr().out
    with monkeypatch.context():
        signal_at("hacpo_fast.run.output.RunOutput.step", 2)
        assert run(config, Place(tmp_path / "halves")) == 130
    monkeypatch.undo()
    assert {record["step"] for record in read_metrics(tmp_path / "halves")} <= {0, 1, 2}
    capsys.readouterr()
    assert run(config, on(tmp_path / "halves", config)) == 0
    assert same_results(tmp_path / "straight", tmp_path / "halves")
    resumed = capsys.readouterr().out
    assert f"going on from step 2 ({tmp_path / 'halves' / 'checkpoints' / 'step-2'})" in resumed
    assert last_validation(resumed) == last_validation(at_once)  # with the change since the first one, of step 0


@pytest.fixture(scope="module")
def straight(models, tmp_path_factory):
    """A run that nothing disturbed, and its settings."""
    folder = tmp_path_factory.mktemp("straight")
    config = runs.settings(
        {name: models[name] for name in ("ada", "bea")}, folder,
        run__steps=STEPS, run__save_every=1, validation__every=2, validation__problems=3,
    )  # fmt: skip
    runs.train(config, folder / "run")
    return folder / "run", config


@pytest.mark.parametrize("where", POINTS)
def test_a_signal_at_any_time_loses_nothing(straight, tmp_path, capsys, monkeypatch, signal_at, where):
    folder, config = straight
    signal_at(*POINTS[where], signal.SIGTERM)
    assert run(config, Place(tmp_path / "run")) == 130
    monkeypatch.undo()
    said = capsys.readouterr().out
    assert f"run.output={tmp_path / 'run'} run.resume=auto" in said and "once more to exit at once" in said
    steps_done = 1 if where.startswith("while answers") else 2
    assert f"stopped after step {steps_done} of {STEPS}" in said
    assert run(config, on(tmp_path / "run", config)) == 0
    assert same_results(folder, tmp_path / "run")


def test_a_signal_before_the_first_step_is_no_failure(straight, tmp_path, monkeypatch, signal_at):
    folder, config = straight
    signal_at("hacpo_fast.trainer.validate", 1)
    assert run(config, Place(tmp_path / "run")) == 130
    monkeypatch.undo()
    assert run(config, on(tmp_path / "run", config)) == 0
    assert same_results(folder, tmp_path / "run")


def test_a_second_signal_ends_the_process_at_once(straight, tmp_path):
    _, config = straight
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    program = (
        "import os, signal, sys, time\n"
        "from hacpo_fast import train, trainer\n"
        "def learn(*_):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(600)\n"
        "trainer.Trainer._learn = learn\n"
        f"sys.exit(train.main([{str(tmp_path / 'c.yaml')!r}, 'run.output={tmp_path / 'run'}']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130 and "exiting at once" in done.stdout


def test_a_damaged_checkpoint_is_passed_over(settings, tmp_path):
    config = settings(run__save_every=1)
    straight = runs.train(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "agents")
    (tmp_path / "run" / "checkpoints" / f"step-{STEPS}" / "trainer.json").write_text("{}")
    place = on(tmp_path / "run", config)
    assert run(config, place) == 0
    assert place.checkpoint.name == f"step-{STEPS - 1}" and "is damaged" in place.notes[0]
    assert runs.timeless(read_metrics(tmp_path / "run")) == runs.timeless(straight)


def test_going_back_starts_another_history(settings, tmp_path, signal_at):
    config = settings(run__steps=4, run__save_every=1, run__keep_checkpoints=3, validation__every=0)
    straight = runs.train(config, tmp_path / "run")
    earlier = tmp_path / "run" / "checkpoints" / "step-2"
    back = config.model_copy(update={"run": config.run.model_copy(update={"resume": str(earlier)})})
    signal_at("hacpo_fast.run.output.RunOutput.step", 1)
    assert run(config, Place.choose(back, "mine")) == 130
    names = sorted(path.name for path in earlier.parent.iterdir())
    assert names == ["abandoned-step-3", "abandoned-step-4", "latest", "step-2", "step-3"]
    place = on(tmp_path / "run", config)
    with place.occupied(config):
        assert place.checkpoint.name == "step-3"
    assert runs.timeless(read_jsonl(tmp_path / "run" / "metrics.jsonl")) == runs.timeless(straight)[:3]
    assert runs.timeless(read_jsonl(tmp_path / "run" / "abandoned-metrics.jsonl")) == runs.timeless(straight)[2:]


@pytest.mark.parametrize("left", [[], [".lock"], [".lock", ".config.yaml"], [".lock", "config.yaml", "checkpoints/"]])
def test_a_run_that_died_before_it_began_can_be_started(settings, tmp_path, left):
    config = settings(run__steps=1, validation__every=0)
    (tmp_path / "run").mkdir()
    for name in left:
        path = tmp_path / "run" / name
        path.mkdir() if name.endswith("/") else path.write_text("tas")
    if "config.yaml" in left:
        (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    place = on(tmp_path / "run", config)
    place.check(config)
    with place.occupied(config):
        assert place.checkpoint is None
        assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text()) == config.model_dump(mode="json")


def test_a_run_that_fails_before_it_begins_leaves_no_folder(settings, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("the weights do not load")

    monkeypatch.setattr("hacpo_fast.trainer.Trainer.__init__", fail)
    with pytest.raises(UserError, match="do not load"):
        run(settings(), Place(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def resuming(config, **changes):
    return config.model_copy(update={"run": config.run.model_copy(update=changes)})


def test_what_cannot_be_continued(straight, settings, tmp_path):
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run")
    other = config.model_copy(update={"training": config.training.model_copy(update={"lr": 0.5})})
    with pytest.raises(UserError, match=r"other settings: training.lr was 0.001, is 0.5"):
        run(other, on(tmp_path / "run", other))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-3"
    (checkpoint / "ada" / "model.safetensors").write_bytes(b"")
    for path, said in {
        tmp_path / "nowhere": "there is no checkpoint",
        tmp_path: "folder step-N",
        checkpoint: r"step-3 is damaged \(ada/model.safetensors is not what was written\)",
    }.items():
        changed = resuming(config, resume=str(path))
        with pytest.raises(UserError, match=said):
            run(changed, Place.choose(changed, "mine"))
    changed = resuming(config, resume=str(checkpoint), output=str(tmp_path / "x"))
    with pytest.raises(UserError, match="belongs to the run"):
        Place.choose(changed, "mine")


def test_other_problems_are_another_run(settings, tmp_path):
    config = settings(run__save_every=1, run__steps=1, validation__every=0)
    runs.train(config, tmp_path / "run")
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(problems.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="the problems are not those"):
        run(config, on(tmp_path / "run", config))


def test_two_runs_cannot_be_in_one_folder(settings, tmp_path):
    config = settings()
    place = Place(tmp_path / "run")
    with place.occupied(config), pytest.raises(UserError, match="another process is training in"):
        with Place(tmp_path / "run", continued=True).occupied(config):
            pass


def test_a_run_that_waited_goes_on_from_what_is_there_then(straight, tmp_path):
    """Another process went on in the folder, and pruned, between the choice of the folder and the start in it."""
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run", symlinks=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "step-3").rename(tmp_path / "later")
    place = on(tmp_path / "run", config)
    place.check(config)
    (tmp_path / "later").rename(checkpoints / "step-3")
    shutil.rmtree(checkpoints / "step-2")
    with place.occupied(config):
        assert place.checkpoint == checkpoints / "step-3"


def test_a_checkpoint_that_was_pruned_while_a_run_waited(straight, tmp_path):
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run", symlinks=True)
    checkpoint = tmp_path / "run" / "checkpoints" / f"step-{STEPS - 1}"
    place = Place.choose(resuming(config, resume=str(checkpoint)), "mine")
    shutil.rmtree(checkpoint)
    with pytest.raises(UserError, match="step-2 is gone by now: another process"), place.occupied(config):
        pass


@pytest.mark.parametrize("kept", [slice(0, 1), slice(1, None), None])
def test_metrics_that_a_user_has_cut_are_noted_once(straight, tmp_path, capsys, kept):
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run", symlinks=True)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{STEPS}")
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[kept])) if kept else metrics.unlink()
    assert run(config, on(tmp_path / "run", config)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"lines that were there after step {STEPS - 1} have been removed since" in said
    assert said.count("removed since") == 1  # of rollouts.jsonl, nothing is gone
    before = [read for read in runs.timeless(read_metrics(folder)) if read["step"] < STEPS]
    there = runs.timeless(read_metrics(tmp_path / "run"))
    assert there == (before[kept] if kept else []) + runs.timeless(read_metrics(folder))[len(before) :]
    for agent in ("ada", "bea"):
        assert runs.same_weights(runs.weights(folder, agent), runs.weights(tmp_path / "run", agent))


def test_the_best_checkpoint_stays(settings, tmp_path, monkeypatch):
    from hacpo_fast.trainer import Trainer

    scores = {0: 0.9, 1: 0.2, 2: 0.5, 3: None, 4: 0.5, 5: 0.1}
    monkeypatch.setattr(Trainer, "validate", lambda self, step: {
        "step": step, "validation": {agent: {"greedy": {"accuracy": scores[step]}} for agent in ("ada", "bea")},
    })  # fmt: skip
    monkeypatch.setattr("hacpo_fast.run.output.RunOutput.validation", lambda *_: None)
    config = settings(
        run__steps=5, run__save_every=5, run__keep_checkpoints=1, run__keep_best="greedy/accuracy", validation__every=1
    )
    runs.train(config, tmp_path / "run")
    checkpoints = tmp_path / "run" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best", "latest", "step-2", "step-5"]
    assert os.readlink(checkpoints / "best") == "step-2" and os.readlink(checkpoints / "latest") == "step-5"
    changed = resuming(config, resume=str(checkpoints / "best"))
    assert Place.choose(changed, "mine").checkpoint == checkpoints / "step-2"
    assert (checkpoints / "best" / "ada" / "model.safetensors").exists()


def failing(n, error):
    """A function that raises `error` from its n-th call on, in front of another."""
    calls = itertools.count(1)

    def before(right):
        def call(*arguments, **named):
            if next(calls) >= n:
                raise error
            return right(*arguments, **named)

        return call

    return before


@pytest.mark.parametrize(
    ("what", "n"), [("hacpo_fast.run.whole.to_disk", 30), ("hacpo_fast.run.jsonl.JsonlWriter.write", 25)]
)
def test_a_full_disk_is_a_message_and_loses_nothing(straight, tmp_path, monkeypatch, what, n):
    folder, config = straight
    module, _, name = what.rpartition(".")
    owner = JsonlWriter if module.endswith("JsonlWriter") else importlib.import_module(module)
    wrap = failing(n, OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    with pytest.raises(UserError, match=r"the disk is full .* run.resume=auto"):
        run(config, Place(tmp_path / "run"))
    monkeypatch.undo()
    left = tmp_path / "run" / "checkpoints"
    whole = [path for path in left.iterdir() if path.name.startswith("step-")]
    assert whole and all(damage(path) is None for path in whole)
    assert not list(left.glob(".*"))
    assert run(config, on(tmp_path / "run", config)) == 0
    assert same_results(folder, tmp_path / "run")


def test_a_folder_that_is_removed_under_a_run(straight, tmp_path, monkeypatch):
    _, config = straight
    right = trainer.Trainer.save_checkpoint

    def remove_first(self):
        shutil.rmtree(self.folder)
        return right(self)

    monkeypatch.setattr(trainer.Trainer, "save_checkpoint", remove_first)
    with pytest.raises(UserError, match="a file or folder of the run has been removed"):
        run(config, Place(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made(straight, tmp_path, monkeypatch):
    _, config = straight
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="not a folder that can be written to"):
        run(config, Place(tmp_path / "file" / "run"))
    monkeypatch.setattr(Path, "mkdir", failing(1, OSError(errno.EROFS, "Read-only file system"))(Path.mkdir))
    with pytest.raises(UserError, match="the file system is read-only"), Place(tmp_path / "run").occupied(config):
        pass


def test_a_copy_without_links_goes_on(straight, tmp_path):
    """What `cp -rL` makes of a run: `latest` is a folder."""
    folder, config = straight
    shutil.copytree(folder, tmp_path / "copy")
    assert not (tmp_path / "copy" / "checkpoints" / "latest").is_symlink()
    shutil.rmtree(tmp_path / "copy" / "checkpoints" / f"step-{STEPS}")
    assert run(config, on(tmp_path / "copy", config)) == 0
    assert same_results(folder, tmp_path / "copy")


def test_what_is_no_checkpoint_of_its_step_or_no_settings(straight, tmp_path):
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run", symlinks=True)
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / f"step-{STEPS}").rename(checkpoints / "step-30")
    with pytest.raises(UserError, match=rf"step-30 is that of step {STEPS}; give it its name back"):
        run(config, on(tmp_path / "run", config))
    (tmp_path / "run" / "config.yaml").write_text("- torn")
    with pytest.raises(UserError, match="holds no settings of a run any more"):
        run(config, on(tmp_path / "run", config))


def test_settings_that_are_newer_than_a_run_have_their_defaults(straight, tmp_path):
    folder, config = straight
    shutil.copytree(folder, tmp_path / "run", symlinks=True)
    path = tmp_path / "run" / "config.yaml"
    path.write_text(path.read_text().replace("  score_first: auto\n", ""))
    assert "score_first" not in path.read_text()
    assert run(config, on(tmp_path / "run", config)) == 0

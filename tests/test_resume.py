"""A run that was stopped, killed or damaged goes on as if nothing had been."""

import random
import shutil
import subprocess
import sys
import time

import pytest
import runs
import yaml

from hacpo_fast import trainer
from hacpo_fast.errors import UserError
from hacpo_fast.run.place import Place
from hacpo_fast.run.telemetry import read_metrics
from hacpo_fast.train import run

STEPS = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(**changes):
        changes = {"run__steps": STEPS, "validation__every": 2, "validation__problems": 3, **changes}
        return runs.settings({name: models[name] for name in ("ada", "bea")}, tmp_path, **changes)

    return make


@pytest.fixture
def stop_after(monkeypatch):
    """Makes runs stop as on Ctrl-C, after so many steps."""

    def arrange(steps):
        class Stop(trainer.StopRequest):
            asked = 0  # once in a step

            @property
            def requested(self):
                self.asked += 1
                return self.asked >= steps

            @requested.setter
            def requested(self, value):
                assert value is False

        monkeypatch.setattr(trainer, "StopRequest", Stop)

    return arrange


def on(folder, config):
    """The place from which `folder` goes on."""
    return Place.choose(config.model_copy(update={"run": config.run.model_copy(update={
        "output": str(folder), "resume": "auto"})}), "mine")  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
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
def test_stopped_and_continued_is_the_same_as_straight(settings, tmp_path, monkeypatch, stop_after, changes):
    config = settings(**changes)
    straight = runs.train(config, tmp_path / "straight")
    with monkeypatch.context():
        stop_after(2)
        assert run(config, Place(tmp_path / "halves")) == 130
        assert len(read_metrics(tmp_path / "halves")) < len(straight)
    monkeypatch.undo()
    assert run(config, on(tmp_path / "halves", config)) == 0
    assert runs.timeless(read_metrics(tmp_path / "halves")) == runs.timeless(straight)
    for agent in ("ada", "bea"):
        assert runs.same_weights(*(runs.weights(tmp_path / name, agent) for name in ("straight", "halves")))


def test_killed_at_random_points_it_ends_the_same(settings, tmp_path):
    config = settings(run__save_every=1)
    straight = runs.train(config, tmp_path / "straight")
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    folder = tmp_path / "killed"
    command = [
        sys.executable, "-m", "hacpo_fast.train", str(tmp_path / "c.yaml"), f"run.output={folder}", "run.resume=auto",
    ]  # fmt: skip
    chance = random.Random(3)
    for target in (1, 2, 3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not (folder / "checkpoints" / f"step-{target}").exists():
            time.sleep(0.01)
        assert process.poll() is None, process.communicate()
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.wait()
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    assert runs.timeless(read_metrics(folder)) == runs.timeless(straight)
    for agent in ("ada", "bea"):
        assert runs.same_weights(runs.weights(tmp_path / "straight", agent), runs.weights(folder, agent))


def test_a_damaged_checkpoint_is_passed_over(settings, tmp_path):
    config = settings(run__save_every=1)
    straight = runs.train(config, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "agents")
    (tmp_path / "run" / "checkpoints" / f"step-{STEPS}" / "trainer.json").write_text("{}")
    place = on(tmp_path / "run", config)
    assert place.checkpoint.name == f"step-{STEPS - 1}" and "is damaged" in place.notes[0]
    assert run(config, place) == 0
    assert runs.timeless(read_metrics(tmp_path / "run")) == runs.timeless(straight)


def test_going_back_starts_another_history(settings, tmp_path, stop_after):
    config = settings(run__save_every=1, run__keep_checkpoints=3, validation__every=0)
    straight = runs.train(config, tmp_path / "run")
    earlier = tmp_path / "run" / "checkpoints" / "step-2"
    back = config.model_copy(update={"run": config.run.model_copy(update={"resume": str(earlier)})})
    stop_after(1)
    assert run(config, Place.choose(back, "mine")) == 130
    names = sorted(path.name for path in earlier.parent.iterdir())
    assert names == ["abandoned-step-3", "abandoned-step-4", "step-2", "step-3"]
    assert on(tmp_path / "run", config).checkpoint.name == "step-3"
    assert runs.timeless(read_metrics(tmp_path / "run")) == runs.timeless(straight)[:3]


def test_a_run_that_died_before_it_began_can_be_started(settings, tmp_path):
    config = settings(run__steps=1, validation__every=0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    assert run(config, on(tmp_path / "run", config)) == 0


def test_what_cannot_be_continued(settings, tmp_path):
    config = settings(run__save_every=1, run__steps=1, validation__every=0)
    runs.train(config, tmp_path / "run")
    other = settings(run__save_every=1, run__steps=1, validation__every=0, training__lr=0.5)
    with pytest.raises(UserError, match=r"other settings: training.lr was 0.001, is 0.5"):
        run(other, on(tmp_path / "run", other))
    checkpoint = tmp_path / "run" / "checkpoints" / "step-1"
    (tmp_path / "step-3").mkdir()
    wrong = {
        tmp_path / "nowhere": "there is no checkpoint",
        tmp_path: "folder step-N",
        tmp_path / "step-3": "is damaged",
    }
    for path, said in wrong.items():
        changed = config.model_copy(update={"run": config.run.model_copy(update={"resume": str(path)})})
        with pytest.raises(UserError, match=said):
            Place.choose(changed, "mine")
    changed = config.model_copy(
        update={"run": config.run.model_copy(update={"resume": str(checkpoint), "output": str(tmp_path / "x")})}
    )
    with pytest.raises(UserError, match="belongs to the run"):
        Place.choose(changed, "mine")


def test_two_runs_cannot_be_in_one_folder(settings, tmp_path):
    config = settings()
    place = Place(tmp_path / "run")
    with place.occupied(config), pytest.raises(UserError, match="another process is training in"):
        with Place(tmp_path / "run", continued=True).occupied(config):
            pass

import json
import math
import os
from pathlib import Path

import pytest

from hacpo_fast.errors import UserError
from hacpo_fast.run.checkpoints import best, by_step, newest, score, settle
from hacpo_fast.run.whole import damage, sweep, write_folder, write_text


def filled_with(text):
    def fill(folder):
        (folder / "agent").mkdir()
        (folder / "agent" / "weights").write_text(text)

    return fill


def failing(folder):
    (folder / "half").write_text("x")
    raise OSError("no space left on device")


@pytest.fixture
def checkpoints(tmp_path):
    for step in (1, 2, 10):
        write_folder(tmp_path / f"step-{step}", filled_with(str(step)))
    return tmp_path


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="no space"):
        write_folder(tmp_path / "step-1", failing)
    assert by_step(tmp_path) == {}
    assert damage(write_folder(tmp_path / "step-1", filled_with("new"))) is None
    with pytest.raises(OSError, match="no space"):
        write_folder(tmp_path / "step-1", failing)  # the one before is still there
    assert damage(tmp_path / "step-1") is None
    assert (write_folder(tmp_path / "step-1", filled_with("newer")) / "agent" / "weights").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]  # nothing of the failures fills the disk


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "agent/weights").write_text("99"), "agent/weights is not what was written"),
        (lambda folder: (folder / "agent/weights").write_text("1"), "agent/weights is not what was written"),
        (lambda folder: (folder / "agent/weights").unlink(), "agent/weights is missing"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing or not readable"),
        (lambda folder: (folder / "manifest.json").write_text('{"agent'), "manifest.json is missing or not readable"),
    ],
)
def test_damage_is_seen_and_the_one_before_is_used(checkpoints, harm, said):
    harm(checkpoints / "step-10")
    assert damage(checkpoints / "step-10") == said
    heard = []
    assert newest(checkpoints, heard.append) == checkpoints / "step-2"
    assert len(heard) == 1 and said in heard[0]


def test_nothing_whole_is_an_error_and_nothing_at_all_is_none(checkpoints, tmp_path):
    for folder in by_step(checkpoints).values():
        (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="all checkpoints are damaged"):
        newest(checkpoints, lambda text: None)
    assert newest(tmp_path / "nowhere", lambda text: None) is None


def test_a_folder_that_was_being_replaced_comes_back(checkpoints):
    (checkpoints / "step-10").rename(checkpoints / ".step-10.replaced")
    sweep(checkpoints)
    assert newest(checkpoints, pytest.fail) == checkpoints / "step-10"


def test_what_dead_processes_left_is_swept(checkpoints):
    for name in (".step-11.unfinished", ".step-1.removed", ".step-2.replaced"):
        (checkpoints / name).mkdir()
    (checkpoints / ".best.unfinished").symlink_to("step-1")
    sweep(checkpoints)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-1", "step-10", "step-2"]


def test_a_text_is_replaced_as_a_whole(tmp_path):
    write_text(tmp_path / "x", "one")
    write_text(tmp_path / "x", "two")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "two")]


def test_everything_reaches_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Files, the folders that hold their names, and then the folder that holds the new name."""
    synced, fsync = [], os.fsync

    def noting(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append(path.relative_to(tmp_path).as_posix())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_folder(tmp_path / "step-1", filled_with("1"))
    here = ".step-1.unfinished"
    assert set(synced[:-1]) == {f"{here}/agent/weights", f"{here}/agent", f"{here}/manifest.json", here}
    assert synced[-1] == "."


def test_the_latest_are_kept(checkpoints):
    (checkpoints / "failed-in-step-3").mkdir()
    settle(checkpoints, keep=2, metric=None)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["failed-in-step-3", "latest", "step-10", "step-2"]
    assert (checkpoints / "latest" / "agent" / "weights").read_text() == "10"


def scored(folder, **scores):
    """A checkpoint after a step with these accuracies of the agents (none: without a validation)."""
    validation = {agent: {"greedy": {"accuracy": value}} for agent, value in scores.items()}
    write_folder(folder, lambda f: (f / "trainer.json").write_text(json.dumps({"validation": validation or None})))


def test_the_best_is_kept_and_found(tmp_path):
    for step, value in enumerate((0.1, 0.7, None, 0.7, math.nan, 0.3, None)):
        scored(tmp_path / f"step-{step}", **({} if value is None else {"a": value, "b": 0.5}))
    settle(tmp_path, keep=2, metric="greedy/accuracy")  # of equal ones the earlier; NaN is no score
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "latest", "step-1", "step-5", "step-6"]
    assert os.readlink(tmp_path / "best") == "step-1"
    assert best(tmp_path, "a/greedy/accuracy") == (tmp_path / "step-1", 0.7)
    assert best(tmp_path, "a/greedy/reward") is None
    scored(tmp_path / "step-7", a=0.8, b=0.5)
    settle(tmp_path, keep=1, metric="greedy/accuracy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "latest", "step-7"]
    settle(tmp_path, keep=1, metric=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-7"]


def test_a_damaged_state_has_no_score(checkpoints):
    scored(checkpoints / "step-3", a=0.5)
    (checkpoints / "step-10" / "trainer.json").write_text("[1")
    assert best(checkpoints, "greedy/accuracy") == (checkpoints / "step-3", 0.5)


def test_scores_of_a_validation():
    validation = {"a": {"greedy": {"accuracy": 0.5}, "sampled": {"pass@4": 1}}, "b": {"greedy": {"accuracy": 0.25}}}
    assert score(validation, "greedy/accuracy") == 0.375
    assert score(validation, "b/greedy/accuracy") == 0.25
    assert score(validation, "a/sampled/pass@4") == 1
    assert score(validation, "sampled/pass@4") is score(validation, "c/greedy/accuracy") is score(None, "x/y") is None

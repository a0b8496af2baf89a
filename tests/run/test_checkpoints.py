import pytest

from hacpo_fast.errors import UserError
from hacpo_fast.run.checkpoints import by_step, damage, newest, prune, write_whole


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
        write_whole(tmp_path / f"step-{step}", filled_with(str(step)))
    return tmp_path


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "step-1", failing)
    assert by_step(tmp_path) == {}
    assert damage(write_whole(tmp_path / "step-1", filled_with("new"))) is None
    with pytest.raises(OSError, match="no space"):
        write_whole(tmp_path / "step-1", failing)  # the one before is still there
    assert damage(tmp_path / "step-1") is None
    assert (write_whole(tmp_path / "step-1", filled_with("newer")) / "agent" / "weights").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


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


def test_the_latest_are_kept(checkpoints):
    (checkpoints / "failed-in-step-3").mkdir()
    prune(checkpoints, keep=2)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["failed-in-step-3", "step-10", "step-2"]

import numpy as np
import pytest

from hacpo_fast.run.checkpoints import save_agents
from hacpo_fast.run.phases import Phases
from hacpo_fast.run.seeds import Purpose, derive, rng


def test_seeds_are_functions_of_purpose_step_and_agent():
    seeds = {derive(0, purpose, step, agent) for purpose in Purpose for step in range(20) for agent in range(3)}
    assert len(seeds) == len(Purpose) * 60
    assert derive(5, Purpose.ROLLOUT, 1, 2) == derive(5, Purpose.ROLLOUT, 1, 2) != derive(6, Purpose.ROLLOUT, 1, 2)
    np.testing.assert_array_equal(rng(1, Purpose.DATA).integers(99, size=5), rng(1, Purpose.DATA).integers(99, size=5))


def test_phases_add_up_by_phase_and_by_who():
    phases = Phases()
    for who in ("ada", "bea", "ada"):
        with phases("learn", who):
            pass
    seconds = phases.seconds()
    assert seconds["learn"] == phases.spent("learn", "ada") + phases.spent("learn", "bea") > 0
    assert seconds["total"] >= seconds["learn"]


class Agent:
    def __init__(self, name, fails=False):
        self.name, self.fails = name, fails

    def save(self, folder):
        folder.mkdir()
        (folder / "weights").write_text(self.name)
        if self.fails:
            raise OSError("no space left on device")


def test_a_checkpoint_is_there_as_a_whole_or_not_at_all(tmp_path):
    with pytest.raises(OSError, match="no space left"):
        save_agents([Agent("ada"), Agent("bea", fails=True)], tmp_path / "checkpoints" / "step-1")
    assert not (tmp_path / "checkpoints" / "step-1").exists()
    folder = save_agents([Agent("ada"), Agent("bea")], tmp_path / "checkpoints" / "step-1")
    assert sorted(path.name for path in folder.iterdir()) == ["ada", "bea"]
    assert [path.name for path in folder.parent.iterdir()] == ["step-1"]

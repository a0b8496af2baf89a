import numpy as np

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

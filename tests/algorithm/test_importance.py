import numpy as np
import pytest

from hacpo_fast import config_file
from hacpo_fast.algorithm.importance import sequence_weight, token_weights
from hacpo_fast.errors import UserError

POLICY = np.array([-1.0, -2.0, -0.5], dtype=np.float32)
ENGINE = np.array([-1.5, -1.75, -0.5], dtype=np.float32)


def test_weights_are_probability_ratios_cut_at_the_cap():
    assert sequence_weight(POLICY, ENGINE, 2.0) == pytest.approx(np.exp(0.25))
    assert sequence_weight(POLICY, ENGINE, 1.1) == 1.1
    assert token_weights(POLICY, ENGINE, 10.0) == pytest.approx(np.exp([0.5, -0.25, 0.0]))
    assert token_weights(POLICY, ENGINE, 1.2) == pytest.approx([1.2, np.exp(-0.25), 1.0])
    far = np.full(3, -500, dtype=np.float32)
    assert sequence_weight(POLICY, far, 2.0) == 2.0 and sequence_weight(far, POLICY, 2.0) == 0.0
    assert token_weights(POLICY, far, 2.0).tolist() == [2.0] * 3


def test_weights_make_expectations_those_of_the_policy():
    """Two tokens, two steps: sampled from q and weighed by p/q, the mean of anything is that under p."""
    p, q = np.array([0.6, 0.4]), np.array([0.55, 0.45])
    total = 0.0
    for a in (0, 1):
        for b in (0, 1):
            chosen = [a, b]
            total += q[a] * q[b] * sequence_weight(np.log(p)[chosen], np.log(q)[chosen], 10.0) * (a + 2 * b)
    assert total == pytest.approx(0.4 + 2 * 0.4)


def test_it_is_refused_where_the_engines_logprobs_are_thrown_away():
    plain = {
        "task": {"kind": "file", "name": "p"},
        "agents": {"ada": {"model": "m"}, "bea": {"model": "n"}},
        "algorithm": {"importance_correction": "token"},
    }
    config_file.validate(plain)
    with pytest.raises(UserError, match="importance_correction: it weighs by the engine's log-probs"):
        config_file.validate({**plain, "rollout": {"logprobs": "recompute"}})

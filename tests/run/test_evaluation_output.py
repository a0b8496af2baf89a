import io

import numpy as np
import pytest
from rich.console import Console

from hacpo_fast.rollouts.records import Rollout
from hacpo_fast.run.evaluation_output import print_scores, summarise
from hacpo_fast.tasks import Problem, RewardResult
from hacpo_fast.validation import Answered


def answered(*rewards, tokens=3, ended=True, error=None):
    problem = Problem("id", "Q", (), "1", {})
    empty = np.zeros(tokens)
    rollout = Rollout(0, 0, "text", empty.astype(np.int64), empty.astype(np.float32), empty == 0, ended)
    return Answered(problem, [rollout] * len(rewards), [RewardResult(value, error, 0.0) for value in rewards])


def test_scores_of_one_response_per_problem():
    assert summarise([answered(1.0), answered(0.0, tokens=5, ended=False, error="hung")], 1.0) == {
        "avg@1": 0.5, "accuracy": 0.5, "problems": 2, "errors": 1, "cut": 0.5, "tokens": 4.0,
    }  # fmt: skip


def test_scores_of_several_responses_per_problem():
    scores = summarise([answered(1.0, 0.0, 0.0), answered(0.0, 0.0, 0.0)], 1.0)
    assert scores["avg@3"] == pytest.approx(1 / 6) and scores["best@3"] == 0.5
    assert scores["pass@2"] == pytest.approx((1 - 1 / 3) / 2)  # of the three pairs of one right in three, one has none
    assert (scores["problems"], scores["errors"], scores["cut"]) == (2, 0, 0.0)


def test_the_last_table_has_each_tasks_own_metric_and_their_mean():
    scores = {
        "gsm8k": {"ada": {"greedy": {"avg@1": 0.25}}, "bea": {"greedy": {"avg@1": 0.5}}},
        "aime2025": {
            "ada": {"sampled": {"avg@30": 0.1, "best@30": 0.75}},
            "bea": {"sampled": {"avg@30": 0.2, "best@30": 0.125}},
        },
    }
    console = Console(file=io.StringIO(), width=100)
    print_scores(scores, {"gsm8k": "avg@1", "aime2025": "best@30"}, console)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert rows[-4:-1] == [
        ["gsm8k", "avg@1", "0.250", "0.500"],
        ["aime2025", "best@30", "0.750", "0.125"],
        ["mean", "0.500", "0.312"],
    ]

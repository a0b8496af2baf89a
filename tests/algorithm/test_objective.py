"""From settings to loss: the worked cases, reached the way that the trainer reaches them."""

import json
import math
from pathlib import Path

import pytest
import torch

from hacpo_fast.algorithm.objective import loss_arguments
from hacpo_fast.config import AlgorithmConfig
from hacpo_kernels import policy_loss

CASES = json.loads((Path(__file__).parents[1] / "data" / "hacpo_step.json").read_text())
LEARNERS = [learner for case in CASES for learner in case["learners"].values()]


@pytest.mark.parametrize("learner", LEARNERS)
def test_worked_cases(learner):
    params, expected = learner["params"], learner["expected"]
    algorithm = AlgorithmConfig(
        own_clip_low=params["self_clip_low"],
        own_clip_high=params["self_clip_high"],
        cross_lower=1 - params["cross_clip_delta"],
        cross_lower_step=params["cross_clip_step"],
        alpha=params["alpha"],
    )
    arguments = loss_arguments(algorithm, params["update_index"])
    assert arguments["cross_clip_lower"] == pytest.approx(expected["cross_clip_lower"])

    def column(name):
        return torch.tensor(learner[name], dtype=torch.float64)

    token_logprobs = column("token_logprobs").requires_grad_()
    loss, stats = policy_loss(
        token_logprobs,
        torch.tensor(learner["cu_seqlens"]),
        column("source_mean_logprob"),
        column("advantage"),
        torch.tensor(learner["is_self"]),
        column("omega_source_over_learner"),
        **arguments,
    )
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], abs=1e-9)
    torch.testing.assert_close(stats.ratio.tolist(), expected["ratio"], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(token_logprobs.grad.tolist(), expected["grad_token_logprobs"], rtol=1e-9, atol=1e-9)


def test_the_range_of_cross_responses_narrows_and_never_turns_over():
    algorithm = AlgorithmConfig(cross_lower=0.9, cross_lower_step=0.04)
    lower = [loss_arguments(algorithm, updates)["cross_clip_lower"] for updates in range(5)]
    assert lower == pytest.approx([0.9, 0.94, 0.98, 1.0, 1.0])
    tight = AlgorithmConfig(cross_lower=0.5, cross_lower_step=1, cross_upper=0.7)
    assert loss_arguments(tight, 3)["cross_clip_lower"] == 0.7


def test_no_clip_and_token_level():
    free = loss_arguments(AlgorithmConfig(cross_clip=False), 2)
    assert (free["cross_clip_lower"], free["cross_clip_upper"]) == (0, math.inf)
    grpo = loss_arguments(AlgorithmConfig(name="grpo"), 0)
    assert (grpo["level"], grpo["own_clip_low"], grpo["own_clip_high"]) == ("token", 0.2, 0.28)

"""Rewards that fail within whole runs: what each policy does, what is counted, and who is told."""

import json

import numpy as np
import pytest
import runs
import torch

from hacpo_fast.algorithm.capability import capability_ratios
from hacpo_fast.errors import UserError
from hacpo_fast.reward_watch import KINDS, RewardWatch
from hacpo_fast.rollouts.records import Rollout, drop_failed_groups
from hacpo_fast.run.place import Place
from hacpo_fast.tasks import Problem, RewardResult
from hacpo_fast.train import run

# Parity of the length, except for problems with an even answer: there every other response fails, and the rest earn
# what `there` says.
REWARD = """
from collections import Counter
calls = Counter()
def reward(response, answer, row):
    if int(answer) % 2:
        return len(response) % 2
    calls[answer] += 1
    if calls[answer] % 2 == 0:
        raise ValueError("no \\x1b[2Jluck")
    return {there}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return runs.write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def settings(models, tmp_path):
    def make(*agents, there="len(response) % 2", code=REWARD, **changes):
        config = runs.settings({name: models[name] for name in agents}, tmp_path, **changes)
        (tmp_path / "parity.py").write_text(code.replace("{there}", there))
        return config

    return make


def samples_of(folder):
    return [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]


def test_zero_costs_the_response_and_is_counted_logged_and_told_once(settings, tmp_path, capsys):
    records = runs.train(settings("ada", "bea", run__show_rollouts=4), tmp_path / "run")
    errors = [agent["reward_errors"] for record in records for agent in record["agents"].values()]
    assert sum(errors) > 0
    assert all(agent["dropped_prompts"] == 0 for record in records for agent in record["agents"].values())
    assert all(record["reward_p95_seconds"] >= 0 for record in records)
    failed = [sample for sample in samples_of(tmp_path / "run") if sample["error"]]
    assert len(failed) == sum(min(4, count) for count in errors)
    assert {(sample["reward"], sample["dropped"]) for sample in failed} == {(0.0, False)}
    assert {sample["error"] for sample in failed} == {"ValueError: no \x1b[2Jluck (parity.py, line 9)"}
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("a reward failed (task.reward_failure=zero; once for each kind)") == 1
    assert r"ValueError: no \x1b[2Jluck" in printed and "\x1b[2J" not in printed


@pytest.mark.parametrize(("algorithm", "kl_coef"), [("hacpo", 1.0), ("gspo", 0.0)])
def test_a_dropped_group_has_no_influence_on_anybody(settings, tmp_path, algorithm, kl_coef):
    changes = {"algorithm__name": algorithm, "task__reward_failure": "drop_group", "algorithm__kl_coef": kl_coef}
    records = {}
    for name, there in (("one", "1"), ("many", "len(response) * 7 % 5")):
        config = settings("ada", "bea", there=there, run__steps=1, run__save_rollouts=16, **changes)
        records[name] = runs.timeless(runs.train(config, tmp_path / name))
    assert records["one"] == records["many"]
    for agent, metrics in records["one"][0]["agents"].items():
        assert 1 <= metrics["dropped_prompts"] <= 3 and metrics["updates"] >= 1
        assert runs.same_weights(*(runs.weights(tmp_path / name, agent) for name in ("one", "many")))
    samples = samples_of(tmp_path / "one")
    for sample in samples:
        first, second = sample["prompt"].rstrip("=").split("+")
        assert sample["dropped"] == ((int(first) + int(second)) % 2 == 0)
        assert not sample["dropped"] or set(sample["advantages"].values()) == {0.0}
    assert {sample["reward"] for sample in samples if sample["dropped"]} == {0.0, 1.0}


def test_where_everything_is_dropped_nothing_is_learnt(settings, models, tmp_path, capsys):
    code = (
        "def reward(response, answer, row):\n"
        "    return 0.5 if response in ('', answer) or 'boxed' in response else None\n"  # passes the check at the start
    )
    config = settings("ada", "bea", code=code, task__reward_failure="drop_group", algorithm__kl_coef=1.0)
    records = runs.train(config, tmp_path / "run")
    for record in records:
        assert record["no_signal_share"] == 1
        for agent in record["agents"].values():
            assert agent["dropped_prompts"] == 4 and agent["updates"] == 0
            assert agent["live_share"] == 0  # the KL term leaves them alone, too
            assert agent["capability"] == config.algorithm.capability.floor  # it has not earned anything yet
            assert agent["reward"] is None and agent["accuracy"] is None
    for name in ("ada", "bea"):
        assert runs.same_weights(runs.weights(tmp_path / "run", name), runs.weights_of(models[name]))
    assert "had equal rewards or were dropped" in capsys.readouterr().out


def test_stop_ends_the_run_with_the_sample_and_saves_the_agents(settings, tmp_path):
    code = REWARD.replace("calls[answer] += 1", "calls[''] += 1").replace("calls[answer] % 2 == 0", "calls[''] == 70")
    config = settings("ada", "bea", code=code, task__reward_failure="stop", run__steps=9)
    with pytest.raises(UserError) as stopped:
        run(config, Place(tmp_path / "run"))
    said = str(stopped.value)
    assert "task.reward_failure is stop" in said and "ValueError: no" in said and "'s response  " in said
    assert "\x1b" not in said
    (saved,) = (tmp_path / "run" / "checkpoints").glob("failed-in-step-*")
    for name in ("ada", "bea"):
        assert (saved / name / "model.safetensors").exists()


@pytest.mark.parametrize("policy", ["drop_group", "stop"])
def test_failures_in_validation(settings, tmp_path, policy):
    config = settings("ada", validation__every=1, validation__problems=6, run__steps=1)
    task = config.task.model_copy(update={"reward_failure": policy, "reward": f"{tmp_path / 'other.py'}:reward"})
    (tmp_path / "other.py").write_text(REWARD.replace("{there}", "1").replace("calls[answer]", "calls['']"))
    config = config.model_copy(update={"validation": config.validation.model_copy(update={"task": task})})
    if policy == "stop":
        with pytest.raises(UserError, match=r"validation at step 0: .* rewards of ada's responses failed"):
            run(config, Place(tmp_path / "run"))
        return
    scores = runs.train(config, tmp_path / "run")[0]["validation"]["ada"]["greedy"]
    assert scores["problems"] == 6 and scores["reward_errors"] >= 1
    assert scores["accuracy"] <= 1 - scores["reward_errors"] / 6 + 1e-9


def rollout(prompt, source, error=None):
    return Rollout(prompt, source, "", np.zeros(1, np.int64), np.zeros(1, np.float32), np.ones(1, bool), True,
                   reward_error=error)  # fmt: skip


@pytest.mark.parametrize(("shared", "dropped"), [(True, [1, 1, 1, 1, 0, 0]), (False, [1, 1, 0, 0, 0, 0])])
def test_a_group_is_what_is_compared(shared, dropped):
    pool = [rollout(0, 0, "x"), rollout(0, 0), rollout(0, 1), rollout(0, 1), rollout(1, 0), rollout(1, 1)]
    assert [r.dropped for r in drop_failed_groups(pool, shared)] == list(map(bool, dropped))


def check(error=None, seconds=0.1, response="r"):
    return response, Problem("id", "What?", (), None, {}), RewardResult(0.0, error, seconds)


def test_each_kind_of_failure_is_told_once_and_not_too_many():
    notes = []
    watch = RewardWatch("zero", notes.append)
    checks = [
        check("KeyError: 'a' (x.py, line 1)"),
        check("KeyError: 'b' (x.py, line 2)"),
        check(),
        check("returned nan"),
    ]
    assert watch.failures("step 1", "ada", checks) == 3
    assert watch.failures("step 2", "bea", checks) == 3
    assert len(notes) == 2 and "KeyError: 'a'" in notes[0] and "returned nan" in notes[1]
    watch.failures("step 3", "ada", [check(f"Error{i}: x") for i in range(100)])
    assert len(notes) == KINDS


@pytest.mark.parametrize(("waited", "total", "told"), [(3.0, 10.0, True), (2.0, 10.0, False), (0.5, 0.6, False)])
def test_slow_rewards_are_told_once_with_the_slowest(waited, total, told):
    notes = []
    watch = RewardWatch("zero", notes.append)
    checks = [("ada", check(seconds=0.2)), ("bea", check(seconds=2.5, response="x\x1b[2J\u202ey" * 1000))]
    for step in range(2):
        watch.slow(f"step {step}", waited, total, checks)
    assert len(notes) == told
    if told:
        assert "3.0 of 10.0 s" in notes[0] and "2.50 s" in notes[0] and "bea's response" in notes[0]
        assert len(notes[0]) < 6000 and "\x1b" not in notes[0] and "\u202e" not in notes[0]


def test_all_numbers_of_a_run_are_finite_with_any_rewards(settings, tmp_path):
    code = (
        "def reward(response, answer, row):\n"
        "    kinds = [1e9, -1e9, 1e-300, 0, float('nan'), float('inf'), None, 'x', 10**400, True]\n"
        "    return kinds[sum(map(ord, response)) % len(kinds)]\n"
    )
    records = runs.train(settings("ada", "bea", code=code), tmp_path / "run")
    for name in ("ada", "bea"):
        assert all(torch.isfinite(w).all() for w in runs.weights(tmp_path / "run", name).values())
    for record in records:
        for agent in record["agents"].values():
            assert agent["skipped_updates"] == 0 and agent["reward_errors"] > 0
            assert all(value is not None for value in agent.values())


def test_a_dropped_group_leaves_the_capability_of_the_others_alone():
    from hacpo_fast.algorithm.capability import CapabilityTracker
    from hacpo_fast.config import CapabilityConfig

    tracker = CapabilityTracker(["a", "b"], CapabilityConfig())
    tracker.update({"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([1.0])})
    after = tracker.update({"a": torch.tensor([]), "b": torch.tensor([0.0])})
    assert after["a"] == 0.5 and after["b"] == pytest.approx(0.5)
    ratios = capability_ratios(torch.tensor(list(after.values()), dtype=torch.float64), CapabilityConfig())
    assert torch.allclose(ratios, torch.ones(2, 2, dtype=torch.float64))

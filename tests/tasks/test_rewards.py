"""Finding and checking a reward, before anything starts."""

import json
from pathlib import Path

import pytest

from hacpo_fast.config import TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.tasks import Problem, RewardPool, check_reward, load_problems, resolve_reward
from hacpo_fast.tasks.check import SAMPLE

USER_REWARDS = Path(__file__).with_name("user_rewards.py")


def task(reward=None, **settings):
    settings = {"kind": "file", "name": "problems.jsonl", "reward": reward, **settings}
    return TaskConfig(**settings)


def refusal(reward, **options):
    """What is said about a reward that cannot be resolved or loaded."""
    with pytest.raises(UserError) as error:
        RewardPool(resolve_reward(task(reward, reward_options=options)), 1).close()
    return str(error.value)


def test_defaults():
    assert resolve_reward(task()).name == "math"
    spec = resolve_reward(task(kind="reasoning_gym", name="chain_sum", params={"min_terms": 3}))
    assert spec.options == {"generator": "chain_sum", "params": {"min_terms": 3}}


def test_a_generator_can_be_named_for_files():
    assert resolve_reward(task("reasoning_gym", reward_options={"generator": "x"})).options == {"generator": "x"}
    assert "missing a required argument: 'generator'" in refusal("reasoning_gym")


@pytest.mark.parametrize(
    ("reward", "options", "said"),
    [
        ("maths", {}, "'maths' is not a reward; did you mean 'math'?"),
        (":f", {}, "module:function or path/file.py:function"),
        ("regex", {}, "missing a required argument: 'pattern'"),
        ("regex", {"pattern": "("}, "is not a regular expression"),
        ("regex", {"pattern": 3}, "is not a regular expression"),
        ("regex", {"pattern": "A[0-9]+"}, "has 0 groups; it needs one"),
        ("regex", {"pattern": "(A)([0-9]+)"}, "has 2 groups"),
        ("reasoning_gym", {"pattern": "A", "generator": "chain_sum"}, "has 0 groups"),
        ("exact", {"ignorecase": True}, "got an unexpected keyword argument 'ignorecase'"),
        ("no_such_module:f", {}, "there is no module 'no_such_module'"),
        ("json:lod", {}, "no function 'lod' in json; did you mean 'load'?"),
        (f"{USER_REWARDS}:lenght", {}, "did you mean 'length'?"),
        (f"{USER_REWARDS.with_name('user_reward.py')}:f", {}, "did you mean 'user_rewards.py'?"),
        (f"{USER_REWARDS}:without_row", {}, "is called as reward(response, answer, row), but takes (response, answer)"),
        (f"{USER_REWARDS}:with_option", {}, "missing a required argument: 'factor'"),
        (f"{USER_REWARDS}:length", {"factor": 2}, "is called as reward(response, answer, row, factor=...), but takes"),
        (f"{USER_REWARDS}:later", {}, "is an async function"),
    ],
)
def test_what_is_wrong_is_said_before_the_start(reward, options, said):
    assert said in refusal(reward, **options)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_package", "there is no module 'no_such_package'"),
        ("1 / 0", "ZeroDivisionError: division by zero (broken.py, line 2)"),
        ("def f(:", "SyntaxError"),
        ("import sys; sys.exit('no licence')", "SystemExit: no licence"),
        ("import os; os.write(2, b'no licence'); os._exit(7)", "exited with code 7\nno licence"),
        ("def reward(response, answer, row): return 1.0", "no function 'f'"),
    ],
)
def test_a_module_that_cannot_be_loaded(tmp_path, code, said):
    (tmp_path / "broken.py").write_text(f"# a reward\n{code}\n")
    assert said in refusal(f"{tmp_path / 'broken.py'}:f")


def test_files_find_their_neighbours_and_hide_nothing(tmp_path, problem):
    (tmp_path / "helper.py").write_text("VALUE = 0.75\n")
    (tmp_path / "json.py").write_text("import helper\ndef f(response, answer, row): return helper.VALUE\n")
    with RewardPool(resolve_reward(task(f"{tmp_path / 'json.py'}:f")), 1) as pool:
        assert pool.score([("", problem())])[0][:2] == (0.75, None)


def test_relative_paths_and_options(monkeypatch, problem):
    monkeypatch.chdir(USER_REWARDS.parent)
    spec = resolve_reward(task("user_rewards.py:with_option", reward_options={"factor": 0.5}))
    monkeypatch.chdir("/")
    with RewardPool(spec, 1) as pool:
        assert pool.score([("", problem())])[0].value == 0.5


def test_modules_are_found_where_this_process_finds_them(tmp_path, monkeypatch, problem):
    (tmp_path / "rewards_of_mine.py").write_text("def f(response, answer, row): return 0.75\n")
    monkeypatch.syspath_prepend(tmp_path)
    with RewardPool(resolve_reward(task("rewards_of_mine:f")), 1) as pool:
        assert pool.score([("", problem())])[0].value == 0.75


def checked(tmp_path, answers, reward, **options):
    file = tmp_path / "problems.jsonl"
    rows = ({"prompt": f"Problem {number}", "answer": answer} for number, answer in enumerate(answers))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = task(reward, name=str(file), reward_options=options)
    return check_reward(settings, load_problems(settings))


@pytest.mark.parametrize(
    ("reward", "options"),
    [("math", {}), ("exact", {}), ("numeric", {}), ("regex", {"pattern": "A(.*)"}), (f"{USER_REWARDS}:length", {})],
)
def test_a_good_reward_passes(tmp_path, reward, options):
    assert (
        checked(tmp_path, ["1/2", "2", "so 3", "4,000"] if reward != "math" else ["1/2", "$2$"], reward, **options)
        == []
    )


def test_a_reward_that_always_fails(tmp_path):
    with pytest.raises(UserError, match="failed on each of 3 responses it was tried on: SyntaxError"):
        checked(tmp_path, ["one"], f"{USER_REWARDS}:returns")


def test_a_reward_that_sometimes_fails(tmp_path):
    (note,) = checked(tmp_path, ["1", "2"], f"{USER_REWARDS}:returns")
    assert "failed on 4 of 6 responses" in note and "SyntaxError" in note


def test_answers_that_the_reward_turns_down(tmp_path):
    with pytest.raises(UserError, match="4 of 5 reference answers get no reward themselves, such as 'twelve'"):
        checked(tmp_path, ["1", *(["twelve"] * 4)], "numeric")
    notes = checked(tmp_path, [*(str(number) for number in range(SAMPLE - 1)), "twelve"], "numeric")
    assert f"1 of {SAMPLE} reference answers get no reward themselves" in notes[-1]
    assert "has no number in it: 'twelve'" in notes[-1]


def test_reasoning_gym_from_end_to_end():
    # The check of this generator compares tuples: rows must reach it as they were made, which JSON would not do.
    settings = task(kind="reasoning_gym", name="rearc", size=3)
    problems = load_problems(settings)
    with RewardPool(resolve_reward(settings), 1) as pool:
        assert check_reward(settings, problems, pool) == []
        assert [result[:2] for result in pool.score([(one.answer, one) for one in problems])] == [(1.0, None)] * 3
        assert 1.0 not in {result.value for result in pool.score([("0 0\n0 0", one) for one in problems])}


def test_a_reward_that_hangs_now_and_then_does_not_hold_up_the_start():
    from hacpo_fast.tasks.check import CHUNK, MOST_HANGS
    from hacpo_fast.tasks.reward_pool import RewardResult

    class Pool:
        tried = 0

        def score(self, pairs):
            Pool.tried += len(pairs)
            return [RewardResult(0.0, "took longer than 5 s", 5.0) if not text else RewardResult(1.0, None, 0.1)
                    for text, _ in pairs]  # fmt: skip

    task = TaskConfig(kind="file", name="p.jsonl", reward=f"{__file__}:unused", reward_timeout=5.0)
    problems = [Problem(str(i), str(i), (), "7", {}) for i in range(40)]
    (note,) = check_reward(task, problems, Pool())
    assert Pool.tried == MOST_HANGS * CHUNK  # one of each three hangs
    assert f"failed on {MOST_HANGS} of {MOST_HANGS * CHUNK} responses" in note


def unused(response, answer, row):
    return 0.0

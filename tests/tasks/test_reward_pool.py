"""Other people's code, run where it can hurt nobody."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hacpo_fast.config import TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.tasks import RewardPool, RewardStartError, resolve_reward

USER_REWARDS = Path(__file__).with_name("user_rewards.py")
TIMEOUT = 2.0


def user(function):
    return resolve_reward(TaskConfig(kind="file", name="x.jsonl", reward=f"{USER_REWARDS}:{function}"))


@pytest.fixture
def ask(pool_of, problem, tmp_path):
    """Scores responses that say what the reward shall do; `log` has what it was asked, in the order of the asking."""
    log = tmp_path / "log"
    log.touch()

    def score(*responses, workers=2):
        asked = problem("x", log=str(log))
        pool = pool_of("user:ask", workers=workers, timeout=TIMEOUT, memory_gb=0.25)
        return pool.score([(text, asked) for text in responses])

    score.log = lambda: log.read_text().splitlines()
    return score


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition):
    while not condition():
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("hang", "took longer than 2 s"),
        ("hang deep", "took longer than 2 s"),
        ("exit", "the process exited with code 3"),
        ("segfault", "the process was killed by SIGSEGV"),
        ("sys.exit", "SystemExit: enough"),
        ("raise", "ValueError: no such luck (user_rewards.py, line "),
        ("raise badly", "Unprintable"),
        ("raise at length", "ValueError: xxxxx"),
        ("babble", "the process wrote something that is not a result"),
        ("flood", "the process wrote something that is not a result"),
        ("forge", "the process wrote something that is not a result"),
        ("forge nan", "the process wrote something that is not a result"),
        ("close", "the process exited with code 1"),
        ("fork and exit", "the process exited with code 0"),
        ("ignore SIGTERM", "took longer than 2 s"),
        ("fill memory", "MemoryError (user_rewards.py, line "),
    ],
)
def test_a_bad_check_costs_one_sample_and_says_why(ask, response, said):
    results = ask("a", "b", response, "c", "d")
    assert [result.value for result in results] == [0.5, 0.5, 0.0, 0.5, 0.5]
    assert [index for index, result in enumerate(results) if result.error] == [2]
    assert said in results[2].error and len(results[2].error) < 2000
    assert ask("e")[0][:2] == (0.5, None)


@pytest.mark.parametrize("response", ["fork", "fork and hang"])
def test_a_fork_of_the_process_gives_no_second_result(ask, response):
    assert [result[:2] for result in ask("a", response, "b", "raise", "c", workers=1)] == [
        (0.5, None), (0.5, None), (0.5, None), (0.0, ask("raise")[0].error), (0.5, None),
    ]  # fmt: skip


def test_a_leak_costs_processes_and_no_sample(ask, pool_of):
    responses = [f"leak:{i}" for i in range(20)]  # 640 MiB in all; a process may take 256
    assert {result[:2] for result in ask(*responses, workers=1)} == {(0.5, None)}


def test_gigabytes_of_output_go_nowhere(ask, capfd):
    assert [result[:2] for result in ask("gigabytes", "a")] == [(0.5, None), (0.5, None)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1", 1.0),
        ("True", 1.0),
        ("False", 0.0),
        ("-0.25", -0.25),
        ("__import__('numpy').float32(0.5)", 0.5),
        ("__import__('numpy').int64(2)", 2.0),
        ("__import__('numpy').array(0.5)", 0.5),
        ("__import__('fractions').Fraction(1, 4)", 0.25),
        ("Hostile('number')", 0.75),
        ("__import__('decimal').Decimal('0.1')", 0.1),
    ],
)
def test_numbers_of_all_kinds(reward_of, expression, value):
    assert reward_of("user:returns", expression, None)[:2] == (value, None)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("None", "returned None, which is not a number"),
        ("'1.0'", "returned '1.0', which is not a number"),
        ("'x' * 1000", "returned 'xxx"),
        ("[1.0]", "returned a list, which is not a number"),
        ("{'score': 1.0}", "returned a dict"),
        ("1j", "returned a complex"),
        ("float('nan')", "returned nan"),
        ("float('inf')", "returned inf"),
        ("-float('inf')", "returned -inf"),
        ("10**400", "OverflowError"),
        ("__import__('numpy').array([1.0, 2.0])", "TypeError"),
        ("1e10", "returned 10000000000.0, beyond 1e+09"),
        ("'x' * 10**8", "returned 'xxx"),
        ("[0.0] * 10**7", "returned a list"),
        ("10**4500", "OverflowError"),
        ("Hostile('exit')", "the process exited with code 4"),
        ("Hostile('raise')", "SystemExit: no"),
        ("Hostile('text')", "TypeError"),
        ("Hostile('nan')", "returned nan"),
        ("Hostile('memory')", "MemoryError"),
        ("HostileText('x')", "SystemExit: no"),
        ("type('x' * 10**6, (), {})()", "returned a xxx"),
        ("exec('raise Unprintable')", "Unprintable"),
    ],
)
def test_what_is_not_a_finite_number_is_nothing(reward_of, expression, said):
    value, error, seconds = reward_of("user:returns", expression, None)
    assert value == 0.0 and said in error and seconds >= 0


def test_noise_disturbs_nothing(ask, capfd):
    assert [result[:2] for result in ask("noise", "a", "noise:2")] == [(0.25, None), (0.5, None), (0.25, None)]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("workers", [1, 3])
def test_what_follows_a_failure_is_asked_once_more_and_nothing_twice(ask, workers):
    responses = [f"exit:{i}" if i % 20 == 7 else f"raise:{i}" if i % 20 == 8 else f"good:{i}" for i in range(100)]
    results = ask(*responses, workers=workers)
    assert [result.value for result in results] == [0.5 * text.startswith("good") for text in responses]
    assert sorted(ask.log()) == sorted(responses)


def test_equal_responses_are_checked_once(ask, problem, pool_of, tmp_path):
    results = ask("a", "b", "a", "raise", "a", "raise")
    assert [result.value for result in results] == [0.5, 0.5, 0.5, 0.0, 0.5, 0.0]
    assert sorted(ask.log()) == ["a", "b", "raise"]
    log = str(tmp_path / "other")
    pool_of("user:ask", workers=2, timeout=TIMEOUT).score([("a", problem("x", log=log)), ("a", problem("y", log=log))])
    assert Path(log).read_text() == "a\na\n"


def test_results_come_in_the_order_of_the_responses(pool_of, problem):
    pool = pool_of("user:length", workers=2)
    for _ in range(3):
        assert [result.value for result in pool.score([("x" * i, problem()) for i in range(500)])] == list(range(500))
    assert pool.score([]) == []


def test_text_arrives_as_it_is(pool_of, problem):
    texts = ["\U0001f469\u200d\U0001f680", "\u4f60\u597d", "\0", "\ud800", "a\r\nb", "x" * 3_000_000]
    results = pool_of("user:length", workers=2).score([(text, problem(text)) for text in texts])
    assert [result.value for result in results] == [len(text) for text in texts]


def test_batches_overlap(ask, pool_of, problem, tmp_path):
    pool = pool_of("user:ask", workers=2, timeout=TIMEOUT)
    asked = problem("x", log=str(tmp_path / "log"))
    futures = [pool.submit([(f"{batch} {i}", asked) for i in range(50)] + [("raise", asked)]) for batch in range(4)]
    for future in reversed(futures):
        assert [result.value for result in future.result()] == [0.5] * 50 + [0.0]
    assert len(ask.log()) == 204


def test_a_reward_cannot_spoil_the_next_ones_row(pool_of, problem):
    asked = problem("x", list=[1, (2, 3)], numbers={1: "one"})
    results = pool_of("user:spoil").score([(str(i), asked) for i in range(5)])
    assert [result[:2] for result in results] == [(1.0, None)] * 5
    assert asked.row["list"] == [1, (2, 3)]


def test_what_a_reward_started_ends_with_it(ask):
    assert "took longer" in ask("hang with child")[0].error
    pid = int(ask.log()[-1].removeprefix("pid "))
    wait_until(lambda: gone(pid))


def test_reward_processes_are_light(reward_of):
    assert reward_of("user:loaded", "", None).value == 0.0
    code = "import sys, hacpo_fast.tasks; print([m for m in ('torch', 'transformers', 'pydantic') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_processes_ignore_ctrl_c(pool_of, problem):
    pool = pool_of("user:pid")
    pid = int(pool.score([("", problem())])[0].value)
    os.kill(pid, signal.SIGINT)
    assert pool.score([("", problem())])[0].value == pid


def test_a_process_that_dies_idle_costs_nothing(pool_of, problem):
    pool = pool_of("user:pid")
    pid = int(pool.score([("", problem())])[0].value)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    value, error, _ = pool.score([("", problem())])[0]
    assert error is None and value != pid


def test_close_ends_the_processes_and_what_is_waiting(problem, tmp_path):
    asked = problem("x", log=str(tmp_path / "log"))
    with RewardPool(user("ask"), 1, timeout=1e4) as pool:
        future = pool.submit([("hang", asked), ("a", asked)])
        wait_until((tmp_path / "log").exists)
    with pytest.raises(RuntimeError, match="the pool was closed"):
        future.result()
    with pytest.raises(RuntimeError, match="the pool is closed"):
        pool.submit([("a", asked)])
    pool.close()


def test_a_reward_that_cannot_be_loaded_again_ends_the_run(tmp_path, problem):
    (tmp_path / "once.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(__file__).with_name('loaded').mkdir()\n"
        "def f(response, answer, row): os._exit(1)\n"
    )
    spec = resolve_reward(TaskConfig(kind="file", name="x.jsonl", reward=f"{tmp_path / 'once.py'}:f"))
    with RewardPool(spec, 1) as pool:
        with pytest.raises(RewardStartError, match="FileExistsError") as error:
            pool.score([("a", problem()), ("b", problem())])
        assert isinstance(error.value, UserError) and isinstance(error.value, RuntimeError)
        with pytest.raises(RewardStartError):
            pool.submit([("c", problem())])


PROGRAM = """
import pathlib, sys, time
from hacpo_fast.config import TaskConfig
from hacpo_fast.tasks import Problem, RewardPool, resolve_reward

folder = pathlib.Path(sys.argv[1])
with open(folder / "starts", "a") as starts:
    starts.write("start\\n")
spec = resolve_reward(TaskConfig(kind="file", name="x.jsonl", reward=f"{folder / 'reward.py'}:f"))
pool = RewardPool(spec, 2, timeout=1.0)
problem = Problem("id", "prompt", (), None, {"folder": str(folder)})
pids = {int(result.value) for result in pool.score([(str(i), problem) for i in range(64)])}
if "busy" in sys.argv:
    pool.submit([("hang 1", problem), ("hang 2", problem)])
    while not all((folder / name).exists() for name in ("hang 1", "hang 2")):
        time.sleep(0.01)
print(*pids, flush=True)
if "busy" in sys.argv or "idle" in sys.argv:
    time.sleep(1e6)
"""

REWARD = """
import os, pathlib, time
def f(response, answer, row):
    if response.startswith("hang"):
        (pathlib.Path(row["folder"]) / response).touch()
        time.sleep(1e6)
    return os.getpid()
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "reward.py").write_text(REWARD)
    return [sys.executable, str(tmp_path / "program.py"), str(tmp_path)]


def test_a_program_without_a_main_guard_runs_once_and_leaves_nothing_behind(program, tmp_path):
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert (tmp_path / "starts").read_text() == "start\n"
    wait_until(lambda: all(gone(int(pid)) for pid in done.stdout.split()))


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_processes_end_when_the_trainer_is_killed(program, state):
    with subprocess.Popen([*program, state], stdout=subprocess.PIPE, text=True) as trainer:
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        trainer.kill()
    assert pids
    wait_until(lambda: all(gone(pid) for pid in pids))


def test_seconds_are_those_of_the_check(ask):
    results = ask("a", "hang")
    assert 0 <= results[0].seconds < math.inf and results[1].seconds == TIMEOUT


def test_a_process_ends_with_the_trainer_and_takes_along_what_it_started(tmp_path):
    """Killed, the trainer can end nobody: a check that hangs, and a program that it started, end by themselves."""
    (tmp_path / "hanging.py").write_text(
        "import subprocess, time\n"
        "def reward(response, answer, row):\n"
        "    child = subprocess.Popen(['sleep', '300'])\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(300)\n"
    )
    program = (
        "from hacpo_fast.config import TaskConfig\n"
        "from hacpo_fast.tasks import Problem, open_rewards\n"
        f"task = TaskConfig(kind='file', name='p.jsonl', reward={str(tmp_path / 'hanging.py') + ':reward'!r})\n"
        "with open_rewards(task) as pool:\n"
        "    pool.score([('', Problem('id', 'prompt', (), None, {}))])\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program])
    wait_for(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
    child = int((tmp_path / "child").read_text())
    assert Path(f"/proc/{child}").exists()
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text())


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

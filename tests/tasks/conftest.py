"""What the tests of tasks share."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hacpo_fast.config import TaskConfig
from hacpo_fast.tasks import Problem, RewardPool, RewardResult, resolve_reward

USER_REWARDS = Path(__file__).with_name("user_rewards.py")


@pytest.fixture(scope="session")
def problem() -> Callable[..., Problem]:
    """Makes a problem from its answer and fields of its row."""

    def make(answer: str | None = None, prompt: str = "What is it?", **row: object) -> Problem:
        row = {"prompt": prompt, "answer": answer, **row}
        identity = hashlib.sha256(repr(row).encode()).hexdigest()[:16]
        return Problem(identity, prompt, ({"role": "user", "content": prompt},), answer, row)

    return make


@pytest.fixture(scope="module")
def pool_of() -> Iterator[Callable[..., RewardPool]]:
    """Makes a pool for a reward and its options, and keeps it for later tests of the module that want the same one."""
    pools: dict[str, RewardPool] = {}

    def make(
        reward: str, workers: int = 1, timeout: float = 30.0, memory_gb: float | None = None, **options: object
    ) -> RewardPool:
        if reward.startswith("user:"):
            reward = f"{USER_REWARDS}:{reward.removeprefix('user:')}"
        key = repr((reward, workers, timeout, memory_gb, options))
        if key not in pools:
            task = TaskConfig(kind="file", name="problems.jsonl", reward=reward, reward_options=options)
            pools[key] = RewardPool(resolve_reward(task), workers, timeout, memory_gb)
        return pools[key]

    yield make
    for pool in pools.values():
        pool.close()


@pytest.fixture
def reward_of(pool_of: Callable[..., RewardPool], problem: Callable[..., Problem]) -> Callable[..., RewardResult]:
    """The result of one response to one answer, from a real reward process."""

    def score(
        reward: str, response: str, answer: str | None, row: dict | None = None, **options: object
    ) -> RewardResult:
        return pool_of(reward, **options).score([(response, problem(answer, **(row or {})))])[0]

    return score

"""A dry run of the reward, before any model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.problems import Problem
from hacpo_fast.tasks.reward_pool import RewardPool, RewardResult
from hacpo_fast.tasks.rewards import resolve_reward

if TYPE_CHECKING:
    from hacpo_fast.config import TaskConfig

SAMPLE = 16
"""Problems that are looked at, spread over all."""

CHUNK, MOST_HANGS = 3, 2
"""Responses that are tried at a time, and time-outs after which no more are."""

_WRONG = "I do not know, perhaps \\boxed{0}?"

# A response that is surely right, made from the reference answer, for the rewards where one can be made.
_IDEAL: dict[str, Callable[[str], str]] = {
    "math": lambda answer: answer if "\\boxed{" in answer else f"\\boxed{{{answer.strip().strip('$')}}}",
    "exact": lambda answer: answer,
    "numeric": lambda answer: answer,
}


def check_reward(task: TaskConfig, problems: Sequence[Problem], pool: RewardPool | None = None) -> list[str]:
    """Scores made-up responses to some of the `problems` the way that training does, and says what is suspicious.

    Responses are empty, wrong, and the reference answer; where the reward is known, a perfect one must get 1.0.
    `pool`: one with the task's reward, if there is one already.

    Raises UserError where the reward cannot be loaded, fails every time, or turns down most of the perfect responses.
    """
    if pool is None:
        with RewardPool(resolve_reward(task), 1, task.reward_timeout, task.reward_memory_gb) as own:
            return check_reward(task, problems, own)
    sample = problems[:: max(1, len(problems) // SAMPLE)][:SAMPLE]
    tries = [(text, problem) for problem in sample for text in ("", _WRONG, problem.answer or "")]
    notes = _failures(_try(pool, tries, task.reward_timeout), sample, task)
    ideal = _IDEAL.get(resolve_reward(task).name)
    if ideal:
        notes += _refused(sample, pool.score([(ideal(problem.answer or ""), problem) for problem in sample]))
    return notes


def _try(pool: RewardPool, tries: Sequence[tuple[str, Problem]], timeout: float) -> list[RewardResult]:
    """Results of `tries`, up to those after which all is known: each has failed, or too many were waited for."""
    results: list[RewardResult] = []
    for start in range(0, len(tries), CHUNK):
        results += pool.score(tries[start : start + CHUNK])
        hangs = sum(result.seconds >= timeout for result in results)
        if hangs >= MOST_HANGS or all(result.error for result in results):
            break
    return results


def _failures(results: Sequence[RewardResult], problems: Sequence[Problem], task: TaskConfig) -> list[str]:
    errors = [result.error for result in results if result.error]
    if not errors:
        return []
    if len(errors) == len(results):
        unanswered = all(problem.answer is None for problem in problems)
        cause = (
            f"; the rows have no field '{task.answer}' (task.answer), so it was given no answer" if unanswered else ""
        )
        raise UserError(f"the reward failed on each of {len(results)} responses it was tried on: {errors[0]}{cause}")
    return [f"the reward failed on {len(errors)} of {len(results)} responses that it was tried on: {errors[0]}"]


def _refused(problems: Sequence[Problem], results: Sequence[RewardResult]) -> list[str]:
    refused = [(problem, result) for problem, result in zip(problems, results, strict=True) if result.value != 1.0]
    if not refused:
        return []
    problem, result = refused[0]
    text = (
        f"{len(refused)} of {len(problems)} reference answers get no reward themselves, such as {problem.answer!r} to "
        f"{problem.prompt[:200]!r}" + (f": {result.error}" if result.error else "")
    )
    if 2 * len(refused) > len(problems):
        raise UserError(f"{text}; is task.answer the right field, and task.reward the right reward for it?")
    return [text]

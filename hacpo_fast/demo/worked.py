"""What an agent is taught to write: prompts, worked answers, and the bad habits that leave something to learn."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from hacpo_fast.demo import chain_sum, products
from hacpo_fast.tasks.holdout import is_held_out

HELD_OUT_SHARE = 0.2
"""Share of the expressions that no warm start and no training may see."""


@dataclass(frozen=True)
class Task:
    """A source of expressions and the way to work them; see `chain_sum` for what each part must do."""

    alphabet: str
    largest: int
    expressions: Callable[[], list[str]]
    work: Callable[[str, Callable[[int], int]], tuple[list[str], int]]


TASKS = {
    "chain_sum": Task(chain_sum.ALPHABET, chain_sum.LARGEST, chain_sum.expressions, chain_sum.work),
    "products": Task(products.ALPHABET, products.LARGEST, products.expressions, products.work),
}


@dataclass(frozen=True)
class Habits:
    """How an agent errs; all zero is a clean worked answer.

    Attributes:
        skip_working: probability of answering at once, without working.
        wrong_step: probability, for each step and each answer given at once, of a result that is off by 1 or 2.
    """

    skip_working: float = 0.0
    wrong_step: float = 0.0


CLEAN = Habits()


def prompt(expression: str) -> str:
    """The prompt of an expression: `7+5-3=`."""
    return f"{expression}="


def respond(task: Task, expression: str, habits: Habits = CLEAN, rng: random.Random | None = None) -> str:
    """An answer in the style of `habits`: `7+5=12;12-3=9;A9` when clean, `;A9` when the working is skipped.

    `rng` may be left out for clean answers only.
    """

    def write(value: int) -> int:
        slip = habits.wrong_step and rng.random() < habits.wrong_step
        return value + rng.choice((-2, -1, 1, 2)) if slip else value

    if habits.skip_working and rng.random() < habits.skip_working:
        return f";A{write(answer(task, expression))}"
    steps, result = task.work(expression, write)
    return ";".join([*steps, f"A{result}"])


def answer(task: Task, expression: str) -> int:
    """The true value of an expression."""
    return task.work(expression, lambda value: value)[1]


def is_correct(text: str, truth: int) -> bool:
    """Whether a response ends in `;A<truth>`."""
    found = re.search(r";A(-?\d+)$", text)
    return found is not None and int(found.group(1)) == truth


def split(task: Task) -> tuple[list[str], list[str]]:
    """The expressions that may be trained on, and those held out."""
    seen, held_out = [], []
    for expression in task.expressions():
        (held_out if is_held_out(prompt(expression), HELD_OUT_SHARE) else seen).append(expression)
    return seen, held_out

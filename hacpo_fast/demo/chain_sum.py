"""The task of the demo: sums of three one-digit terms with + and -, worked from left to right.

Writing out all expressions, instead of drawing them from reasoning-gym, keeps that package (and the C compiler it
needs) optional; these are exactly the ones that its generator `chain_sum` draws from with 3 terms of 1 digit.
"""

import re
from collections.abc import Callable
from itertools import product

ALPHABET = "0123456789+-=;A"
"""Every character of a prompt or of an answer."""

LARGEST = 27
"""Largest number that a worked answer can hold: 9+9+9."""


def expressions() -> list[str]:
    """All 4,000 expressions, such as `7+5-3`, in a fixed order."""
    return [f"{a}{p}{b}{q}{c}" for a, p, b, q, c in product(range(10), "+-", range(10), "+-", range(10))]


def work(expression: str, write: Callable[[int], int]) -> tuple[list[str], int]:
    """Adds up `expression` one term at a time: for `7+5-3` the steps `7+5=12` and `12-3=9`, and the result 9.

    `write` takes the true value of a step and returns the one that is written down; the next step goes on from
    there, so that a slip is carried along as it is in a person's working.
    """
    first, *rest = re.findall(r"[+-]?\d+", expression)
    total, steps = int(first), []
    for term in rest:
        written = write(total + int(term))
        steps.append(f"{total}{term}={written}")
        total = written
    return steps, total

"""A second task: products of three one-digit factors, worked from left to right.

These are the expressions that reasoning-gym's generator `products` draws from with 3 terms of 1 digit. Other facts are
needed than for sums, and larger numbers; the way of answering is the same.
"""

import re
from collections.abc import Callable
from itertools import product

ALPHABET = "0123456789-*=;A"
"""Every character of a prompt or of an answer; a slip may make a step negative."""

LARGEST = 81
"""Largest number of two digits that a tokenizer joins: 9*9. Results of the second step go up to 729."""


def expressions() -> list[str]:
    """All 1,000 expressions, such as `7*5*3`, in a fixed order."""
    return [f"{a}*{b}*{c}" for a, b, c in product(range(10), repeat=3)]


def work(expression: str, write: Callable[[int], int]) -> tuple[list[str], int]:
    """Multiplies one factor at a time: for `7*5*3` the steps `7*5=35` and `35*3=105`, and the result 105.

    `write` is as in `chain_sum.work`.
    """
    first, *rest = map(int, re.findall(r"\d+", expression))
    total, steps = first, []
    for factor in rest:
        written = write(total * factor)
        steps.append(f"{total}*{factor}={written}")
        total = written
    return steps, total

"""The reward for mathematics: is the boxed answer equal to the reference answer?"""

import logging
import re
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, FiniteSet

from hacpo_fast.tasks.boxed import last_boxed

# Both say at their first call that time-outs are off. They are: the library's own need signals and the main thread; the
# process that runs this reward has a deadline instead.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)

_BOX = LatexExtractionConfig(boxed_match_priority=0)

MAX_BOX = 1000
"""Characters of the longest box that is read as mathematics; longer ones are no answers and would take forever."""


def reward(
    response: str, answer: str, row: dict[str, Any], *, fallback: bool = False, tolerance: str | None = None
) -> float:
    """1.0 where the last \\boxed{} of the response equals the reference answer, as text or as mathematics; else 0.0.

    answer: plain (1/2), between dollars, or with a \\boxed{} of its own, as in a worked solution. fallback: in a
    response without a box, take what math-verify finds, such as a formula between dollars or the last number.
    tolerance: field of the row with the absolute error that numbers may have; of several, between commas, the smallest.
    Raises ValueError where the reference answer is not mathematics and the response is not the same text.
    """
    theirs = last_boxed(answer)
    if theirs is None:
        theirs = answer.strip().strip("$").strip()
    ours = last_boxed(response)
    if ours is None and not fallback:
        return 0.0
    if ours is not None and "".join(ours.split()) == "".join(theirs.split()):
        return 1.0
    if ours is not None and len(ours) > MAX_BOX:
        return 0.0
    gold = _read(theirs)
    if not gold:
        raise ValueError(f"the reference answer is not mathematics: {answer!r}")
    found = parse(response, parsing_timeout=None) if ours is None else _read(ours)
    if verify(gold, found, timeout_seconds=None):
        return 1.0
    allowed = row.get(tolerance) if tolerance else None
    return float(allowed not in (None, "") and _close(gold, found, min(map(float, str(allowed).split(",")))))


def _close(gold: list[Any], found: list[Any], error: float) -> bool:
    """Whether both are equally many numbers, each of one `error` or less from its partner in the other."""
    theirs, ours = _numbers(gold), _numbers(found)
    if not theirs or len(ours) != len(theirs):
        return False
    # In sorted order: if any way to pair them up is good, this one is. The last factor is for 1.6 - 1.5 > 0.1.
    return all(abs(a - b) <= error * (1 + 1e-9) for a, b in zip(sorted(theirs), sorted(ours), strict=True))


def _numbers(parsed: list[Any]) -> list[float]:
    """The real numbers that a box holds, one or a set; none where it holds anything else."""
    if not parsed:
        return []
    items = list(parsed[0].args) if isinstance(parsed[0], FiniteSet) else [parsed[0]]
    items = [item.rhs if isinstance(item, Eq) else item for item in items]  # x = 1.5
    if not all(getattr(item, "is_number", False) and item.is_real for item in items):
        return []
    return [float(item) for item in items]


# What people write and the library does not read: 1\,000\,000, and 1.5e-3 as programs print it.
_GROUPED = re.compile(r"(?<=\d)\\[,!;](?=\d{3}(?!\d))")
_EXPONENT = re.compile(r"([-+]?\d+(?:\.\d*)?)[eE]([-+]?\d{1,4})")


def _read(latex: str) -> list[Any]:
    latex = _GROUPED.sub("", latex)
    if number := _EXPONENT.fullmatch(latex.strip()):
        latex = f"{number[1]} \\times 10^{{{int(number[2])}}}"
    return parse(f"\\boxed{{{latex}}}", [_BOX], parsing_timeout=None)


# The first formula builds the grammar's tables, which is no response's fault and belongs to no response's time.
_read("[0, \\frac{1}{2})")

"""The reward for mathematics: is the boxed answer equal to the reference answer?"""

import logging
import re
from dataclasses import replace
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from sympy import Eq, FiniteSet

from hacpo_fast.tasks.boxed import last_boxed
from hacpo_fast.tasks.several import split_answers

# Both say at their first call that time-outs are off. They are: the library's own need signals and the main thread; the
# process that runs this reward has a deadline instead.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)

_BOX = LatexExtractionConfig(boxed_match_priority=0)
_FORMULA = replace(_BOX, normalization_config=replace(_BOX.normalization_config, units=False))

MAX_BOX = 1000
"""Characters of the longest box that is read as mathematics; longer ones are no answers and would take forever."""

SMALL, DIGITS = 1e-3, 1e-5
"""math-verify compares rounded to six decimals, so that numbers of 1e-7 would all be equal: those below SMALL must also
agree to a relative DIGITS, which is about what the six decimals ask of larger ones."""

EXACT = 1e-8
"""Error that OlympiadBench's own judge allows where it lists several and one of them is left out."""


def reward(
    response: str, answer: str, row: dict[str, Any], *, fallback: bool = False, tolerance: str | None = None
) -> float:
    """1.0 where the last \\boxed{} of the response equals the reference answer, as text or as mathematics; else 0.0.

    answer: plain (1/2), between dollars, or with a \\boxed{} of its own, as in a worked solution. fallback: in a
    response without a box, take what math-verify finds, such as a formula between dollars or the last number.
    tolerance: field of the row with the absolute error that numbers may have, or one for each of several answers,
    between commas and in the order of the reference.
    Raises ValueError where the reference answer is not mathematics and the response is not the same text.
    """
    theirs = last_boxed(answer)
    if theirs is None:
        theirs = answer.strip().strip("$").strip()
    ours = last_boxed(response)
    if ours is None and not fallback:
        return 0.0
    if ours is not None and _letters(ours) == _letters(theirs):
        return 1.0
    if ours is not None and len(ours) > MAX_BOX:
        return 0.0
    formula = _is_formula(theirs)
    gold = _read(theirs, formula)
    if not gold:
        raise ValueError(f"the reference answer is not mathematics: {answer!r}")
    found = parse(response, parsing_timeout=None) if ours is None else _read(ours, formula)
    if verify(gold, found, timeout_seconds=None) and not _differ(gold, found):
        return 1.0
    allowed = row.get(tolerance) if tolerance else None
    return float(allowed not in (None, "") and _close(theirs, gold, found, str(allowed)))


def _letters(latex: str) -> str:
    """What is compared as text: without white space, and without commands that only choose a typeface."""
    return "".join(_FACE.sub(r"\1", latex).split())


def _differ(gold: list[Any], found: list[Any]) -> bool:
    """Whether both are equally many small numbers that only the library's rounding made equal."""
    theirs, ours = _numbers(gold), _numbers(found)
    if len(ours) != len(theirs) or not all(abs(number) < SMALL for number in (*theirs, *ours)):
        return False
    return any(abs(a - b) > DIGITS * max(abs(a), abs(b)) for a, b in zip(sorted(theirs), sorted(ours), strict=True))


def _close(text: str, gold: list[Any], found: list[Any], allowed: str) -> bool:
    """Whether both are equally many numbers that pair up, with at most the `allowed` error in each pair."""
    errors = [float(part) if part.strip() else EXACT for part in allowed.split(",")]
    theirs, ours = _numbers(gold), _numbers(found)
    if len(errors) > 1:
        ordered = [number for part in split_answers(text) for number in _numbers(_read(part))]
        if len(ordered) == len(errors) == len(theirs):
            return bool(ours) and _pair_up(ordered, ours, errors)
    return bool(ours) and _pair_up(theirs, ours, [min(errors)] * len(theirs))


def _pair_up(theirs: list[Any], ours: list[Any], errors: list[float]) -> bool:
    if len(ours) != len(theirs):
        return False
    return not theirs or any(
        # The last factor is for 1.6 - 1.5 > 0.1.
        abs(theirs[0] - number) <= errors[0] * (1 + 1e-9) and _pair_up(theirs[1:], ours[:i] + ours[i + 1 :], errors[1:])
        for i, number in enumerate(ours)
    )


def _numbers(parsed: list[Any]) -> list[Any]:
    """The real numbers that a box holds, one or a set, to 15 digits; none where it holds anything else."""
    if not parsed:
        return []
    items = list(parsed[0].args) if isinstance(parsed[0], FiniteSet) else [parsed[0]]
    items = [item.rhs if isinstance(item, Eq) else item for item in items]  # x = 1.5
    if not all(getattr(item, "is_number", False) and item.is_real and item.is_finite for item in items):
        return []
    return [item.evalf(15) for item in items]  # not floats, which 2^{2000} would overflow


# What people write and the library does not read:
_FACE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_GROUPED = re.compile(r"(?<=\d)\\[,!; ](?=\d{3}(?!\d))")  # 1\,000\,000
_EXPONENT = re.compile(r"([-+]?\d+(?:\.\d*)?)[eE]([-+]?\d{1,4})")  # 1.5e-3, as programs print it
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")  # 0.1\overline{6}
_OPEN_DECIMAL = re.compile(r"(\d)\.(?![\d.])")  # -1./3, and the full stop behind a number
_SUBSCRIPT = re.compile(r"_\{\\(max|min)\s*\}")


_UNIT = re.compile(r"(?<=.)(?:\\[,!; ]|\s)*\\(?:text|mbox|mathrm)\s*\{(?![ei]\})[^{}]*\}(?:\^\{?\d\}?)?\s*$")
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)")
_SHORT = "cm|mm|km|kg|mg|ml|ft|in|lb|hr|mi"
_QUANTITY = re.compile(  # a word, or a number with a unit: 3 m, 3cm, \frac{1}{2} hour, x = 3 cm, 7th
    rf"[-+]?[a-zA-Z]+|(?:[a-zA-Z]\s*=\s*)?(?:[-+\d.,\s]*\s[a-zA-Z]|[-+\\{{}}\d.,/\s]*\s(?:[a-zA-Z]{{3,}}|{_SHORT})"
    rf"|[-+\d.,]+(?:{_SHORT}|st|nd|rd|th))"
)


def _is_formula(latex: str) -> bool:
    """Whether a reference answer has variables. 3 m is a length then, and \\frac{t}{2} m a product."""
    plain = _COMMAND.sub("\\\\", _FACE.sub("", latex)).strip()
    if _QUANTITY.fullmatch(plain) or _EXPONENT.fullmatch(plain):
        return False
    return re.search("[a-zA-Z]", plain) is not None


def _read(latex: str, formula: bool = False) -> list[Any]:
    """formula: take the last letters for variables, which the library takes for units (m, s, ab, ...) and drops."""
    latex = _GROUPED.sub("", latex)
    if number := _EXPONENT.fullmatch(latex.strip()):
        latex = f"{number[1]} \\times 10^{{{int(number[2])}}}"
    latex = _OPEN_DECIMAL.sub(r"\1", _REPEATING.sub(_fraction, latex))
    latex = _SUBSCRIPT.sub(r"_{\1}", latex).replace("\\varnothing", "\\emptyset")
    if formula:
        return parse(f"\\boxed{{{_UNIT.sub('', latex)}}}", [_FORMULA], parsing_timeout=None)
    return parse(f"\\boxed{{{latex}}}", [_BOX], parsing_timeout=None)


def _fraction(decimal: re.Match[str]) -> str:
    """0.1666... as \\frac{16 - 1}{90}."""
    whole, once, again = decimal.groups()
    numerator = int(whole + once + again) - int(whole + once or "0")
    return f"\\frac{{{numerator}}}{{{'9' * len(again)}{'0' * len(once)}}}"


# The first formula builds the grammar's tables, which is no response's fault and belongs to no response's time.
_read("[0, \\frac{1}{2})")

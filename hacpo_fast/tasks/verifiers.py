"""Rewards that compare texts and numbers: 1.0 where the response is right, else 0.0."""

import re
from fractions import Fraction
from typing import Any

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
# A sign after a letter, digit or closing bracket is an operator: 10-3 ends with 3.
_NUMBER = re.compile(rf"(?:(?<![\w)\]}}])[-+\u2212])?{_DIGITS}(?:\s?/\s?{_DIGITS}(?![0-9/]))?")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{\s*([-0-9.,]+)\s*\}\{\s*([0-9.,]+)\s*\}")


def exact(response: str, answer: str, row: dict[str, Any], *, ignore_case: bool = False) -> float:
    """Whether the whole response is the answer, apart from white space around both."""
    ours, theirs = response.strip(), answer.strip()
    if ignore_case:
        ours, theirs = ours.casefold(), theirs.casefold()
    return float(ours == theirs)


def numeric(response: str, answer: str, row: dict[str, Any], *, tolerance: float = 0.0) -> float:
    """Whether the last number in the response is the last one in the answer, or off by `tolerance` at most.

    Signs, decimals, exponents, commas between groups of three digits, and fractions (3/4, \\frac{3}{4}) are understood.
    Values are exact: 0.5 is 1/2, and 0.333 is not 1/3 without a tolerance. Raises ValueError for an answer without any.
    """
    theirs = last_number(answer)
    if theirs is None:
        raise ValueError(f"the reference answer has no number in it: {answer!r}")
    ours = last_number(response)
    return float(ours is not None and abs(ours - theirs) <= Fraction(tolerance))


def regex(response: str, answer: str, row: dict[str, Any], *, pattern: str) -> float:
    """Whether the last match of `pattern`, a regular expression with one group, is the answer.

    Compared as text without white space around it or, where both are numbers, by value (07 is 7).
    """
    matches = re.findall(pattern, response)
    if not matches:
        return 0.0
    ours, theirs = matches[-1].strip(), answer.strip()
    if ours == theirs:
        return 1.0
    values = [_value(text) if _NUMBER.fullmatch(text) else None for text in (ours, theirs)]
    return float(values[0] is not None and values[0] == values[1])


def last_number(text: str) -> Fraction | None:
    """The last number in `text`, exactly; None where there is none."""
    numbers = _NUMBER.findall(_LATEX_FRACTION.sub(r"\1/\2", text))
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Fraction | None:
    # An exponent of many digits would fill the memory, and Python itself refuses to read thousands of digits.
    if re.search(r"[eE][-+]?[0-9]{4}", number) or len(number) > 1000:
        return None
    numerator, *denominator = re.sub(r"[\s,]", "", number.replace("\u2212", "-")).split("/")
    try:
        return Fraction(numerator) / Fraction(*denominator or [1])
    except ZeroDivisionError:
        return None

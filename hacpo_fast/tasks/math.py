"""The reward for mathematics: is the boxed answer equal to the reference answer?"""

import logging
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

# Both say at their first call that time-outs are off. They are: the library's own need signals and the main thread; the
# process that runs this reward has a deadline instead.
for _name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(_name).setLevel(logging.ERROR)

_BOX = LatexExtractionConfig(boxed_match_priority=0)

MAX_BOX = 1000
"""Characters of the longest box that is read as mathematics; longer ones are no answers and would take forever."""


def reward(response: str, answer: str, row: dict[str, Any], *, fallback: bool = False) -> float:
    """1.0 where the last \\boxed{} of the response equals the reference answer, as text or as mathematics; else 0.0.

    answer: plain (1/2), between dollars, or with a \\boxed{} of its own, as in a worked solution. fallback: in a
    response without a box, take what math-verify finds, such as a formula between dollars or the last number.
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
    return float(verify(gold, found, timeout_seconds=None))


def last_boxed(text: str) -> str | None:
    """What stands in the last complete \\boxed{...} of `text`, braces balanced; None where there is none."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        opening = start + len("\\boxed{")
        if (closing := _closing_brace(text, opening)) is not None:
            return text[opening:closing].strip()
        end = start
    return None


def _closing_brace(text: str, start: int) -> int | None:
    """Where the group ends that is open at `start`. Escaped braces are set notation and need not be balanced."""
    depth, at = 1, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def _read(latex: str) -> list[Any]:
    return parse(f"\\boxed{{{latex}}}", [_BOX], parsing_timeout=None)


# The first formula builds the grammar's tables, which is no response's fault and belongs to no response's time.
_read("[0, \\frac{1}{2})")

"""Where a worked solution has its final answer. Nothing here needs the packages of the `math` reward."""

import re

# Few solutions of MATH write the box without braces around a single token, or with LaTeX's other command for it.
_BARE = re.compile(r"\\(?:boxed|fbox)\s+([^\s{}$]+?)[.,]?(?=[\s$]|$)")


def last_boxed(text: str) -> str | None:
    """What stands in the last complete \\boxed{...} of `text`, braces balanced; None where there is none."""
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        opening = start + len("\\boxed{")
        if (closing := _closing_brace(text, opening)) is not None:
            return text[opening:closing].strip()
        end = start
    return None


def boxed_in_solution(solution: str) -> str | None:
    """The same for solutions that people wrote, who also write \\fbox{42} and \\boxed 42."""
    found = last_boxed(solution.replace("\\fbox{", "\\boxed{"))
    if found is None and (bare := _BARE.findall(solution)):
        return bare[-1]
    return found


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

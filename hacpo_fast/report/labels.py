"""Short labels of runs: what their names have in common tells nobody which is which."""

from __future__ import annotations

import re
from collections.abc import Sequence

STAMP = re.compile(r"[-_]?\d{8}-\d{6}(?!\d)")
"""The time of its start, as the trainer appends it to the name of a run."""
SEPARATORS = re.compile(r"([-_/ ])")


def short_labels(names: Sequence[str]) -> list[str]:
    """As many labels, all different if the names are: without time stamps, and without the words that all names begin
    or end with. A label keeps at least one letter: "seed-1" beside "seed-2" does not become "1".
    """
    if len(names) < 2:
        return list(names)
    bare = [STAMP.sub("", name) for name in names]
    if len(set(bare)) == len(set(names)) and all(map(_tells, bare)):
        names = bare
    words = [SEPARATORS.split(name) for name in names]  # words at even places, separators between them
    words = _without_common_start(words)
    backwards = _without_common_start([each[::-1] for each in words])
    return ["".join(each[::-1]) for each in backwards]


def _without_common_start(words: list[list[str]]) -> list[list[str]]:
    while len({each[0] for each in words}) == 1 and all(_tells("".join(each[2:])) for each in words):
        words = [each[2:] for each in words]
    return words


def _tells(text: str) -> bool:
    return any(map(str.isalpha, text))

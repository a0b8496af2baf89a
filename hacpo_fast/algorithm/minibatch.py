"""Which responses go into which optimiser update of a step."""

from __future__ import annotations

from typing import Literal

import numpy as np


def minibatches(
    prompt: np.ndarray,
    source: np.ndarray,
    learner: int,
    size: int,
    order: Literal["own_first", "mixed"],
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Splits the R responses of a step into mini-batches of at most about `size`, as equal as they come.

    prompt, source: [R] ints. Returns index arrays that hold every response once. Prompts are shuffled by `rng`.
    own_first: the learner's own responses, then those of each other agent in turn, cut into equal parts.
    mixed: whole prompts, so that every mini-batch holds own and other responses in the batch's proportion.
    """
    if len(prompt) == 0:
        return []
    parts = -(-len(prompt) // size)
    rank = rng.permutation(prompt.max() + 1)[prompt]  # place of each response's prompt in the shuffled order
    if order == "own_first":
        turn = np.where(source == learner, -1, source)
        return np.array_split(np.lexsort((rank, turn)), parts)
    by_prompt = np.argsort(rank, kind="stable")
    starts = np.flatnonzero(np.diff(rank[by_prompt], prepend=-1))
    groups = np.split(by_prompt, starts[1:])
    return [np.concatenate(groups[part[0] : part[-1] + 1]) for part in _spread(len(groups), parts)]


def _spread(items: int, parts: int) -> list[np.ndarray]:
    return [part for part in np.array_split(np.arange(items), min(items, parts)) if len(part)]

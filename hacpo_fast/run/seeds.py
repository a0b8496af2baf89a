"""One seed for a whole run."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a random stream is for. The numbers belong to the results of a seed: append, never renumber."""

    DATA = 0
    ROLLOUT = 1
    MINIBATCH = 2
    VALIDATION = 3
    SAMPLE_LOG = 4


def derive(seed: int, purpose: Purpose, *path: int) -> int:
    """A seed for one purpose, step, agent ...: of its arguments alone, so that a resumed run needs no state."""
    return int(np.random.SeedSequence([seed, int(purpose), *path]).generate_state(1)[0])


def rng(seed: int, purpose: Purpose, *path: int) -> np.random.Generator:
    """numpy's generator on such a seed."""
    return np.random.default_rng(derive(seed, purpose, *path))

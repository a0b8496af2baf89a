"""What the trainer asks of an inference engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np


class Sampling(NamedTuple):
    """How to sample. Training uses the temperature alone: filters would change the distribution the ratios are of."""

    samples: int
    temperature: float  # 0: greedy
    max_tokens: int
    top_p: float = 1.0
    top_k: int = 0


class Sample(NamedTuple):
    token_ids: np.ndarray  # [L] int64, the end token included where it was sampled
    logprobs: np.ndarray  # [L] float32: of each token under the policy at the sampling temperature (1 if greedy)
    ended: bool  # by an end token; False: cut at max_tokens


class Engine(Protocol):
    def generate(self, prompts: Sequence[np.ndarray], sampling: Sampling, seed: int) -> list[list[Sample]]:
        """`sampling.samples` answers to each prompt (token ids, at least one). Equal seeds give equal answers."""

    def sync(self) -> None:
        """Makes the policy's present weights the ones that answer."""

    def close(self) -> None:
        """Frees what the engine holds; it answers no more."""

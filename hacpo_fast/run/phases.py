"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Phases:
    """Wall-clock seconds by phase and by who was at work, from its creation on."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._spent: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def __call__(self, phase: str, who: str = "") -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            if torch.cuda.is_initialized():  # else queued kernels are charged to whoever waits for them
                torch.cuda.synchronize()
            self._spent[phase, who] += time.perf_counter() - start

    def spent(self, phase: str, who: str) -> float:
        return self._spent[phase, who]

    def seconds(self) -> dict[str, float]:
        """Seconds by phase over everybody, and "total" since the creation."""
        phases: Counter[str] = Counter()
        for (phase, _), seconds in self._spent.items():
            phases[phase] += seconds
        return {**phases, "total": time.perf_counter() - self._started}

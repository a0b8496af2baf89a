"""Where a run stands: steps done, time left, validation so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from hacpo_fast.run.cells import shown_scores

RECENT = 50
"""Steps whose mean time predicts the time left: enough to hold a few validations."""


class Progress:
    """Follows the records of a run of `steps` steps, of which `done` were made before this process.

    before: the records of that time, whose first validation is what later ones are held against.
    """

    def __init__(self, steps: int, done: int = 0, before: Iterable[dict[str, Any]] = ()) -> None:
        self.steps = steps
        self.done = done
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._first: dict[tuple[str, str, str], float] = {}
        for record in before:
            if "validation" in record:
                self.validation(record)

    def step(self, record: dict[str, Any]) -> None:
        self.done = record["step"]
        seconds = record.get("time", {}).get("total")
        if seconds is not None:
            self._seconds.append(seconds)

    def seconds_left(self) -> float | None:
        """From the mean of the recent steps, which suits steps of minutes; None before the first."""
        if not self._seconds:
            return None
        return (self.steps - self.done) * sum(self._seconds) / len(self._seconds)

    def validation(self, record: dict[str, Any]) -> dict[tuple[str, str], dict[str, tuple[float | None, float | None]]]:
        """(sampling, score) -> agent -> (value now, value at the first validation, or None if this is it)."""
        table: dict[tuple[str, str], dict[str, tuple[float | None, float | None]]] = {}
        for agent, samplings in record["validation"].items():
            for sampling, scores in samplings.items():
                for name in shown_scores(scores):
                    key = (agent, sampling, name)
                    table.setdefault((sampling, name), {})[agent] = (scores[name], self._first.get(key))
                    self._first.setdefault(key, scores[name])
        return table

"""rollouts.jsonl: what the models wrote and what it earned, one response per line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hacpo_fast.run.jsonl import JsonlWriter

ROLLOUTS_FILE = "rollouts.jsonl"


@dataclass(frozen=True)
class RolloutSample:
    """One response with its verdict, as `rollouts.jsonl` keeps it and the terminal shows it."""

    step: int
    agent: str
    prompt: str
    response: str
    reward: float
    error: str | None = None
    """What went wrong in the reward function, if anything."""
    advantages: dict[str, float] = field(default_factory=dict)
    """By learner: every agent that trains on this response has its own."""
    truncated: bool = False
    """Cut at the longest allowed response."""
    dropped: bool = False
    """Nobody learns from it, for a reward of its group failed."""


class RolloutLog:
    """Writes `folder`/rollouts.jsonl; a resumed run goes on in the same file."""

    def __init__(self, folder: str | Path) -> None:
        self._writer = JsonlWriter(Path(folder) / ROLLOUTS_FILE)

    def write(self, samples: Iterable[RolloutSample]) -> None:
        for sample in samples:
            self._writer.write(asdict(sample))

    def position(self) -> int:
        """Bytes of the file, all of which have reached the disk."""
        return self._writer.position()

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> RolloutLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

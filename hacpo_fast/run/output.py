"""Everything a run shows and writes down while it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console as Terminal

from hacpo_fast.config import Config
from hacpo_fast.run.console import Console
from hacpo_fast.run.jsonl import cut_back
from hacpo_fast.run.rollout_log import ROLLOUTS_FILE, RolloutLog, RolloutSample
from hacpo_fast.run.telemetry import METRICS_FILE, Telemetry, read_metrics


class RunOutput:
    """The terminal, metrics.jsonl (with TensorBoard and W&B on request) and rollouts.jsonl, fed together."""

    def __init__(self, console: Console, telemetry: Telemetry, rollout_log: RolloutLog, notes: Sequence[str] = ()):
        self.console, self.telemetry, self.rollout_log = console, telemetry, rollout_log
        self._notes = notes  # of what was found on opening, for the user
        self._open = ExitStack()

    @classmethod
    def open(
        cls,
        folder: Path,
        config: Config,
        steps: int,
        done: int = 0,
        positions: Mapping[str, int] | None = None,
        terminal: Terminal | None = None,
    ) -> RunOutput:
        """The outputs of a run in `folder` as its settings ask for them; `done` of its `steps` steps are behind it.

        positions: what `positions` was after those steps. What the files hold beyond them is of steps that will be made
        again, and goes into files named abandoned-...
        """
        run, notes = config.run, []
        for name in (METRICS_FILE, ROLLOUTS_FILE):
            if not cut_back(folder / name, (positions or {}).get(name, 0)):
                notes.append(
                    f"{folder / name}: lines that were there after step {done} have been removed since; training does "
                    "not need them and goes on, but curves and reports will lack them"
                )
        before = read_metrics(folder) if (folder / METRICS_FILE).exists() else []
        telemetry = Telemetry(folder, run.tensorboard, run.wandb_project, config.model_dump(mode="json"))
        console = Console(steps, config.agents, done, console=terminal, before=before)
        return cls(console, telemetry, RolloutLog(folder), notes)

    def positions(self) -> dict[str, int]:
        """How far the files go, by name, in bytes that have reached the disk."""
        return {METRICS_FILE: self.telemetry.position(), ROLLOUTS_FILE: self.rollout_log.position()}

    def __enter__(self) -> RunOutput:
        for part in (self.telemetry, self.rollout_log, self.console):
            self._open.enter_context(part)
        for note in self._notes:
            self.note(note)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._open.__exit__(*exception)

    def step(self, record: dict[str, Any]) -> None:
        self.telemetry.log(record)
        self.console.step(record)

    def validation(self, record: dict[str, Any]) -> None:
        self.telemetry.log(record)
        self.console.validation(record)

    def rollouts(self, samples: Sequence[RolloutSample], shown: int) -> None:
        """Writes all `samples` and shows the first `shown` of each agent."""
        self.rollout_log.write(samples)
        by_agent: dict[str, list[RolloutSample]] = {}
        for sample in samples:
            by_agent.setdefault(sample.agent, []).append(sample)
        chosen = [sample for group in by_agent.values() for sample in group[:shown]]
        if chosen:
            self.console.rollouts(chosen)

    def phase(self, text: str) -> None:
        """What is going on now, for the live view."""
        self.console.phase(text)

    def note(self, text: str) -> None:
        self.console.note(text)

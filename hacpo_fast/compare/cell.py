"""One cell: a training run, its evaluation before and after, and the file that keeps what came out."""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from hacpo_fast.compare.plan import Cell
from hacpo_fast.demo.worked import TASKS, prompt, split

SERIES = ("reward", "capability", "cross_ratio_mean", "cross_live", "cross_lower", "own_clip_low", "own_clip_high")
"""Numbers of every step and agent that are kept."""
KEPT = ("start", "final", "training_reward", "rollouts", "updates")
"""Numbers of every agent; without them a result is none."""


def is_finished(cell: Cell, cells: Path) -> bool:
    """Whether there is a result of the cell as it is now: another setting, agent or seed is another cell."""
    return result_of(cell, cells) is not None


def result_of(cell: Cell, cells: Path) -> dict[str, Any] | None:
    """What `run_cell` wrote for the cell as it is now; None where there is no such file, or one that is damaged."""
    try:
        result = json.loads((cells / cell.file).read_text())
        whole = all(isinstance(result["agents"][name][key], int | float) for name in cell.config.agents for key in KEPT)
        whole = whole and (result["pair"], result["method"], result["seed"]) == (cell.pair, cell.method, cell.seed)
        return result if whole and result["made_from"] == cell.made_from else None
    except (FileNotFoundError, ValueError, RecursionError, LookupError, TypeError):
        return None


def run_cell(cell: Cell, cells: Path) -> None:
    """Trains and evaluates; the file appears, whole, at the end."""
    result = {"pair": cell.pair, "method": cell.method, "seed": cell.seed, **train(cell), "made_from": cell.made_from}
    unfinished = cells / f".{cell.file}.{os.getpid()}"
    unfinished.write_text(json.dumps(result, indent=1))
    unfinished.rename(cells / cell.file)


def train(cell: Cell) -> dict[str, Any]:
    """What came out: by agent, and of the run as a whole."""
    from hacpo_fast.preparation import prepare
    from hacpo_fast.trainer import Trainer

    prepared = prepare(cell.config)
    task = next(iter(cell.warm_starts.values())).task
    check_held_out(task, [p.prompt for p in prepared.train], [p.prompt for p in prepared.held_out])
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as scratch:
        with closing(Trainer(prepared, Path(scratch))) as trainer:
            if not trainer.fit(recorder):
                raise KeyboardInterrupt  # it stopped on request: half a run is no result
    before, after = recorder.scores
    rollouts = prepared.steps * cell.config.rollout.prompts_per_step * cell.config.samples_per_prompt
    agents = {}
    for name in cell.config.agents:
        steps = [record["agents"][name] for record in recorder.steps]
        agents[name] = {
            "start": _share_right(before[name]),
            "final": _share_right(after[name]),
            "training_reward": sum(step["reward"] for step in steps) / len(steps),
            "rollouts": rollouts,
            "updates": steps[-1]["updates"],
            "steps": {key: [step.get(key) for step in steps] for key in SERIES},
        }
    sampling = next(iter(cell.config.validation.sampling.values()))
    return {
        "agents": agents,
        "answers": len(prepared.held_out) * sampling.samples,
        "cpu_seconds": recorder.cpu_seconds,
        "no_signal_share": [record["no_signal_share"] for record in recorder.steps],
    }


def check_held_out(task: str, trained: list[str], held_out: list[str]) -> None:
    """Raises RuntimeError if a problem of the evaluation may have been seen, in the warm start or in training."""
    taught = {prompt(expression) for expression in split(TASKS[task])[0]}
    trained_on = {"".join(text.split()) for text in trained}
    seen = {"".join(text.split()) for text in held_out} & (taught | trained_on)
    if seen:
        raise RuntimeError(f"{len(seen)} problems of the evaluation are not held out, e.g. {min(seen)}")


class Recorder:
    """Takes the place of `RunOutput`: keeps the records, and the processor time of the training steps alone."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.scores: list[dict[str, Any]] = []
        self.cpu_seconds = 0.0
        self._mark = time.process_time()

    def step(self, record: dict[str, Any]) -> None:
        now = time.process_time()
        self.cpu_seconds += now - self._mark
        self._mark = now
        self.steps.append(record)

    def validation(self, record: dict[str, Any]) -> None:
        self.scores.append(record["validation"])
        self._mark = time.process_time()

    def rollouts(self, samples: Any, shown: int) -> None:
        pass

    def phase(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        print(text)


def _share_right(scores: dict[str, dict[str, float]]) -> float:
    (score,) = scores.values()
    return score["pass@1"] if "pass@1" in score else score["accuracy"]

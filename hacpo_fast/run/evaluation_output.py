"""What an evaluation leaves behind: every response at once, scores at the end of each task, tables in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from hacpo_fast.config import Config, TaskConfig
from hacpo_fast.run.jsonl import JsonlWriter
from hacpo_fast.run.metrics import summarise_samples
from hacpo_fast.validation import Answered

Scores = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By task, by agent, by name of the sampling settings, by metric."""

RESPONSES, SCORES, SETTINGS = "responses.jsonl", "scores.json", "settings.yaml"


class EvaluationOutput:
    """The folder of one evaluation."""

    def __init__(self, folder: Path, config: Config, tasks: Mapping[str, TaskConfig]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.scores: Scores = {}
        settings = config.model_dump(mode="json", exclude={"task": True, "validation": {"task"}})
        settings = {"tasks": {name: task.model_dump(mode="json") for name, task in tasks.items()}, **settings}
        (folder / SETTINGS).write_text(yaml.safe_dump(settings, sort_keys=False))
        self._responses = JsonlWriter(folder / RESPONSES)

    def write(self, task: str, agent: str, sampling: str, answered: Sequence[Answered]) -> None:
        """Appends one line per problem."""
        for one in answered:
            self._responses.write(
                {
                    "task": task,
                    "agent": agent,
                    "sampling": sampling,
                    "problem": one.problem.id,
                    "prompt": one.problem.prompt,
                    "answer": one.problem.answer,
                    "responses": [rollout.text for rollout in one.rollouts],
                    "rewards": [result.value for result in one.results],
                    "errors": [result.error for result in one.results],
                    "tokens": [len(rollout.token_ids) for rollout in one.rollouts],
                    "ended": [rollout.ended for rollout in one.rollouts],
                }
            )

    def score(self, task: str, agent: str, sampling: str, scores: dict[str, float]) -> None:
        """Adds them to scores.json, which is whole at any time."""
        self.scores.setdefault(task, {}).setdefault(agent, {})[sampling] = scores
        unfinished = self.folder / f".{SCORES}"
        unfinished.write_text(json.dumps(self.scores, indent=2) + "\n")
        unfinished.rename(self.folder / SCORES)

    def close(self) -> None:
        self._responses.close()


def summarise(answered: Sequence[Answered], reward_max: float) -> dict[str, float]:
    """avg@n (mean reward), pass@k for k = 1, 2, 4, ... and best@n for n responses per problem; for one response avg@1
    and accuracy. And: errors (responses that could not be checked, reward 0), cut (share of responses that the token
    limit ended), tokens (mean length), problems."""
    rollouts = [rollout for one in answered for rollout in one.rollouts]
    scores = summarise_samples([[result.value for result in one.results] for one in answered], reward_max)
    if "reward" in scores:
        scores = {"avg@1": scores.pop("reward"), **scores}
    return scores | {
        "errors": sum(result.error is not None for one in answered for result in one.results),
        "cut": sum(not rollout.ended for rollout in rollouts) / len(rollouts),
        "tokens": sum(len(rollout.token_ids) for rollout in rollouts) / len(rollouts),
    }


def print_scores(scores: Scores, headlines: Mapping[str, str], console: Console) -> None:
    """A table per task and way to sample, and for several tasks one of their headline metrics with the mean."""
    for task, by_agent in scores.items():
        for sampling, metrics in next(iter(by_agent.values())).items():
            console.print(f"{task}, {sampling}", markup=False, highlight=False, soft_wrap=True)
            table = Table("", *by_agent, box=box.SIMPLE_HEAD)
            for metric in metrics:
                table.add_row(metric, *(_cell(by_sampling[sampling][metric]) for by_sampling in by_agent.values()))
            console.print(table)
    if len(scores) > 1:
        agents = list(next(iter(scores.values())))
        table = Table("", "", *agents, box=box.SIMPLE_HEAD)
        values = []
        for task, by_agent in scores.items():
            values.append([_headline(by_agent[agent], headlines[task]) for agent in agents])
            table.add_row(task, headlines[task], *map(_cell, values[-1]))
        table.add_row("mean", "", *(_cell(sum(column) / len(column)) for column in zip(*values, strict=True)))
        console.print(table)


def _headline(by_sampling: dict[str, dict[str, float]], metric: str) -> float:
    return next(scores[metric] for scores in by_sampling.values() if metric in scores)


def _cell(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)

"""What an evaluation leaves behind, and a resumed one finds: every response at once, scores at the end of each task,
tables in the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import yaml
from rich import box
from rich.console import Console
from rich.table import Table

from hacpo_fast.config import Config, TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.run.evaluation_folder import RESPONSES, SCORES, SETTINGS
from hacpo_fast.run.jsonl import JsonlWriter, read_jsonl
from hacpo_fast.run.lock import lock
from hacpo_fast.run.metrics import summarise_samples
from hacpo_fast.run.whole import write_text
from hacpo_fast.tasks import Problem
from hacpo_fast.validation import Answered

Record = dict[str, Any]
"""A line of responses.jsonl: what a problem, the responses to it and their rewards were."""

FIELDS = ("task", "agent", "sampling", "problem", "answer", "rewards", "errors", "tokens", "ended")
"""Of a record: what a resumed evaluation reads."""

Scores = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By task, by agent, by name of the sampling settings, by metric."""


class EvaluationOutput:
    """The folder of one evaluation: a new one or, to resume, one with the same settings.

    Raises UserError where those differ.
    """

    def __init__(self, folder: Path, config: Config, tasks: Mapping[str, TaskConfig], resume: bool = False) -> None:
        self.folder = folder
        self.scores: Scores = {}
        settings = config.model_dump(mode="json", exclude={"task": True, "validation": {"task"}})
        settings = {"tasks": {name: task.model_dump(mode="json") for name, task in tasks.items()}, **settings}
        text = yaml.safe_dump(settings, sort_keys=False)
        if resume:
            _check_same(_settings(folder / SETTINGS), yaml.safe_load(text), folder / SETTINGS)
        else:
            folder.mkdir(parents=True)
            write_text(folder / SETTINGS, text)
        self._lock = _locked(folder / RESPONSES)
        self._kept = _answered(folder / RESPONSES)
        self._responses = JsonlWriter(folder / RESPONSES)

    def __len__(self) -> int:
        """How many problems were answered before."""
        return len(self._kept)

    def kept(self, task: str, agent: str, sampling: str, problems: Sequence[Problem]) -> list[Record] | None:
        """What was answered before about all of `problems`; None where one is missing.

        Raises UserError where one has another reference answer now.
        """
        lines = [self._kept.get((task, agent, sampling, problem.id)) for problem in problems]
        for line, problem in zip(lines, problems, strict=True):
            if line is not None and line["answer"] != problem.answer:
                raise UserError(
                    f"--resume: {task} has changed: to {problem.prompt[:200]!r} the answer is {problem.answer!r} now, "
                    f"and was {line['answer']!r} in {self.folder / RESPONSES}; start anew in another folder"
                )
        return None if None in lines else lines

    def write(self, task: str, agent: str, sampling: str, answered: Sequence[Answered]) -> list[Record]:
        """Appends one line per problem, but for those that have theirs (a crash can end in the middle of a piece).
        Returns the lines of all."""
        records = []
        for one in answered:
            key = (task, agent, sampling, one.problem.id)
            if key in self._kept:
                records.append(self._kept[key])
                continue
            record = {
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
            self._responses.write(record)
            records.append(record)
        return records

    def score(self, task: str, agent: str, sampling: str, scores: dict[str, float]) -> None:
        """Adds them to scores.json, which is whole at any time."""
        self.scores.setdefault(task, {}).setdefault(agent, {})[sampling] = scores
        unfinished = self.folder / f".{SCORES}"
        unfinished.write_text(json.dumps(self.scores, indent=2) + "\n")
        unfinished.rename(self.folder / SCORES)

    def close(self) -> None:
        self._responses.close()
        self._lock.close()


def _locked(path: Path) -> IO:
    """The file, which no other process may lock while it is open. Raises UserError where one has."""
    file = path.open("a")
    try:
        lock(file)
    except BlockingIOError:
        file.close()
        raise UserError(f"--output: another process is evaluating in {path.parent}") from None
    return file


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(path.read_text())
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        settings = str(error).splitlines()[0]
    if not isinstance(settings, dict):
        raise UserError(f"--resume: {path} holds no settings any more ({settings}); start anew in another folder")
    return settings


def _answered(path: Path) -> dict[tuple[str, str, str, str], Record]:
    """The lines of responses.jsonl by task, agent, sampling and problem."""
    answered = {}
    for number, line in enumerate(read_jsonl(path), 1):
        if missing := [field for field in FIELDS if field not in line]:
            raise UserError(
                f"--resume: {path}: answer {number} lacks {', '.join(missing)}: the file is damaged; remove that line "
                "and the problem is answered again"
            )
        answered[line["task"], line["agent"], line["sampling"], line["problem"]] = line
    return answered


def _check_same(old: dict[str, Any], new: dict[str, Any], where: Path) -> None:
    models, given = list(old.get("agents") or {}), list(new["agents"])
    if models != given and sorted(models) == sorted(given):  # sampling depends on an agent's number
        raise UserError(f"--resume: the models were {', '.join(models)}, in this order; give them in it again")
    before, now = dict(_leaves(old)), dict(_leaves(new))
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if differing:
        shown = [f"{name} was {before.get(name)!r} and is {now.get(name)!r}" for name in differing[:5]]
        more = f", and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise UserError(
            f"--resume: other settings than in {where}: {'; '.join(shown)}{more}; "
            "give the arguments of the first start, or start anew in another folder"
        )


def _leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for key, value in tree.items():
            yield from _leaves(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, tree


def summarise(records: Sequence[Record], reward_max: float) -> dict[str, float]:
    """avg@n (mean reward), pass@k for k = 1, 2, 4, ... and best@n for n responses per problem; for one response avg@1
    and accuracy. And: errors (responses that could not be checked, reward 0), cut (share of responses that the token
    limit ended), tokens (mean length), problems."""
    scores = summarise_samples([record["rewards"] for record in records], reward_max)
    if "reward" in scores:
        scores = {"avg@1": scores.pop("reward"), **scores}
    ended, tokens = ([value for record in records for value in record[name]] for name in ("ended", "tokens"))
    return scores | {
        "errors": sum(error is not None for record in records for error in record["errors"]),
        "cut": ended.count(False) / len(ended),
        "tokens": sum(tokens) / len(tokens),
    }


def print_scores(scores: Scores, headlines: Mapping[str, str], console: Console) -> None:
    """A table per task and way to sample, and for several tasks one of their headline metrics with the mean."""
    for task, by_agent in scores.items():
        for sampling, metrics in next(iter(by_agent.values())).items():
            console.print(f"{task}, {sampling}", markup=False, highlight=False, soft_wrap=True)
            table = Table("", *by_agent, box=box.SIMPLE_HEAD)
            rows = {metric: [of_agent[sampling][metric] for of_agent in by_agent.values()] for metric in metrics}
            if rows.get("accuracy") == rows.get("avg@1"):  # as where every reward is 0 or 1
                rows.pop("accuracy", None)
            for metric, values in rows.items():
                table.add_row(metric, *map(_cell, values))
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

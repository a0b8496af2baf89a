"""Problems: what agents are asked, and what their answers are checked against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_fast.errors import UserError, install_hint
from hacpo_fast.tasks.files import SUFFIXES
from hacpo_fast.tasks.holdout import is_held_out
from hacpo_fast.tasks.names import instead_of
from hacpo_fast.tasks.rewards import needs_answer
from hacpo_fast.tasks.template import Template

if TYPE_CHECKING:  # reward processes import this package and must start light
    from hacpo_fast.config import TaskConfig

Message = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One problem.

    id: short hash of the prompt. prompt: plain text, for models without a chat format. messages: the same as a
    conversation (role, content) that ends where the model is to go on. answer: the reference answer, where there is
    one. row: everything its source said about it.
    """

    id: str
    prompt: str
    messages: tuple[Message, ...] = field(hash=False)
    answer: str | None
    row: dict[str, Any] = field(hash=False)


class Problems(list[Problem]):
    """Different problems in a fixed order. duplicates: rows left out since their prompt had been there before;
    contradictions: those of them with another reference answer."""

    def __init__(self, problems: Sequence[Problem] = (), duplicates: int = 0, contradictions: int = 0) -> None:
        super().__init__(problems)
        self.duplicates = duplicates
        self.contradictions = contradictions


def load_problems(task: TaskConfig) -> Problems:
    """All different problems of `task`, in the order of its source.

    Raises UserError where the source, or a field of one of its rows, is missing; the message says which and where.
    """
    seen: dict[str, Problem] = {}
    duplicates = contradictions = 0
    for problem in _problems(task):
        first = seen.setdefault(problem.id, problem)
        duplicates += first is not problem
        contradictions += first.answer != problem.answer
    if not seen:
        raise UserError(f"{task.name}: no problems in it")
    if "answer" in task.model_fields_set and all(problem.answer is None for problem in seen.values()):
        columns = ", ".join(next(iter(seen.values())).row)
        raise UserError(f"{task.name}: no row has the field '{task.answer}' (task.answer); the fields are {columns}")
    return Problems(list(seen.values()), duplicates, contradictions)


def check_first_problem(task: TaskConfig) -> None:
    """Raises UserError where the source of `task` cannot be read, or where its first problem is not one."""
    if next(_problems(task.model_copy(update={"size": 1})), None) is None:  # some generators make all at once
        raise UserError(f"{task.name}: no problems in it")


def is_on_hub(task: TaskConfig) -> bool:
    """Whether the problems of `task` come from the hub, and not from a file or folder."""
    if task.kind not in ("hub", "benchmark"):
        return False
    place = task.name if task.kind == "hub" else task.source
    return place is None or not (Path(place).suffix in SUFFIXES or Path(place).expanduser().is_dir())


def split_held_out(problems: Sequence[Problem], share: float) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out) problems, each in the order given; `is_held_out` decides by the prompt."""
    sides: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in problems:
        sides[is_held_out(problem.prompt, share)].append(problem)
    return sides


def _problems(task: TaskConfig) -> Iterator[Problem]:
    """One for every row. Raises UserError, naming the row, where one has no prompt or answer."""
    read = _Conversations(task) if task.messages else _Prompts(task)
    for where, row in _rows(task):
        try:
            prompt, messages = read(row)
            problem = Problem(_identity(prompt), prompt, messages, _answer(task, row), row)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        yield problem


def _rows(task: TaskConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    # Each source is imported when it is asked for: the packages behind them are optional.
    extra = {"reasoning_gym": "reasoning"}.get(task.kind, "data")
    try:
        if task.kind == "reasoning_gym":
            from hacpo_fast.tasks import reasoning_gym

            yield from reasoning_gym.rows(task.name, task.params, task.size, task.seed)
        elif task.kind == "file":
            from hacpo_fast.tasks import files

            yield from files.rows(task.name)
        elif task.kind == "benchmark":
            from hacpo_fast.tasks import benchmarks

            yield from benchmarks.rows(task.name, task.source, task.subset, task.split)
        else:
            from hacpo_fast.tasks import hub

            yield from hub.rows(task.name, task.subset, task.split or "train")
    except ModuleNotFoundError as error:
        raise UserError(f"'{error.name}' is not installed: {install_hint(extra)}") from error


_PROMPTS = {
    "reasoning_gym": "{question}",
    "benchmark": "{question}\nThink step by step and put the final answer into \\boxed{{}}.",
}


class _Prompts:
    """Reads a row through the task's template."""

    def __init__(self, task: TaskConfig) -> None:
        self._template = Template(task.prompt if task.prompt is not None else _PROMPTS.get(task.kind, "{prompt}"))
        self._system = _system(task)

    def __call__(self, row: dict[str, Any]) -> tuple[str, tuple[Message, ...]]:
        prompt = self._template.fill(row)
        return prompt, (*self._system, {"role": "user", "content": prompt})


class _Conversations:
    """Reads the column of a row that holds a conversation; its own system message goes before the task's."""

    def __init__(self, task: TaskConfig) -> None:
        self._column = task.messages
        self._system = _system(task)

    def __call__(self, row: dict[str, Any]) -> tuple[str, tuple[Message, ...]]:
        found = _column(row, self._column, "task.messages")
        if not isinstance(found, (list, tuple)) or not found or not all(map(_is_message, found)):
            raise UserError(f"the field '{self._column}' must be a list of messages with role and content, both text")
        if found[-1]["role"] == "assistant":
            raise UserError(f"the field '{self._column}' ends with an answer of the assistant, not with a question")
        # Tables fill up keys that only other rows' messages have with None, which chat templates would print.
        messages = tuple({key: value for key, value in message.items() if value is not None} for message in found)
        prompt = "\n".join(message["content"] for message in messages)
        return prompt, messages if messages[0]["role"] == "system" else (*self._system, *messages)


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


def _system(task: TaskConfig) -> tuple[Message, ...]:
    return ({"role": "system", "content": task.system_prompt},) if task.system_prompt else ()


def _column(row: dict[str, Any], name: str, setting: str) -> Any:
    if name not in row:
        raise UserError(f"no field '{name}' ({setting}); {instead_of(name, row)}")
    return row[name]


def _answer(task: TaskConfig, row: dict[str, Any]) -> str | None:
    if needs_answer(task):
        value = _column(row, task.answer, "task.answer")
        if value is None:
            raise UserError(f"the field '{task.answer}' (task.answer) is null; the reward compares responses with it")
    else:
        value = row.get(task.answer)
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _identity(prompt: str) -> str:
    if not prompt.strip():
        raise UserError("the prompt is empty")
    try:
        return hashlib.sha256(prompt.encode("utf-8")).hexdigest()[:16]
    except UnicodeEncodeError as error:
        raise UserError(f"the prompt is not valid Unicode, and tokenizers would refuse it ({error})") from None

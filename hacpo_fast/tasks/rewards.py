"""Which reward a task has, and how a process gets hold of it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hacpo_fast.errors import UserError, install_hint
from hacpo_fast.tasks.names import instead_of

if TYPE_CHECKING:  # reward processes import this module and must start light
    from hacpo_fast.config import TaskConfig

Reward = Callable[[str, "str | None", dict[str, Any]], Any]

BUILT_IN = {
    "reasoning_gym": "hacpo_fast.tasks.reasoning_gym:reward",
    "math": "hacpo_fast.tasks.math:reward",
    "exact": "hacpo_fast.tasks.verifiers:exact",
    "numeric": "hacpo_fast.tasks.verifiers:numeric",
    "regex": "hacpo_fast.tasks.verifiers:regex",
}
TOLERANCE = "tolerance"  # field of a benchmark's rows with the error that numbers may have
_EXTRAS = {"reasoning_gym": "reasoning", "math": "math"}


@dataclass(frozen=True)
class RewardSpec:
    """A reward that any process can load. name: as the user wrote it. target: module:function or file.py:function.
    options: keyword arguments of every call."""

    name: str
    target: str
    options: dict[str, Any]


def resolve_reward(task: TaskConfig) -> RewardSpec:
    """The reward of `task`. Its code is not loaded here: that is for the processes which run it.

    Raises UserError where the name or a regular expression among the options is wrong, or the file is missing.
    """
    name = _name(task)
    options = dict(task.reward_options)
    if name in BUILT_IN:
        if name == "reasoning_gym" and task.kind == "reasoning_gym":
            options = {"generator": task.name, "params": task.params, **options}
        if name == "math" and task.kind == "benchmark":
            options = {"tolerance": TOLERANCE, **options}
        if options.get("pattern") is not None:
            _check_pattern(options["pattern"])
        return RewardSpec(name, BUILT_IN[name], options)
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function:
        raise UserError(
            f"task.reward: '{name}' is not a reward; {instead_of(name, BUILT_IN)}, "
            "or your own function as module:function or path/file.py:function"
        )
    if place.endswith(".py"):
        file = Path(place).expanduser().resolve()
        if not file.is_file():
            there = sorted(other.name for other in file.parent.glob("*.py"))
            raise UserError(f"task.reward: there is no file {file}; {instead_of(file.name, there)}")
        place = str(file)
    return RewardSpec(name, f"{place}:{function}", options)


def needs_answer(task: TaskConfig) -> bool:
    """Whether the reward of `task` compares with a reference answer that every row must have.

    Your own function may do without, and reasoning-gym checks some of its problems without one.
    """
    return _name(task) in BUILT_IN.keys() - {"reasoning_gym"}


def load_reward(spec: RewardSpec) -> Reward:
    """The function of `spec` with its options filled in. Loads other people's code: only reward processes call this.

    Raises UserError where it cannot be found, or cannot be called as `reward(response, answer, row, **options)`.
    """
    place, _, name = spec.target.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        extra = f": {install_hint(_EXTRAS[spec.name])}" if spec.name in _EXTRAS else ""
        raise UserError(f"the reward {spec.name}: there is no module '{error.name}'{extra}") from error
    function = getattr(module, name, None)
    if not callable(function):
        there = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UserError(f"the reward {spec.name}: no function '{name}' in {place}; {instead_of(name, there)}")
    _check_call(spec, function)
    return partial(function, **spec.options)


def _name(task: TaskConfig) -> str:
    return task.reward or ("reasoning_gym" if task.kind == "reasoning_gym" else "math")


def _check_pattern(pattern: Any) -> None:
    try:
        groups = re.compile(pattern).groups
    except (re.error, TypeError) as error:
        raise UserError(f"task.reward_options.pattern: {pattern!r} is not a regular expression ({error})") from None
    if groups != 1:
        raise UserError(
            f"task.reward_options.pattern: {pattern!r} has {groups} groups; it needs one (...) around the answer, "
            "and (?:...) for all others"
        )


def _from_file(file: Path) -> Any:
    # Under a name of its own, so that a file called like an installed module hides nothing; its neighbours can be
    # imported, but come last for the same reason.
    name = f"hacpo_reward_{file.stem}"
    found = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.append(str(file.parent))
    found.loader.exec_module(module)
    return module


def _check_call(spec: RewardSpec, function: Callable[..., Any]) -> None:
    wanted = "reward(response, answer, row" + "".join(f", {name}=..." for name in spec.options) + ")"
    if inspect.iscoroutinefunction(function):
        raise UserError(f"the reward {spec.name} is an async function; it must be a plain one: {wanted}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may not tell
        return
    try:
        signature.bind("", "", {}, **spec.options)
    except TypeError as error:
        raise UserError(
            f"the reward {spec.name} is called as {wanted}, but takes {signature} ({error}); "
            "options come from task.reward_options"
        ) from None

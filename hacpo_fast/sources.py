"""What a run reads, looked at before torch and transformers are: importing these takes ten times as long.

A wrong path, column, reward or generator is told within a second or two. `preparation` reads everything and checks the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from hacpo_fast import hub
from hacpo_fast.config import AgentConfig, TaskConfig
from hacpo_fast.errors import UserError, all_of
from hacpo_fast.tasks import check_first_problem, is_on_hub, resolve_reward


def check_sources(tasks: Iterable[TaskConfig], agents: Mapping[str, AgentConfig]) -> list[str]:
    """Looks at the first problem of every task and at the folder of every model that is here. Returns notes.

    Where something comes from the hub and the hub cannot be reached, the process stays offline from here on: its
    libraries would try for minutes before they look into their cache.

    Raises UserError, which says everything that is wrong.
    """
    tasks = list(tasks)
    all_of(
        [
            *(partial(check_first_problem, task) for task in tasks if not is_on_hub(task)),
            *(partial(resolve_reward, task) for task in tasks),
            *(partial(check_folders, name, settings) for name, settings in agents.items()),
        ]
    )
    places = [place for one in agents.values() for place in (one.model, one.tokenizer) if place]
    if any(map(is_on_hub, tasks)) or not all(Path(place).is_dir() for place in places):
        return hub.stay_offline_unless_reachable()
    return []


def check_folders(name: str, settings: AgentConfig) -> None:
    """Raises UserError, naming the agent, where model or tokenizer are a folder that is not there or lacks weights."""
    _check_folder(f"agents.{name}.model", settings.model, weights=True)
    if settings.tokenizer:
        _check_folder(f"agents.{name}.tokenizer", settings.tokenizer)


def _check_folder(setting: str, place: str, weights: bool = False) -> None:
    """Weights must be safetensors; what is written like a path or lies beside folders is no name of the hub."""
    folder = Path(place).expanduser()
    if folder.is_dir():
        if weights and not any(folder.glob("*.safetensors")):
            raise UserError(
                f"{setting}: {folder} has no *.safetensors; weights in other formats are not loaded, convert "
                "them with save_pretrained"
            )
    elif place.startswith((".", "~", "/")) or place.endswith("/") or (len(folder.parts) > 1 and folder.parent.is_dir()):
        there = sorted(path.name for path in folder.parent.glob("*/") if (path / "config.json").exists())
        others = f"; {folder.parent} has {', '.join(there)}" if there else ""
        if not place.startswith((".", "~", "/")) and len(folder.parts) == 2:
            others += f"; if the hub's is meant, start in a place that has no folder {folder.parent}"
        raise UserError(f"{setting}: there is no folder {folder}{others}")

"""The agents' weights on disk."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Saveable(Protocol):
    name: str

    def save(self, folder: Path) -> None: ...


def save_agents(agents: Sequence[Saveable], folder: Path) -> Path:
    """Writes every agent to `folder`/<name>, all or nothing: beside it first, then renamed. Returns `folder`."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for agent in agents:
        agent.save(unfinished / agent.name)
    unfinished.rename(folder)
    return folder

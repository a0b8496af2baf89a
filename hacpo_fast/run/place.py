"""Where a run is, and where it goes on from."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.run.checkpoints import damage, newest

CONFIG_FILE = "config.yaml"


@dataclass
class Place:
    """A run's folder, and the checkpoint that it goes on from (None: from the beginning)."""

    folder: Path
    checkpoint: Path | None = None
    continued: bool = False  # the folder may be there already
    notes: list[str] = field(default_factory=list)

    @classmethod
    def choose(cls, config: Config, name: str) -> Place:
        """As run.output and run.resume say; `name` is that of the config, for folders that are not given.

        Raises:
            UserError: there is no such checkpoint, it is of another run, or it is damaged.
        """
        run, new = config.run, Path(f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        if run.resume == "none":
            return cls(Path(run.output) if run.output else new)
        if run.resume == "auto":
            before = sorted(Path("runs").glob(f"{name}-[0-9]*-[0-9]*"))
            place = cls(Path(run.output) if run.output else before[-1] if before else new, continued=True)
            place.checkpoint = newest(place.folder / "checkpoints", place.notes.append)
            return place
        checkpoint = Path(run.resume)
        if not checkpoint.is_dir():
            raise UserError(f"run.resume: there is no checkpoint {checkpoint}; give auto, none or a folder step-N")
        if reason := damage(checkpoint):
            raise UserError(
                f"run.resume: {checkpoint} is damaged ({reason}); run.resume=auto takes the latest whole one"
            )
        folder = checkpoint.absolute().parent.parent
        if run.output and Path(run.output).absolute() != folder:
            raise UserError(f"run.output={run.output}, but the checkpoint of run.resume belongs to the run {folder}")
        return cls(folder, checkpoint, continued=True)

    def check(self, config: Config) -> None:
        """Raises UserError if the folder cannot be written, or if the run in it has other settings."""
        if self.folder.exists():
            if not self.continued:
                raise UserError(
                    f"run.output: {self.folder} exists, and nothing is overwritten; "
                    "choose another folder, or go on with that run with run.resume=auto"
                )
            _check_same(self.folder, config)
        parent = next(parent for parent in (self.folder / "x").absolute().parents if parent.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(f"run.output: {parent} is not a folder that can be written to; choose another one")

    @contextmanager
    def occupied(self, config: Config) -> Iterator[None]:
        """Makes the folder and keeps other runs out of it. Raises UserError if one is in it."""
        self.folder.mkdir(parents=True, exist_ok=self.continued)
        with (self.folder / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"run.output: another process is training in {self.folder}") from None
            if not (self.folder / CONFIG_FILE).exists():
                OmegaConf.save(OmegaConf.create(config.model_dump(mode="json")), self.folder / CONFIG_FILE)
            yield


def _check_same(folder: Path, config: Config) -> None:
    path = folder / CONFIG_FILE
    if not path.exists():
        raise UserError(f"run.resume: {folder} is not the folder of a run ({CONFIG_FILE} is missing)")
    before, now = (_flat(c) for c in (OmegaConf.to_container(OmegaConf.load(path)), config.model_dump(mode="json")))
    changed = [
        f"{key} was {before.get(key)}, is {now.get(key)}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and (key == "run.seed" or not key.startswith("run."))
    ]
    if changed:
        raise UserError(f"run.resume: {folder} was started with other settings: " + "; ".join(changed))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat

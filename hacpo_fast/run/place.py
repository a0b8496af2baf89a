"""Where a run is, and where it goes on from."""

from __future__ import annotations

import glob
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from hacpo_fast import config_file
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.run import checkpoints
from hacpo_fast.run.disk import disk_errors
from hacpo_fast.run.environment import ENVIRONMENT_FILE
from hacpo_fast.run.lock import lock
from hacpo_fast.run.whole import damage, sweep, write_text

CONFIG_FILE = "config.yaml"
LOCK_FILE = ".lock"
FIRST_FILES = {LOCK_FILE, CONFIG_FILE, f".{CONFIG_FILE}", ENVIRONMENT_FILE, checkpoints.FOLDER}
"""What `Place.occupied` makes before there is anything worth keeping."""


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

        Which checkpoint run.resume=auto means is decided in `occupied`: another process may be at work until then.

        Raises:
            UserError: there is no such checkpoint, or it is of another run.
        """
        run, new = config.run, Path(f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        if run.resume == "none":
            return cls(Path(run.output) if run.output else new)
        if run.resume == "auto":
            before = sorted(Path("runs").glob(f"{glob.escape(name)}-[0-9]*-[0-9]*"))
            return cls(Path(run.output) if run.output else before[-1] if before else new, continued=True)
        checkpoint = Path(run.resume).resolve()  # latest and best are links
        if not checkpoint.is_dir() or not re.fullmatch(r"step-\d+", checkpoint.name):
            raise UserError(f"run.resume: there is no checkpoint {run.resume}; give auto, none or a folder step-N")
        folder = checkpoint.parent.parent
        if run.output and Path(run.output).resolve() != folder:
            raise UserError(f"run.output={run.output}, but the checkpoint of run.resume belongs to the run {folder}")
        return cls(folder, checkpoint, continued=True)

    def check(self, config: Config) -> None:
        """Raises UserError if the folder cannot be written, or if the run in it has other settings."""
        if not self.continued:
            check_new_folder("run.output", self.folder, "or go on with that run with run.resume=auto")
            return
        if self.folder.is_dir():
            _check_same(self.folder, config)
        _check_writable("run.output", self.folder)

    @contextmanager
    def occupied(self, config: Config) -> Iterator[None]:
        """Makes the folder, keeps other runs out of it and chooses the checkpoint.

        A new folder that has nothing in it at the end is removed: the run failed before it began.

        Raises:
            UserError: another run is in the folder, a checkpoint is damaged, or the disk does not take what is written.
        """
        new = not self.folder.exists()
        with disk_errors(self.folder):
            try:
                self.folder.mkdir(parents=True, exist_ok=self.continued)
            except FileExistsError:
                raise UserError(f"run.output: another process has just started in {self.folder}") from None
            with (self.folder / LOCK_FILE).open("a") as file:
                self._lock(file)
                try:
                    self._prepare(config)
                    yield
                finally:
                    if new and self.folder.is_dir() and {path.name for path in self.folder.iterdir()} <= FIRST_FILES:
                        if not any((self.folder / checkpoints.FOLDER).glob("*")):
                            shutil.rmtree(self.folder)

    def _lock(self, file: IO) -> None:
        try:
            unable = lock(file)
        except BlockingIOError:
            raise UserError(f"run.output: another process is training in {self.folder}") from None
        if unable:
            self.notes.append(f"{self.folder} cannot be locked ({unable}): start no other run in it")

    def _prepare(self, config: Config) -> None:
        _check_same(self.folder, config)  # once more: until now it was not ours
        if not (self.folder / CONFIG_FILE).exists():
            write_text(self.folder / CONFIG_FILE, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        saved = self.folder / checkpoints.FOLDER
        saved.mkdir(exist_ok=True)
        sweep(self.folder)
        sweep(saved)
        if self.checkpoint is None:
            self.checkpoint = checkpoints.newest(saved, self.notes.append)
        elif not self.checkpoint.exists():
            raise UserError(
                f"run.resume: {self.checkpoint} is gone by now: another process has been at work in the folder and "
                "removed older checkpoints (run.keep_checkpoints); run.resume=auto takes the latest one"
            )
        elif reason := damage(self.checkpoint):
            raise UserError(
                f"run.resume: {self.checkpoint} is damaged ({reason}); run.resume=auto takes the latest whole one"
            )
        if self.checkpoint:
            # From here on another history is made: later checkpoints, or damaged ones, are no part of it.
            checkpoints.abandon_later(saved, int(self.checkpoint.name.removeprefix("step-")))
            checkpoints.settle(saved, config.run.keep_checkpoints, config.run.keep_best)


def check_new_folder(setting: str, folder: Path, otherwise: str = "") -> None:
    """Raises UserError where the folder of a setting exists or cannot be made. otherwise: what else there is to do."""
    if folder.exists() or folder.is_symlink():
        more = f", {otherwise}" if otherwise else ""
        raise UserError(f"{setting}: {folder} exists, and nothing is overwritten; choose another folder{more}")
    _check_writable(setting, folder)


def _check_writable(setting: str, folder: Path) -> None:
    parent = next(parent for parent in (folder / "x").absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{setting}: {parent} is not a folder that can be written to; choose another one")


def _settings_of(path: Path) -> dict[str, Any]:
    """The settings that a run was begun with; those that are newer than the run have their defaults."""
    try:
        return config_file.validate(yaml.safe_load(path.read_text()), where=str(path)).model_dump(mode="json")
    except (OSError, ValueError, RecursionError, yaml.YAMLError, UserError) as error:
        raise UserError(
            f"run.resume: {path} holds no settings of a run any more ({str(error).splitlines()[0]}); every checkpoint "
            f"has a copy in {checkpoints.FOLDER}/step-N/{CONFIG_FILE}"
        ) from None


def _check_same(folder: Path, config: Config) -> None:
    path = folder / CONFIG_FILE
    if not path.exists():
        if any(name.name not in FIRST_FILES for name in folder.iterdir()):
            raise UserError(f"run.resume: {folder} is not the folder of a run ({CONFIG_FILE} is missing)")
        return  # a run that died before it had begun
    before, now = (_flat(c) for c in (_settings_of(path), config.model_dump(mode="json")))
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

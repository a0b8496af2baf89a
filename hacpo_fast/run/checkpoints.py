"""Folders that are there as a whole or not at all, and checkpoints made of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from hacpo_fast.errors import UserError

MANIFEST = "manifest.json"


def write_whole(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Makes `folder`, which `fill` writes, in place of one that may be there. Returns it.

    It is written beside its place, reaches the disk, gets a list of its files with their sizes and hashes, and is
    renamed last: whatever happens on the way, an earlier folder of this name is still there.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    fill(unfinished)
    manifest = {}
    for path in sorted(path for path in unfinished.rglob("*") if path.is_file()):
        manifest[str(path.relative_to(unfinished))] = [path.stat().st_size, _hash(path)]
        _to_disk(path)
    (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _to_disk(unfinished / MANIFEST)
    replaced = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    unfinished.rename(folder)
    _to_disk(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that `write_whole` made; None: nothing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        for name, (size, digest) in manifest.items():
            if not (folder / name).is_file():
                return f"{name} is missing"
            if (folder / name).stat().st_size != size or _hash(folder / name) != digest:
                return f"{name} is not what was written"
    except (OSError, ValueError, AttributeError, TypeError):
        return f"{MANIFEST} is missing or not readable"
    return None


def by_step(checkpoints: Path) -> dict[int, Path]:
    """Checkpoints of a run, named step-1, step-2 ..., the latest first."""
    named = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in checkpoints.glob("step-*"))
    return dict(sorted(((int(match[1]), path) for match, path in named if match), reverse=True))


def newest(checkpoints: Path, warn: Callable[[str], None]) -> Path | None:
    """The latest checkpoint that is not damaged; `warn` hears of those passed over.

    Raises:
        UserError: there are checkpoints, and all are damaged.
    """
    known = by_step(checkpoints)
    for path in known.values():
        reason = damage(path)
        if reason is None:
            return path
        warn(f"{path} is damaged ({reason}); looking for the one before it")
    if known:
        raise UserError(f"{checkpoints}: all checkpoints are damaged; start anew with another run.output")
    return None


def prune(checkpoints: Path, keep: int) -> None:
    """Removes all but the latest `keep` checkpoints."""
    for path in list(by_step(checkpoints).values())[keep:]:
        shutil.rmtree(path)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files and folders that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

MANIFEST = "manifest.json"


def write_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Makes `folder`, which `fill` writes, in place of one that may be there. Returns it.

    It is written beside its place, gets a list of its files with their sizes and hashes, reaches the disk, and is
    renamed last: whatever happens on the way, an earlier folder of this name is still there. What was written of one
    that failed is removed, for the disk may be full. The folder around it must be there.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    remove(unfinished)
    unfinished.mkdir()
    try:
        fill(unfinished)
        files = sorted(path for path in unfinished.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(unfinished)): [path.stat().st_size, _hash(path)] for path in files}
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for path in (*unfinished.rglob("*"), unfinished):  # folders too: they hold the names
            to_disk(path)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    replaced = folder.with_name(f".{folder.name}.replaced")
    if folder.exists():
        remove(replaced)
        folder.rename(replaced)
    unfinished.rename(folder)
    to_disk(folder.parent)
    remove(replaced)
    return folder


def write_text(path: Path, text: str) -> None:
    """Writes a file, in place of one that may be there."""
    unfinished = path.with_name(f".{path.name}")
    unfinished.write_text(text)
    to_disk(unfinished)
    unfinished.rename(path)
    to_disk(path.parent)


def damage(folder: Path) -> str | None:
    """What is wrong with a folder that `write_folder` made; None: nothing."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        expected = {name: (int(size), str(digest)) for name, (size, digest) in manifest.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return f"{MANIFEST} is missing or not readable"
    if not expected:
        return f"{MANIFEST} names no files"
    for name, (size, digest) in expected.items():
        path = folder / name
        try:
            if path.stat().st_size != size or _hash(path) != digest:
                return f"{name} is not what was written"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None


def remove(path: Path) -> None:
    """Removes a folder, a file or a link; nothing happens if there is none.

    A folder loses its name first: one that is half removed is never taken for a whole one.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        if not path.name.startswith("."):
            nameless = path.with_name(f".{path.name}.removed")
            shutil.rmtree(nameless, ignore_errors=True)
            path = path.rename(nameless)
        shutil.rmtree(path)


def sweep(parent: Path) -> None:
    """Clears away what processes that died in `write_folder` or `remove` left in `parent`.

    Only for those who know that no other process is at work there.
    """
    for path in [*parent.glob(".*.unfinished"), *parent.glob(".*.removed")]:
        remove(path)
    for replaced in parent.glob(".*.replaced"):  # between the two renames of write_folder
        whole = parent / replaced.name.removeprefix(".").removesuffix(".replaced")
        remove(replaced) if whole.exists() else replaced.rename(whole)


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()

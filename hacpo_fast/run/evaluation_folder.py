"""The folder of an evaluation, looked at before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from hacpo_fast.errors import UserError
from hacpo_fast.run.place import check_new_folder

RESPONSES, SCORES, SETTINGS = "responses.jsonl", "scores.json", "settings.yaml"


def check_folder(folder: Path, resume: bool = False) -> None:
    """Raises UserError where the folder exists or cannot be made; to resume, where there is no evaluation in it."""
    begun = folder.is_dir() and (folder / SETTINGS).is_file()
    if not resume:
        check_new_folder("--output", folder, "or go on with the evaluation in it by --resume" if begun else "")
    elif not begun:
        raise UserError(f"--resume: there is no evaluation in {folder}: no {SETTINGS}; name its folder by --output")

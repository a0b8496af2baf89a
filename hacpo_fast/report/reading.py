"""What the folders of runs hold, read as far as it is there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hacpo_fast import yaml_text
from hacpo_fast.errors import UserError
from hacpo_fast.run.environment import read_environment
from hacpo_fast.run.jsonl import read_jsonl
from hacpo_fast.run.place import CONFIG_FILE
from hacpo_fast.run.rollout_log import ROLLOUTS_FILE
from hacpo_fast.run.telemetry import METRICS_FILE, read_metrics


@dataclass(frozen=True)
class Run:
    """A run's files; what an older or a broken run lacks is empty."""

    folder: Path
    name: str
    records: list[dict[str, Any]]
    rollouts: list[dict[str, Any]]
    config: dict[str, Any]
    environment: list[dict[str, Any]]
    finished: bool


class Table(NamedTuple):
    """A table made elsewhere."""

    title: str
    about: str
    columns: list[str]
    shares: list[str]
    """Columns to be written in percent."""
    rows: list[list[Any]]
    """Cells are numbers, texts, nothing, or [mean, half-width]."""


TABLE_FILE = "table.json"
"""What hacpo_fast.compare leaves in its folder."""
PLUS_MINUS = " ±"
DIFFERENCE = "both - reference"
"""Column of hacpo_fast.compare: empty in the rows of the reference, a method."""
ABOUT_COMPARISONS = "Means over seeds, ± half of the 95 % interval. Live: others' responses that the clip left. "
ABOUT_DIFFERENCES = "The difference is that from the method without one, seed by seed."


def read_sources(sources: Sequence[str | Path]) -> tuple[list[Run], list[Table]]:
    """Runs (folders) and tables (JSON files, or folders of comparisons), each in the order given.

    Raises:
        UserError: one of them is neither, or a run has no record yet.
    """
    folders, files = [], []
    for source in map(Path, sources):
        if source.suffix == ".json" and source.is_file():
            files.append(source)
        elif (source / TABLE_FILE).is_file() and not (source / METRICS_FILE).exists():
            files.append(source / TABLE_FILE)
        else:
            folders.append(source.parent if source.name == METRICS_FILE else source)
    names = short_names(folders) if folders else []
    runs = [_read_run(folder, name) for folder, name in zip(folders, names, strict=True)]
    return runs, [_read_table(file) for file in files]


def short_names(folders: Sequence[Path]) -> list[str]:
    """The ends of the paths that tell them apart: folder names, with as many of their parents as it takes."""
    parts = [folder.absolute().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"the same run is named twice: {', '.join(map(str, folders))}")


def _read_run(folder: Path, name: str) -> Run:
    if not (folder / METRICS_FILE).is_file():
        raise UserError(f"{folder} is not the folder of a run: {_why(folder)}")
    records = [record for record in read_metrics(folder) if "agents" in record or "validation" in record]
    if not records:
        raise UserError(f"{folder}: nothing to show, no step has ended yet")
    rollouts = folder / ROLLOUTS_FILE
    return Run(
        folder=folder,
        name=name,
        records=records,
        rollouts=_not_repeated([one for one in read_jsonl(rollouts) if "step" in one]) if rollouts.is_file() else [],
        config=_read_config(folder / CONFIG_FILE),
        environment=read_environment(folder),
        finished=(folder / "agents").is_dir(),
    )


def _why(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if not folder.is_dir():
        return "it is a file (only tables, .json, may be files)"
    inside = sorted(path.parent for path in folder.glob(f"*/{METRICS_FILE}"))
    if inside:
        return f"there are {len(inside)} in it, such as {inside[0]}"
    return f"it has no {METRICS_FILE}"


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = yaml_text.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, UserError):
        return {}
    return {name: part for name, part in config.items() if isinstance(part, dict)} if isinstance(config, dict) else {}


def _not_repeated(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A resumed run repeats the steps after its checkpoint; what it wrote later counts."""
    kept: list[dict[str, Any]] = []
    for sample in samples:
        if kept and sample["step"] < kept[-1]["step"]:
            kept = [old for old in kept if old["step"] < sample["step"]]
        kept.append(sample)
    return kept


def _read_table(path: Path) -> Table:
    """{"columns", "rows"}, or a list of rows that are objects, as hacpo_fast.compare writes it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error})") from error
    content = content if isinstance(content, dict) else {"rows": content}
    rows, title = content.get("rows"), content.get("title")
    if not isinstance(rows, list) or not rows:
        raise UserError(
            f'{path}: no table; {{"columns": [...], "rows": [[...], ...]}} or a list of objects is expected'
        )
    columns = content.get("columns")
    if columns is not None and not isinstance(columns, list):
        raise UserError(f"{path}: columns must be a list of names")
    columns = columns or list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
    rows = [[row.get(column) for column in columns] if isinstance(row, dict) else row for row in rows]
    if any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
        raise UserError(f"{path}: every row must have the table's {len(columns)} columns")
    compared = path.name == TABLE_FILE
    title = title or (path.absolute().parent.name if compared else path.stem)
    return _with_intervals(f"Comparison: {title}", [str(column) for column in columns], rows, compared)


def _with_intervals(title: str, columns: list[str], rows: list[list[Any]], compared: bool) -> Table:
    """A column "x" and its half-widths "x ±" become one, of cells [x, half-width].

    compared: by hacpo_fast.compare, where what has an interval is a share, and so is "live".
    """
    halves = {at: columns.index(name + PLUS_MINUS) for at, name in enumerate(columns) if name + PLUS_MINUS in columns}
    kept = [at for at in range(len(columns)) if at not in halves.values()]
    reference = _reference(columns, rows) if compared else None
    about = f"Δ {reference}: difference from {reference}, seed by seed." if reference else ABOUT_DIFFERENCES
    names = [f"Δ {reference}" if reference and column == DIFFERENCE else column for column in columns]
    return Table(
        title,
        ABOUT_COMPARISONS + about if compared else "",
        [names[at] for at in kept],
        [names[at] for at in kept if compared and (at in halves or columns[at] == "live")],
        [[_cell(row, at, halves.get(at)) for at in kept] for row in rows],
    )


def _reference(columns: list[str], rows: list[list[Any]]) -> str | None:
    """The one method that is never held against another; None where that is not certain."""
    if not {"method", DIFFERENCE} <= set(columns):
        return None
    method, difference = columns.index("method"), columns.index(DIFFERENCE)
    held = {str(row[method]) for row in rows if row[difference] is not None}
    alone = {str(row[method]) for row in rows} - held
    return alone.pop() if held and len(alone) == 1 else None


def _cell(row: list[Any], at: int, half: int | None) -> Any:
    return row[at] if half is None or row[half] is None else [row[at], row[half]]

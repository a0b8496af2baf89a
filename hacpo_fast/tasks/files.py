"""Rows of JSONL, JSON, CSV and Parquet files."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.names import instead_of


def rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, row) of every row in the file at `path`, whose name ends in .jsonl, .json, .csv or .parquet.

    Raises UserError, naming file and line, where there is nothing to read.
    """
    file = Path(path).expanduser()
    if file.suffix not in _READERS:
        raise UserError(f"{file}: the name of a file with problems ends in {', '.join(_READERS)}")
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: a folder or device, not a file with problems")
    if not file.is_file():
        folder = file.parent
        if not folder.is_dir():
            raise UserError(f"{file}: there is no folder {folder.resolve()}")
        others = sorted(other.name for other in folder.iterdir() if other.suffix in _READERS)
        raise UserError(f"{file}: no such file in {folder.resolve()}; {instead_of(file.name, others)}")
    return _READERS[file.suffix](file)


def _jsonl(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    # Bytes are split into lines before they are decoded: str.splitlines and text mode would also split at characters
    # that may stand inside a JSON string, and a decoding error could not name its line.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{file}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: not UTF-8 ({error})") from None
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: {_not_json(error)}") from None
            if not isinstance(row, dict):
                raise UserError(f"{where}: a {type(row).__name__}; every line must be an object like {{'prompt': ...}}")
            yield where, row


def _json(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A list of objects, or a single one. Lines of objects are often called .json too."""
    try:
        found = json.loads(file.read_bytes())
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: not UTF-8 ({error})") from None
    except (ValueError, RecursionError) as error:
        if getattr(error, "msg", None) == "Extra data":
            yield from _jsonl(file)
            return
        where = f"{file}, line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(file)
        raise UserError(f"{where}: {_not_json(error)}") from None
    rows = found if isinstance(found, list) else [found]
    for number, row in enumerate(rows, 1):
        where = f"{file}, item {number}" if isinstance(found, list) else str(file)
        if not isinstance(row, dict):
            raise UserError(f"{where}: a {type(row).__name__}; the file must hold objects like {{'prompt': ...}}")
        yield where, row


def _not_json(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}, column {error.colno})"
    if isinstance(error, RecursionError):
        return "not JSON (brackets within brackets, too deep to read)"
    return "not JSON that can be read (a number of more than 4300 digits)"


def _csv(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        try:
            for row in reader:
                if None in row:
                    raise UserError(f"{file}, line {reader.line_num}: more values than the first line has names")
                yield f"{file}, line {reader.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{file}, line {reader.line_num + 1}: not CSV in UTF-8 ({error})") from None


def _parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyarrow import ArrowInvalid, parquet

    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except (ArrowInvalid, OSError) as error:
        raise UserError(f"{file}: not a readable Parquet file ({error})") from None


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
SUFFIXES = tuple(_READERS)

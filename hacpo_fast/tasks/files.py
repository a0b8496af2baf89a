"""Rows of JSONL and Parquet files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.tasks.names import instead_of


def rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, row) of every row in the file at `path`, which ends in .jsonl or .parquet.

    Raises UserError, naming file and line, where there is nothing to read.
    """
    file = Path(path).expanduser()
    if file.suffix not in _READERS:
        raise UserError(f"{file}: the name of a file with problems ends in {' or '.join(_READERS)}")
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
            except json.JSONDecodeError as error:
                raise UserError(f"{where}: not JSON ({error.msg}, column {error.colno})") from None
            except RecursionError:
                raise UserError(f"{where}: not JSON (brackets within brackets, too deep to read)") from None
            if not isinstance(row, dict):
                raise UserError(f"{where}: a {type(row).__name__}; every line must be an object like {{'prompt': ...}}")
            yield where, row


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


_READERS = {".jsonl": _jsonl, ".parquet": _parquet}

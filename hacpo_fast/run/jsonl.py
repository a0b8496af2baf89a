"""Files of one JSON object per line that survive a crash and a resumed run."""

from __future__ import annotations

import json
import math
import mmap
import os
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError


class JsonlWriter:
    """Appends records, each written out at once: whoever reads along sees it, and a crash loses nothing before it."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _mend(path)
        self._file = path.open("ab", buffering=0)  # nothing is held back that a full disk could refuse later

    def write(self, record: dict[str, Any]) -> None:
        """Appends a line. Should the disk not take all of it, none of it stays."""
        # ASCII, with the rest as \u escapes: no lone surrogate can break the encoding, and printing the file raw in a
        # terminal cannot do harm, whatever a model wrote.
        line = (json.dumps(strict(record), allow_nan=False) + "\n").encode("ascii")
        size = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError:
            self._file.truncate(size)
            raise

    def position(self) -> int:
        """Bytes of the file, all of which have reached the disk."""
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def cut_back(path: Path, size: int) -> bool:
    """Shortens a file to its first `size` bytes; the rest is appended to abandoned-NAME beside it.

    Returns whether these are there and end a line. If not, somebody has removed lines since they were counted.
    """
    if not path.exists():
        return size == 0
    with path.open("r+b") as file:
        file.seek(max(0, size - 1))
        whole = size == 0 or file.read(1) == b"\n"
        file.seek(size)
        if rest := file.read():
            with path.with_name(f"abandoned-{path.name}").open("ab") as abandoned:
                abandoned.write(rest)
            file.truncate(size)
    return whole


def strict(value: Any) -> Any:
    """`value` as JSON knows it: NaN and infinity become None, scalars of numpy and torch plain numbers."""
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "item"):
        return strict(value.item())
    return value


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """All records of a file. A last line that is cut off (a crash, or a write going on) is left out."""
    lines = Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise UserError(f"{path}, line {number}: not JSON ({error})") from error
            continue
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: a {type(record).__name__}, no record")
        records.append(record)
    return records


def _mend(path: Path) -> None:
    """Cut off a last line that is torn or no JSON, and end a whole one, so that appending keeps the file valid."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:  # the file may be large, its end is not
            ended = content[-1:] == b"\n"
            start = content.rfind(b"\n", 0, len(content) - ended) + 1
            last = content[start:]
        if not last.strip():
            return
        try:
            json.loads(last)
        except (ValueError, RecursionError):
            file.truncate(start)
        else:
            if not ended:
                file.seek(0, 2)
                file.write(b"\n")

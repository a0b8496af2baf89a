"""How work on tokens x vocabulary is cut into blocks that fit."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


def even_split(total: int, largest: int) -> int:
    parts = -(-total // largest)
    return -(-total // parts)


def slices(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def tile_view(buffer: Tensor, rows: slice, columns: slice) -> Tensor:
    """The beginning of `buffer` as a contiguous tile. Reusing it spares a new allocation per tile."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    return buffer[: height * width].view(height, width)

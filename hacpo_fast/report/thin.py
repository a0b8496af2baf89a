"""Fewer points for a picture, without losing what stands out."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept_points(columns: Sequence[Sequence[float]], most: int) -> list[int]:
    """Positions of at most `most` points of curves that share their x values (`columns`: their y values).

    The points are cut into stretches of equal length; each keeps where every column is lowest and highest, so no peak
    is lost. The first and last point and number stay. A stretch without any number keeps one point: gaps stay gaps.
    """
    count = len(columns[0])
    if count <= most:
        return list(range(count))
    stretches = max((most - 4) // (2 * len(columns)), 1)
    numbers = [place for place in range(count) if math.isfinite(columns[0][place])]
    kept = {0, count - 1, *numbers[:1], *numbers[-1:]}
    for stretch in range(stretches):
        places = range(count * stretch // stretches, count * (stretch + 1) // stretches)
        for column in columns:
            known = [place for place in places if math.isfinite(column[place])]
            if known:
                kept |= {min(known, key=column.__getitem__), max(known, key=column.__getitem__)}
            else:
                kept.add(places[0])
    return sorted(kept)


def evenly(count: int, most: int) -> list[int]:
    """At most `most` of the positions 0 ... count-1, evenly spaced, the first and the last among them."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})

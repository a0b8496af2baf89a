"""The checkpoints of a run: folders step-1, step-2 ... in one place, and links to the latest and the best of them.

Which is the latest and which the best is read from the folders themselves, never from the links: these are for people.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.run.whole import damage, remove

STATE_FILE = "trainer.json"
"""In every checkpoint: what belongs to no single agent. "validation" in it: scores after that step, or null."""

FOLDER = "checkpoints"


def by_step(checkpoints: Path) -> dict[int, Path]:
    """Checkpoints of a run, the latest first."""
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


def score(validation: Mapping[str, Any] | None, metric: str) -> float | None:
    """`metric` ("greedy/accuracy": mean over the agents; "alice/greedy/accuracy") of one validation; None: not there.

    validation: agent -> sampling -> score -> value.
    """
    *agent, sampling, name = metric.split("/")
    if validation is None or any(one not in validation for one in agent):
        return None
    values = [validation[one].get(sampling, {}).get(name) for one in agent or validation]
    if not values or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        return None
    return math.fsum(values) / len(values)


def best(checkpoints: Path, metric: str) -> tuple[Path, float] | None:
    """The checkpoint with the highest score, the earliest of equal ones. None: no checkpoint has one."""
    scored = []
    for step, path in by_step(checkpoints).items():
        try:
            value = score(json.loads((path / STATE_FILE).read_text()).get("validation"), metric)
        except (OSError, ValueError, AttributeError, TypeError):  # damaged
            continue
        if value is not None:
            scored.append((value, -step, path))
    if not scored:
        return None
    value, _, path = max(scored)
    return path, value


def settle(checkpoints: Path, keep: int, metric: str | None) -> None:
    """Points the links `latest` and `best` at theirs and removes all but the latest `keep` and the best."""
    latest = list(by_step(checkpoints).values())[:keep]
    found = best(checkpoints, metric) if metric else None
    _point(checkpoints / "latest", latest[0] if latest else None)
    _point(checkpoints / "best", found[0] if found else None)
    for path in by_step(checkpoints).values():
        if path not in latest and (found is None or path != found[0]):
            remove(path)


def abandon_later(checkpoints: Path, step: int) -> None:
    """Puts checkpoints after `step` out of the way, under names that nothing goes on from."""
    for later, path in by_step(checkpoints).items():
        if later > step:
            abandoned = path.with_name(f"abandoned-{path.name}")
            remove(abandoned)
            path.rename(abandoned)


def _point(link: Path, target: Path | None) -> None:
    if target is None:
        if link.is_symlink():
            link.unlink()
    elif not link.is_symlink() or os.readlink(link) != target.name:
        fresh = link.with_name(f".{link.name}.unfinished")
        remove(fresh)
        if not link.is_symlink():
            remove(link)  # a copy of the run in which links have become what they point to
        try:
            fresh.symlink_to(target.name)
            fresh.replace(link)
        except OSError:  # some file systems have no links, and nothing depends on these
            link.unlink(missing_ok=True)

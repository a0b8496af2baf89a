"""The responses that the page holds: some of a long run, all of a short one."""

from __future__ import annotations

from typing import Any

from hacpo_fast.report.reading import Run
from hacpo_fast.report.thin import evenly

SAMPLES = 500
"""Most responses of all runs together."""
CHARACTERS = 700_000
"""Most characters of all their texts together; long ones are cut for it, and say so."""
LONGEST, SHORTEST = 6000, 400
"""Limits of the length at which a text is cut."""


def embedded_samples(run: Run, runs: int) -> dict[str, Any]:
    """{"total", "items"}: responses of evenly spaced steps, whole steps as far as that is possible.

    `runs` share the space. A cut text becomes [text, characters left out].
    """
    by_step: dict[int, list[dict[str, Any]]] = {}
    for sample in run.rollouts:
        by_step.setdefault(sample["step"], []).append(sample)
    most = max(SAMPLES // runs, 1)
    steps = list(by_step)
    per_step = max(map(len, by_step.values()), default=1)
    chosen = [sample for at in evenly(len(steps), max(most // per_step, 1)) for sample in by_step[steps[at]]][-most:]
    longest = min(LONGEST, max(SHORTEST, CHARACTERS // runs // max(2 * len(chosen), 1)))
    return {"total": len(run.rollouts), "items": [_item(sample, longest) for sample in chosen]}


def _item(sample: dict[str, Any], longest: int) -> dict[str, Any]:
    texts = {name: _cut(str(sample.get(name) or ""), longest) for name in ("prompt", "response")}
    error = sample.get("error")
    return {
        "step": sample["step"],
        "agent": str(sample.get("agent", "")),
        "reward": sample.get("reward"),
        "error": None if error is None else _cut(str(error), 400),
        "advantages": sample.get("advantages") or {},
        "truncated": bool(sample.get("truncated")),
        "dropped": bool(sample.get("dropped")),
        **texts,
    }


def _cut(text: str, longest: int) -> str | list[Any]:
    return text if len(text) <= longest else [text[:longest], len(text) - longest]

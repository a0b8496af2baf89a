"""Folders of made-up runs, as a trainer would leave them, with what can go wrong in them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import yaml

from hacpo_fast import config_file

NAMES = ("ada", "bea", "cy", "dan", "eve", "fay", "gus")

HOSTILE = (
    "</script><script>window.harmed = 1</script><!-- <img src=x onerror='window.harmed = 1'> {{script}} &amp; "
    "\u2028\u2029\x00\x1b[31m\u202egnp.exe\u200b \ud800 \U0001f600 \u6570\u5b66 \\u003c ]]> \"'`"
)
"""Text that tries to leave every quotation it may be put into."""


def step_record(step: int, agents: int, draw: random.Random, sharing: bool = True) -> dict[str, Any]:
    """One step with every number that the trainer is known to write."""
    record = {
        "step": step,
        "time": {"rollout": 1.0 + draw.random(), "verify": 0.1, "learn": 1.5, "total": 3.0},
        "prompts": 32,
        "no_signal_share": draw.random(),
        "agents": {},
    }
    for index, name in enumerate(NAMES[:agents]):
        reward = draw.random()
        own = {
            "own_ratio_mean": 1 + draw.gauss(0, 1e-4),
            "own_ratio_std": 3e-4,
            "own_clip_low": draw.random(),
            "own_clip_high": 0.0,
        }
        cross = {"cross_ratio_mean": 0.9, "cross_ratio_std": 0.1 * draw.random(), "cross_clip_low": draw.random()}
        cross |= {"cross_clip_high": draw.random(), "cross_live": draw.random()}
        record["agents"][name] = {
            "updates": (4 + index) * step, "skipped_updates": 0, "reward": reward, "accuracy": reward,
            "capability": draw.random(), "no_signal_share": draw.random(), "reward_errors": draw.randrange(3),
            "response_tokens": 100 * draw.random(), "truncated_share": draw.random(), "entropy": draw.random(),
            "lr": 1e-6, "unscorable_share": 0.0, "live_share": draw.random(), "grad_norm": draw.random(),
            "generated_tokens_per_second": 1e4 * draw.random(), "trained_tokens_per_second": 3e4 * draw.random(),
            "loss": draw.gauss(0, 1e-3), "kl": draw.random(), "mismatch": 1e-7 * draw.random(),
            "importance_weight": draw.random(),
            **own, **(cross if sharing else {}),
        }  # fmt: skip
    return record


def validation_record(step: int, agents: int, draw: random.Random) -> dict[str, Any]:
    scores = {
        name: {
            "greedy": {"accuracy": (value := draw.random()), "reward": value, "problems": 50},
            "sampled": {"avg@4": draw.random(), "pass@1": draw.random(), "pass@4": draw.random(), "problems": 50},
        }
        for name in NAMES[:agents]
    }
    return {"step": step, "validation": scores, "updates": {}, "time": {"validate": 0.5, "total": 0.5}}


def records(steps: int = 6, agents: int = 2, sharing: bool = True, validate_every: int = 2) -> list[dict[str, Any]]:
    draw = random.Random(7)
    made = [validation_record(0, agents, draw)] if validate_every else []
    for step in range(1, steps + 1):
        made.append(step_record(step, agents, draw, sharing))
        if validate_every and step % validate_every == 0:
            made.append(validation_record(step, agents, draw))
    return made


def samples(steps: int, agents: int, text: str = "7+5=12;A12", each: int = 4) -> list[dict[str, Any]]:
    """`each` responses of every agent and step: rewards 1, 0, 0.5, and one whose check failed."""
    names = NAMES[:agents]
    kinds = ((1.0, None), (0.0, None), (0.5, None), (0.0, "the check raised"))
    return [
        {
            "step": step, "agent": name, "prompt": f"{step} {text}", "response": text, "reward": kinds[at % 4][0],
            "error": kinds[at % 4][1], "advantages": dict.fromkeys(names, 0.4 - at), "truncated": at == 1,
        }
        for step in range(1, steps + 1)
        for name in names
        for at in range(each)
    ]  # fmt: skip


def settings(agents: int = 2, **changes: Any) -> dict[str, Any]:
    """A config.yaml as runs write it."""
    plain = {
        "task": {"kind": "reasoning_gym", "name": "chain_sum"},
        "agents": {name: {"model": name} for name in NAMES[:agents]},
    }
    return config_file.validate(plain | changes).model_dump(mode="json")


def write(
    folder: Path,
    metrics: list[dict[str, Any]],
    rollouts: list[dict[str, Any]] = (),
    config: dict[str, Any] | None = None,
    environment: Any = None,
) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(_plain(record)) + "\n" for record in metrics))
    if rollouts:
        (folder / "rollouts.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in rollouts))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

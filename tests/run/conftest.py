"""A made-up run: the records that a trainer would log, with plausible curves."""

from __future__ import annotations

import math
import random

import pytest

NAMES = ("small", "medium", "large", "instruct")


def fake_run(agents=2, steps=12, sharing=True, validate_every=4, seed=0):
    """Records in the order in which a trainer logs them."""
    draw = random.Random(seed)
    names = NAMES[:agents]
    records = [_validation(0, names, draw, steps)] if validate_every else []
    for step in range(1, steps + 1):
        records.append(_step(step, names, draw, steps, sharing, bool(validate_every) and step % validate_every == 0))
        if validate_every and step % validate_every == 0:
            records.append(_validation(step, names, draw, steps))
    return records


def _skill(index, step, steps):
    return 0.15 + 0.12 * index + 0.35 * (1 - math.exp(-3 * step / max(steps, 1)))


def _step(step, names, draw, steps, sharing, validated):
    time = {
        "rollout": draw.uniform(9, 13),
        "verify": draw.uniform(0.2, 0.5),
        "recompute": draw.uniform(1.2, 1.6),
        "learn": draw.uniform(6, 8),
        "validate": draw.uniform(5, 7) if validated else 0.0,
    }
    time["total"] = sum(time.values()) + draw.uniform(0.1, 0.4)
    record = {"step": step, "time": time, "prompts": 32, "no_signal_share": draw.uniform(0.05, 0.3), "agents": {}}
    for index, name in enumerate(names):
        reward = min(max(_skill(index, step, steps) + draw.gauss(0, 0.03), 0), 1)
        metrics = {
            "updates": (6 if sharing else 4) * step,
            "reward": reward,
            "accuracy": reward,
            "capability": _skill(index, step, steps),
            "own_ratio_mean": 1 + draw.gauss(0, 5e-5),
            "own_ratio_std": abs(draw.gauss(4e-4, 1e-4)),
            "own_clip_low": draw.uniform(0.1, 0.2),
            "own_clip_high": draw.uniform(0.08, 0.15),
            "entropy": 0.9 - 0.1 * index - 0.3 * step / max(steps, 1) + draw.gauss(0, 0.01),
            "grad_norm": abs(draw.gauss(0.4, 0.1)),
            "lr": 1e-6,
            "loss": draw.gauss(0, 1e-3),
            "response_tokens": 240 + 150 * index + 90 * step / steps + draw.gauss(0, 8),
            "truncated_share": draw.uniform(0, 0.05),
            "generated_tokens_per_second": draw.uniform(8000, 12500),
            "trained_tokens_per_second": draw.uniform(30000, 45000),
            "mismatch": abs(draw.gauss(2e-3, 5e-4)),
            "reward_errors": 0,
            "no_signal_share": draw.uniform(0.1, 0.4),
            "skipped_updates": 0,
        }
        if sharing:
            metrics |= {
                "cross_ratio_mean": 0.86 + 0.05 * index + draw.gauss(0, 0.01),
                "cross_ratio_std": abs(draw.gauss(0.08, 0.01)),
                "cross_clip_low": draw.uniform(0.2, 0.3) - 0.03 * index,
                "cross_clip_high": draw.uniform(0.05, 0.1),
                "cross_live": draw.uniform(0.55, 0.65) + 0.03 * index,
            }
        record["agents"][name] = metrics
    return record


def _validation(step, names, draw, steps):
    results = {}
    for index, name in enumerate(names):
        accuracy = _skill(index, step, steps) + draw.gauss(0, 0.01)
        sampled = {
            "avg@8": accuracy - 0.03,
            "pass@1": accuracy - 0.03,
            "pass@8": accuracy + 0.2,
            "best@8": accuracy + 0.2,
        }
        results[name] = {
            "greedy": {"accuracy": accuracy, "reward": accuracy, "problems": 200},
            "sampled": sampled | {"problems": 200},
        }
    return {"step": step, "validation": results}


@pytest.fixture
def make_run():
    return fake_run

"""How the cost of hacpo_fast's step grows with agents, response length and vocabulary, phase by phase."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from step_ours import Ours
from step_work import STEPS, Cost, Work, word_agent, word_task

SHAPE = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2}


class Point(NamedTuple):
    """2 prompts, `samples` responses of each agent to each, all of them `length` tokens long; hacpo, one update."""

    agents: int = 2
    length: int = 64
    vocabulary: int = 2048
    samples: int = 8


AXES = {
    "agents": [Point(agents=n) for n in (1, 2, 3, 4)],
    "length": [Point(length=n) for n in (32, 64, 128, 256)],
    "vocabulary": [Point(vocabulary=n) for n in (2048, 8192, 32768)],
}


def contestant(point: Point, folder: Path) -> Ours:
    agents = {
        f"a{i}": word_agent(folder / f"a{i}", "llama", SHAPE, point.vocabulary, seed=i) for i in range(point.agents)
    }
    settings = word_task(folder, agents, prompts=2, samples=point.samples, length=point.length, updates=1)
    settings["training"]["minibatch_responses"] = 2 * point.samples * point.agents
    return Ours(Work(f"{point}", settings, micro_batch=1), folder / "run", "hacpo")


def fastest(costs: list[Cost]) -> Cost:
    """The step of `costs` with the smallest seconds in each phase; equal tokens."""
    least = {phase: min(cost.seconds[phase] for cost in costs) for phase in costs[0].seconds}
    return Cost(costs[-1].generated, costs[-1].trained, costs[-1].computed, least)


def per_token(cost: Cost) -> dict[str, float]:
    """Microseconds of each phase per token it handles: generated ones, or trained ones where it learns."""
    learn = cost.seconds["learn"] / cost.trained
    rollout = cost.seconds["rollout"] / cost.generated
    rest = (cost.seconds["total"] - cost.seconds["learn"] - cost.seconds["rollout"]) / cost.generated
    return {"rollout": rollout * 1e6, "learn": learn * 1e6, "rest": rest * 1e6}


def exponents(axis: str, rows: list[tuple[Point, Cost]]) -> dict[str, float]:
    """p in seconds per token ~ x^p, x being what varies on `axis`: the slope of the logarithms, by least squares.

    0: the phase grows as its tokens do.
    """
    x = np.log([getattr(point, axis) for point, _ in rows])
    costs = [per_token(cost) for _, cost in rows]
    return {phase: float(np.polyfit(x, np.log([cost[phase] for cost in costs]), 1)[0]) for phase in costs[0]}


def measure(axis: str, folder: Path, rounds: int = 3) -> list[tuple[Point, Cost]]:
    """Every point of the axis: the fastest of `rounds` steps after one to warm up."""
    assert rounds < STEPS
    rows = []
    for point in AXES[axis]:
        ours = contestant(point, folder / f"{axis}-{getattr(point, axis)}")
        ours.step()
        rows.append((point, fastest([ours.step() for _ in range(rounds)])))
        ours.close()
    return rows

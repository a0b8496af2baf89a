"""One training step: hacpo_fast beside TRL's GRPOTrainer and a page of transformers code, same work, one run.

    pytest bench/bench_step.py                       as benchmarks
    python bench/bench_step.py [--demo FOLDER]       as the tables of docs/performance.md

The quickstart's agents are taken from demo/ (`python -m hacpo_fast.demo demo`) or from the folder in HACPO_DEMO. Peers
train each agent on its own answers (GSPO); hacpo_fast does that as well (gspo), and trains each on all answers (hacpo).
"full" is the whole step; in "learn" all get the same recorded answers, so that nothing but what follows them differs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import step_growth
import step_trl
import torch
from step_ours import Ours, record
from step_plain import Plain
from step_trl import Trl
from step_work import ROOT, STEPS, Cost, Recorded, Work, clock, quickstart, two_random_agents

ROUNDS = 3
DEMO = Path(os.environ.get("HACPO_DEMO", ROOT / "demo"))
NO_DEMO = f"no agents in {DEMO}: python -m hacpo_fast.demo demo, or set HACPO_DEMO"
MAKERS: dict[str, Callable] = {
    "hacpo_fast gspo": lambda work, folder, recorded, **changes: Ours(work, folder, "gspo", recorded, **changes),
    "hacpo_fast hacpo": lambda work, folder, recorded, **changes: Ours(work, folder, "hacpo", recorded, **changes),
    "TRL": Trl,
    "transformers": Plain,
}
WORKS: dict[str, Callable[[Path], Work]] = {
    "quickstart": lambda _: quickstart(DEMO),
    "random": two_random_agents,
}


@pytest.fixture(scope="module", params=WORKS)
def work(request, tmp_path_factory) -> Work:
    torch.set_num_threads(1)
    if request.param == "quickstart" and not (DEMO / "bob").is_dir():
        pytest.skip(NO_DEMO)
    return WORKS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def recorded(work, tmp_path_factory) -> Recorded:
    return record(work, tmp_path_factory.mktemp("recorded"), steps=ROUNDS + 1)


@pytest.fixture(params=MAKERS)
def name(request) -> str:
    if request.param == "TRL" and step_trl.MISSING:
        pytest.skip(step_trl.MISSING)
    return request.param


def bench_same_gradient(work, recorded, tmp_path):
    """All contestants get the same tokens and compute the same gradient from the same answers."""
    single = {"training__minibatch_responses": _responses(work)}
    names = ["hacpo_fast gspo", "transformers", *([] if step_trl.MISSING else ["TRL"])]
    costs, gradients = {}, {}
    for name in names:
        contestant = MAKERS[name](work, tmp_path / name, recorded, **single)
        costs[name] = contestant.step()
        gradients[name] = contestant.gradients()
        contestant.close()
    for name in names[1:]:
        assert costs[name].trained == costs["hacpo_fast gspo"].trained, name
        assert costs[name].generated == costs["hacpo_fast gspo"].generated, name
        for agent, ours in gradients["hacpo_fast gspo"].items():
            assert ours.keys() == gradients[name][agent].keys(), name
            difference = sum((gradients[name][agent][key] - ours[key]).square().sum() for key in ours)
            size = sum(gradient.square().sum() for gradient in ours.values())
            assert difference < size * 1e-6, f"{name}: {agent} learns something else"


@pytest.mark.benchmark(timer=clock)
@pytest.mark.parametrize("kind", ["full", "learn"])
def bench_step(benchmark, work, recorded, name, kind, tmp_path):
    benchmark.group = f"{work.name}: {kind} step"
    contestant = MAKERS[name](work, tmp_path, recorded if kind == "learn" else None, **_frozen(kind))
    costs = [contestant.step()]
    benchmark.pedantic(lambda: costs.append(contestant.step()), rounds=ROUNDS)
    contestant.close()
    benchmark.extra_info.update(_summary(costs[1:]))


@pytest.mark.benchmark(timer=clock)
@pytest.mark.parametrize(
    "name", [f"{axis} {getattr(p, axis)}" for axis in step_growth.AXES for p in step_growth.AXES[axis]]
)
def bench_growth(benchmark, name, tmp_path):
    torch.set_num_threads(1)
    axis, value = name.split()
    benchmark.group = f"growth with {axis}"
    point = next(point for point in step_growth.AXES[axis] if getattr(point, axis) == int(value))
    ours = step_growth.contestant(point, tmp_path)
    costs = [ours.step()]
    benchmark.pedantic(lambda: costs.append(ours.step()), rounds=ROUNDS)
    ours.close()
    microseconds = step_growth.per_token(step_growth.fastest(costs[1:]))
    benchmark.extra_info.update({f"us_per_token_{phase}": round(value, 2) for phase, value in microseconds.items()})


def _responses(work: Work) -> int:
    rollout = work.prepared().config.rollout
    return rollout.prompts_per_step * rollout.samples_per_prompt


def _frozen(kind: str) -> dict[str, float]:
    """Recorded answers are those of the first weights: these must not go far."""
    return {"training__lr": 1e-7} if kind == "learn" else {}


def _summary(costs: list[Cost]) -> dict[str, float]:
    """Tokens per second are over all steps, since their lengths differ."""
    seconds = sum(cost.seconds["total"] for cost in costs)
    generated, trained, computed = (sum(getattr(c, n) for c in costs) for n in ("generated", "trained", "computed"))
    return {
        "generated_per_second": round(generated / seconds),
        "trained_per_second": round(trained / seconds),
        "trained_tokens": round(trained / len(costs)),
        "computed_tokens": round(computed / len(costs)),
        **{
            f"seconds_{phase}": round(statistics.median(c.seconds[phase] for c in costs), 4)
            for phase in costs[0].seconds
        },
    }


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables. Contestants take turns, so that what disturbs the machine disturbs all of them."""
    global DEMO
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, default=DEMO, help="folder with the quickstart's agents")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each contestant that count")
    chosen = parser.parse_args(arguments)
    if chosen.rounds >= STEPS:
        parser.error(f"--rounds must be below {STEPS}")
    DEMO = chosen.demo
    _quiet()
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKS:
            if name == "quickstart" and not (DEMO / "bob").is_dir():
                print(f"quickstart left out; {NO_DEMO}\n")
                continue
            _print_steps(WORKS[name](Path(folder, name)), Path(folder), chosen.rounds)
        for axis in step_growth.AXES:
            _print_growth(axis, Path(folder), chosen.rounds)


def _print_steps(work: Work, folder: Path, rounds: int) -> None:
    recorded = record(work, folder / "recorded", rounds + 1)
    for kind in ("full", "learn"):
        contestants = {}
        for name, make in MAKERS.items():
            if name == "TRL" and step_trl.MISSING:
                print(f"TRL left out: {step_trl.MISSING}\n")
                continue
            answers = {key: list(value) for key, value in recorded.items()} if kind == "learn" else None
            contestants[name] = make(work, folder / kind / name, answers, **_frozen(kind))
        costs: dict[str, list[Cost]] = {name: [] for name in contestants}
        for _ in range(rounds + 1):
            for name, contestant in contestants.items():
                costs[name].append(contestant.step())
        for contestant in contestants.values():
            contestant.close()
        summaries = {name: _summary(steps[1:]) for name, steps in costs.items()}
        print(f"\n{work.name}, {kind} step, CPU seconds (median of {rounds})\n")
        columns = "contestant|s/step|rollout s|learn s|generated/s|trained/s|trained tokens|computed|us/trained token"
        print("| " + columns.replace("|", " | ") + " |\n" + "|---" * 9 + "|")
        for name, row in summaries.items():
            total = sum(cost.seconds["total"] for cost in costs[name][1:])
            trained = sum(cost.trained for cost in costs[name][1:])
            print(
                f"| {name} | {row['seconds_total']:.3f} | {row.get('seconds_rollout', 0):.3f} "
                f"| {row['seconds_learn']:.3f} "
                f"| {row['generated_per_second']} | {row['trained_per_second']} | {row['trained_tokens']} "
                f"| {row['computed_tokens']} | {total / trained * 1e6:.1f} |",
                flush=True,
            )


def _print_growth(axis: str, folder: Path, rounds: int) -> None:
    rows = step_growth.measure(axis, folder, rounds)
    print(f"\ngrowth with {axis}: CPU microseconds per token of each phase\n")
    print(f"| {axis} | generated | trained | s/step | rollout | learn | rest |\n" + "|---" * 7 + "|")
    for point, cost in rows:
        phases = " | ".join(f"{value:.1f}" for value in step_growth.per_token(cost).values())
        seconds = cost.seconds["total"]
        print(f"| {getattr(point, axis)} | {cost.generated} | {cost.trained} | {seconds:.3f} | {phases} |")
    found = " | ".join(f"{value:+.2f}" for value in step_growth.exponents(axis, rows).values())
    print(f"| exponent | | | | {found} |", flush=True)


def _quiet() -> None:
    from transformers.utils import logging

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())

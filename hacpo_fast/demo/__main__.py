"""python -m hacpo_fast.demo [OUT] [--seed N] [--task NAME] [--force]"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hacpo_fast.command_line import exit_status
from hacpo_fast.demo.folder import Report, finished
from hacpo_fast.demo.pair import Tell, build_agents
from hacpo_fast.demo.recipe import AGENTS, AgentRecipe
from hacpo_fast.demo.worked import TASKS

LINE_EVERY = 50
"""Steps between two lines of progress where the output is no terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.demo",
        description="Makes two tiny agents, OUT/alice and OUT/bob, that do sums badly and can learn from each other. "
        "They differ in size, architecture and tokenizer. Takes two or three minutes on two CPU cores, and needs no "
        "network.",
        epilog="Train them with: python -m hacpo_fast.train configs/quickstart.yaml",
    )
    parser.add_argument("out", metavar="OUT", nargs="?", default=Path("demo"), type=Path, help="folder (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="same seed and machine, same weights (default: 0)")
    parser.add_argument("--task", choices=sorted(TASKS), default="chain_sum", help="what they do (default: chain_sum)")
    parser.add_argument("--force", action="store_true", help="make them again where they exist")
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: make(chosen.out, chosen.seed, chosen.task, chosen.force))


def make(out: Path, seed: int, task: str, force: bool) -> int:
    """Makes those of the agents that `out` lacks, and prints how good they are."""
    console = Console()
    reports = {recipe: finished(out / recipe.name, recipe, task, seed, force) for recipe in AGENTS}
    missing = [recipe for recipe, report in reports.items() if report is None]
    if len(missing) < len(AGENTS):
        there = ", ".join(str(out / recipe.name) for recipe in AGENTS if recipe not in missing)
        console.print(f"already there: {there} (--force makes them again)", highlight=False)
    if missing:
        reports |= zip(missing, _build(missing, task, seed, out, console), strict=True)
    console.print(_table(reports))
    return 0


def _build(recipes: list[AgentRecipe], task: str, seed: int, out: Path, console: Console) -> list[Report]:
    if not console.file.isatty():  # rich itself takes FORCE_COLOR, which CI systems set, for a terminal
        console.print(f"making {' and '.join(recipe.name for recipe in recipes)}", highlight=False)
        return build_agents(recipes, task, seed, out, _lines(console))
    columns = (TextColumn("{task.fields[agent]}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[doing]}"))
    with Progress(*columns, console=console) as progress:
        bars = {
            recipe: progress.add_task(
                "", total=recipe.skill_pace.steps + recipe.habit_pace.steps, agent=recipe.name, doing="starting"
            )
            for recipe in recipes
        }

        def tell(recipe: AgentRecipe, step: int, doing: str) -> None:
            progress.update(bars[recipe], completed=step, doing=doing)

        reports = build_agents(recipes, task, seed, out, tell)
        for bar in bars.values():
            progress.update(bar, doing="done")
    return reports


def _lines(console: Console) -> Tell:
    """Tells of progress by a line now and then, for pipes and logs, where bars appear when all is over."""

    def tell(recipe: AgentRecipe, step: int, doing: str) -> None:
        if step % LINE_EVERY == 0:
            steps = recipe.skill_pace.steps + recipe.habit_pace.steps
            console.print(f"{recipe.name}: step {step} of at most {steps}, {doing}", highlight=False, soft_wrap=True)

    return tell


def _table(reports: dict[AgentRecipe, Report]) -> Table:
    table = Table(title="Accuracy on sums held out", title_justify="left")
    table.add_column("agent")
    for heading in ("parameters", "sampled", "greedy", "greedy, before bad habits", "seconds"):
        table.add_column(heading, justify="right")
    for recipe, report in reports.items():
        shares = (report.sampled, report.greedy, report.clean_greedy)
        table.add_row(
            recipe.name, f"{report.parameters:,}", *(f"{share:.1%}" for share in shares), f"{report.seconds:.0f}"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())

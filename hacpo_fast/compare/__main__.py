"""python -m hacpo_fast.compare PLAN [--output DIR] [--workers N] [--quick] [--table] [--into FILE]"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hacpo_fast.command_line import exit_status
from hacpo_fast.compare import table
from hacpo_fast.compare.cell import is_finished, result_of, run_cell
from hacpo_fast.compare.plan import Cell, Plan
from hacpo_fast.compare.runner import Job, run_jobs
from hacpo_fast.compare.warm_starts import teach_habits, teach_skill
from hacpo_fast.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input or failed cells, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.compare",
        description="Trains pairs of tiny agents with several methods and seeds, and writes tables of how good they "
        "became. What is finished is kept: the same command goes on where it was stopped.",
    )
    parser.add_argument("plan", metavar="PLAN", type=Path, help="YAML file, for example configs/comparison/cpu.yaml")
    parser.add_argument("--output", type=Path, help="folder of results (default: runs/comparison/<name of PLAN>)")
    parser.add_argument(
        "--agents", type=Path, help="folder of the agents, shared by several plans (default: OUTPUT/agents)"
    )
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count(), help="processes of one thread (default: all cores)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="two steps of two methods: shows that everything works, in about a minute"
    )
    parser.add_argument("--table", action="store_true", help="run nothing, make the tables of what there is")
    parser.add_argument(
        "--into", metavar="FILE", type=Path, action="append", default=[],
        help="put the tables into this document too, between its lines <!-- PLAN --> and <!-- end of PLAN --> with the "
        "name of PLAN, and a short one of all pairs at PLAN summary; may be given again",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: _compare(chosen))


def _compare(chosen: argparse.Namespace) -> int:
    plan = Plan.load(chosen.plan)
    if chosen.quick:
        plan = plan.quick()
    if chosen.workers < 1:
        raise UserError("--workers: at least one process is needed")
    output = chosen.output or Path("runs/comparison") / (chosen.plan.stem + ("-quick" if chosen.quick else ""))
    agents, cells = chosen.agents or output / "agents", output / "cells"
    name = chosen.plan.stem
    for document in chosen.into:
        table.check_document(document, (name, f"{name} summary"))
    cells.mkdir(parents=True, exist_ok=True)
    console = Console()
    wanted = plan.cells(agents)
    if not chosen.table:
        _run(wanted, agents, cells, chosen.workers, console)
    finished = [result for cell in wanted if (result := result_of(cell, cells)) is not None]
    shown = (list(plan.pairs), list(plan.methods), plan.reference)
    text = table.write(output, table.rows(finished, *shown), plan.reference)
    for document in chosen.into:
        table.replace_in(document, {name: text, f"{name} summary": table.summary(finished, *shown)})
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    if chosen.quick:
        console.print(
            "these numbers mean nothing: agents that were hardly taught made two steps, to show that everything works",
            style="yellow",
        )
    console.print(
        f"{len(finished)} of {len(wanted)} cells; table.md, table.csv and table.json are in {output}", markup=False
    )
    return 0


def _run(wanted: Sequence[Cell], agents: Path, cells: Path, workers: int, console: Console) -> None:
    stages: list[list[Job]] = []
    planned: set[str] = {folder.name for folder in agents.glob("*")}
    for _, of_a_seed in groupby((cell for cell in wanted if not is_finished(cell, cells)), lambda cell: cell.seed):
        stages += _stages(list(of_a_seed), planned, agents, cells)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("jobs", total=sum(map(len, stages)))

        def done(job: Job) -> None:
            progress.advance(bar)
            progress.console.print(job.label, markup=False, highlight=False, soft_wrap=True)

        run_jobs(stages, workers, done)


def _stages(of_a_seed: Sequence[Cell], planned: set[str], agents: Path, cells: Path) -> list[list[Job]]:
    """The agents that the cells need and that are not `planned` yet, which they are from here on; then the cells."""
    starts = {start.folder: start for cell in of_a_seed for start in cell.warm_starts.values()}
    needed = [start for folder, start in starts.items() if folder not in planned]
    skills = {start.skilled_folder: start for start in needed if start.skilled_folder not in planned}
    planned |= skills.keys() | starts.keys()
    return [
        [Job(f"skill of {folder}", teach_skill, (start, agents)) for folder, start in skills.items()],
        [Job(f"habits of {start.folder}", teach_habits, (start, agents)) for start in needed],
        [Job(f"{cell.pair}, {cell.method}, seed {cell.seed}", run_cell, (cell, cells)) for cell in of_a_seed],
    ]


if __name__ == "__main__":
    sys.exit(main())

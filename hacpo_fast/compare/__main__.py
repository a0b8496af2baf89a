"""python -m hacpo_fast.compare PLAN [--output DIR] [--workers N] [--quick] [--table] [--into FILE]"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hacpo_fast.command_line import exit_status
from hacpo_fast.compare import table
from hacpo_fast.compare.cell import is_finished, run_cell
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
    parser.add_argument("--quick", action="store_true", help="two steps of two methods: shows that everything works")
    parser.add_argument("--table", action="store_true", help="run nothing, make the tables of what there is")
    parser.add_argument(
        "--into", metavar="FILE", type=Path, help="put the tables into this document too, at their marks"
    )
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
    cells.mkdir(parents=True, exist_ok=True)
    console = Console()
    wanted = plan.cells(agents)
    if not chosen.table:
        _run(wanted, agents, cells, chosen.workers, console)
    finished = [result for cell, result in _results(wanted, cells)]
    text = table.write(
        output, table.rows(finished, list(plan.pairs), list(plan.methods), plan.reference), plan.reference
    )
    if chosen.into:
        table.replace_in(chosen.into, chosen.plan.stem, text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{len(finished)} of {len(wanted)} cells; table.md, table.csv and table.json are in {output}", markup=False
    )
    return 0


def _results(wanted: Sequence[Cell], cells: Path):
    """(cell, result) of those that are finished."""
    known = {(result["pair"], result["method"], result["seed"]): result for result in table.read_cells(cells)}
    return [(cell, known[cell.pair, cell.method, cell.seed]) for cell in wanted if is_finished(cell, cells)]


def _run(wanted: Sequence[Cell], agents: Path, cells: Path, workers: int, console: Console) -> None:
    open_cells = [cell for cell in wanted if not is_finished(cell, cells)]
    needed = {start.folder: start for cell in open_cells for start in cell.warm_starts.values()}
    needed = {folder: start for folder, start in needed.items() if not (agents / folder).is_dir()}
    skills = {start.skilled_folder: start for start in needed.values()}
    skills = {folder: start for folder, start in skills.items() if not (agents / folder).is_dir()}
    stages = [
        [Job(f"skill {folder}", teach_skill, (start, agents)) for folder, start in skills.items()],
        [Job(f"habits {folder}", teach_habits, (start, agents)) for folder, start in needed.items()],
        [Job(f"{cell.pair}, {cell.method}, seed {cell.seed}", run_cell, (cell, cells)) for cell in open_cells],
    ]
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("jobs", total=sum(map(len, stages)))

        def done(job: Job) -> None:
            progress.advance(bar)
            progress.console.print(job.label, markup=False, highlight=False, soft_wrap=True)

        run_jobs(stages, workers, done)


if __name__ == "__main__":
    sys.exit(main())

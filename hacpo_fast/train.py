"""python -m hacpo_fast.train CONFIG [section.key=value ...]"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hacpo_fast import config_file
from hacpo_fast.command_line import exit_status
from hacpo_fast.config import Config
from hacpo_fast.run.place import Place
from hacpo_fast.run.signals import STOPPED
from hacpo_fast.run.text import message, printable
from hacpo_fast.sources import check_sources


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped on request."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.train",
        description="Trains language models that learn from each other's verified answers (HACPO, arXiv 2603.02604).",
        epilog="settings (as section.key=value, or in CONFIG):\n\n" + config_file.help_text(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file, for example configs/quickstart.yaml")
    parser.add_argument(
        "overrides", metavar="section.key=value", nargs="*", default=[], help="settings in place of CONFIG's"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, load no weights")
    chosen = parser.parse_intermixed_args(arguments)
    return exit_status(lambda: _train(chosen.config, chosen.overrides, chosen.dry_run))


def _train(path: str, overrides: Sequence[str], dry_run: bool) -> int:
    config = config_file.load(path, overrides)
    place = Place.choose(config, f"{Path(path).stem[:100]}-{config.algorithm.name}")
    return run(config, place, dry_run, [path, *overrides])


def run(config: Config, place: Place, dry_run: bool = False, arguments: Sequence[str] = ("CONFIG",)) -> int:
    """Checks everything, prints the plan, trains and leaves the results in the place. Returns the exit status.

    arguments: of the command line, to tell the user how a stopped run goes on.
    """
    place.check(config)
    if config.run.threads:  # before torch is imported: some of its pools are sized only then
        os.environ["OMP_NUM_THREADS"] = str(config.run.threads)
    from rich.console import Console as Terminal

    terminal = Terminal()
    for note in check_sources(filter(None, (config.task, config.validation.task)), config.agents):
        terminal.print(message(note), style="yellow", markup=False)

    from transformers.utils import logging as transformers_logging

    from hacpo_fast.preparation import prepare, print_plan

    transformers_logging.disable_progress_bar()  # its bars would tear the live table
    with terminal.status("reading data and tokenizers, trying the reward"):
        prepared = prepare(config)
    print_plan(prepared, terminal)
    if dry_run:
        terminal.print("dry run: all of this can be trained; nothing was started", markup=False)
        return 0

    from hacpo_fast.run.curves import draw_curves
    from hacpo_fast.run.environment import note_environment
    from hacpo_fast.run.output import RunOutput
    from hacpo_fast.trainer import Trainer

    with place.occupied(config):
        for note in place.notes:
            terminal.print(message(note), style="yellow", markup=False)
        with terminal.status("loading and checking the agents"):
            trainer = Trainer(prepared, place.folder, place.checkpoint)
        with closing(trainer):
            note_environment(place.folder, trainer.steps_done, prepared.device, prepared.engine)
            for note in trainer.notes:
                terminal.print(message(note), markup=False)
            if place.checkpoint:
                where = printable(str(place.checkpoint))
                terminal.print(f"going on from step {trainer.steps_done} ({where})", markup=False, soft_wrap=True)
            elif place.continued:
                terminal.print("nothing to go on from yet: starting with step 1", markup=False)
            with RunOutput.open(
                place.folder, config, prepared.steps, trainer.steps_done, trainer.positions, terminal
            ) as output:
                finished = trainer.fit(output)
        if trainer.steps_done:
            draw_curves(place.folder, place.folder / "curves.png")
    folder = str(place.folder)
    told = (
        f"done; metrics, rollouts, curves and agents are in {folder}; all of it as one page: "
        f"python -m hacpo_fast.report {shlex.quote(folder)}"
        if finished
        else f"to go on: {_command_to_go_on(arguments, folder)}"
    )
    terminal.print(message(told), markup=False, highlight=False, soft_wrap=True)
    return 0 if finished else STOPPED


def _command_to_go_on(arguments: Sequence[str], folder: str) -> str:
    kept = [word for word in arguments if not word.startswith(("run.output=", "run.resume="))]
    command = ["python", "-m", "hacpo_fast.train", *kept, f"run.output={folder}", "run.resume=auto"]
    return shlex.join(command)


if __name__ == "__main__":
    sys.exit(main())

"""Makes several agents at once, each in a process of its own with one thread, so that two cores are enough for two."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path

from hacpo_fast.demo.folder import Report
from hacpo_fast.demo.recipe import AgentRecipe
from hacpo_fast.errors import UserError

Tell = Callable[[AgentRecipe, int, str], None]
"""Told of progress: the agent, its steps done, and what is going on."""


def build_agents(recipes: Sequence[AgentRecipe], task: str, seed: int, out: Path, tell: Tell) -> list[Report]:
    """Makes each agent in `out/<name>`, in place of what was there, and returns their reports.

    Each folder appears, complete, at the end; whatever interrupts this leaves the old ones or none.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        temporary_folder = tempfile.TemporaryDirectory(dir=out, prefix=".making-")
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}; choose another OUT") from error
    context = get_context("spawn")  # a forked child may hang in the thread pools that torch had in its parent
    with temporary_folder as temporary:
        workers, channels = [], {}
        try:
            for recipe in recipes:
                receiver, sender = context.Pipe(duplex=False)
                arguments = (recipe, task, seed, Path(temporary) / recipe.name, sender)
                worker = context.Process(target=_work, args=arguments, name=recipe.name, daemon=True)
                worker.start()
                sender.close()  # so that the channel ends when the child does
                workers.append(worker)
                channels[receiver] = recipe
            reports = _listen(channels, tell)
        finally:
            for worker in workers:
                worker.terminate()
                worker.join()
        for recipe in recipes:
            shutil.rmtree(out / recipe.name, ignore_errors=True)
            (Path(temporary) / recipe.name).rename(out / recipe.name)
    return [reports[recipe.name] for recipe in recipes]


def _listen(channels: dict[Connection, AgentRecipe], tell: Tell) -> dict[str, Report]:
    open_channels, reports = dict(channels), {}
    while open_channels:
        for channel in wait(list(open_channels)):
            recipe = open_channels[channel]
            try:
                message = channel.recv()
            except EOFError:
                raise RuntimeError(f"the process that makes {recipe.name} died; its message is above") from None
            if isinstance(message, Report):
                reports[recipe.name] = message
                del open_channels[channel]
            else:
                tell(recipe, *message)
    return reports


def _work(recipe: AgentRecipe, task: str, seed: int, folder: Path, channel: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    from transformers.utils import logging

    from hacpo_fast.demo.build import build_agent

    torch.set_num_threads(1)
    logging.disable_progress_bar()  # its bars would tear the parent's
    channel.send(build_agent(recipe, task, seed, folder, lambda *progress: channel.send(progress)))

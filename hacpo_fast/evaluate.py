"""python -m hacpo_fast.evaluate MODEL [MODEL ...] [--config FILE] [section.key=value ...]"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from hacpo_fast import config_file
from hacpo_fast.command_line import exit_status
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.run.text import message, printable

Scores = dict[str, dict[str, dict[str, float]]]  # by agent, by name of the sampling settings, by metric

EPILOG = """\
The problems are those that `task` holds out (task.holdout=1: all of it), or validation.task; `validation.sampling`
says how to answer. Of --config, agents with a model's folder name lend it their settings. Examples:

  python -m hacpo_fast.evaluate runs/mine/agents/alice --config configs/quickstart.yaml
  python -m hacpo_fast.evaluate my-model task.kind=file task.name=problems.jsonl task.holdout=1 \\
      validation.sampling.sampled.temperature=0.6 validation.sampling.sampled.samples=8

`python -m hacpo_fast.train --help` lists all settings.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.evaluate",
        description="Scores language models on a task with verifiable answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="folder or hub name, and section.key=value settings")
    parser.add_argument("--config", metavar="FILE", help="YAML file with the task, for example configs/quickstart.yaml")
    parser.add_argument("--output", metavar="FILE", help="also write the scores there, as JSON")
    chosen = parser.parse_intermixed_args(arguments)
    overrides = [word for word in chosen.models if re.match(r"[a-z_]+\.[\w.-]+=", word)]
    models = [word for word in chosen.models if word not in overrides]
    return exit_status(lambda: _evaluate(models, overrides, chosen.config, chosen.output))


def _evaluate(models: Sequence[str], overrides: Sequence[str], config: str | None, output: str | None) -> int:
    if output and not Path(output).absolute().parent.is_dir():
        raise UserError(f"--output: the folder of {output} does not exist")
    scores = evaluate(_with_agents(config_file.read(config, overrides), models, config))
    if output:
        Path(output).write_text(json.dumps(scores, indent=2) + "\n")
    return 0


def evaluate(config: Config) -> Scores:
    """Scores every agent of `config` on its held-out problems, prints a table and returns the scores."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from transformers.utils import logging as transformers_logging

    from hacpo_fast import memory
    from hacpo_fast.agent import encode_fitting, read_card
    from hacpo_fast.engines import choose_engine, open_engines
    from hacpo_fast.policy.policy import Policy
    from hacpo_fast.preparation import choose_device
    from hacpo_fast.reward_watch import RewardWatch
    from hacpo_fast.run.seeds import Purpose, derive
    from hacpo_fast.tasks import check_reward, load_problems, open_rewards, split_held_out
    from hacpo_fast.validation import validate

    transformers_logging.disable_progress_bar()
    console, settings = Console(), config.validation
    device = choose_device(config.run.device)
    with console.status("reading data and tokenizers, trying the reward"):
        cards = [read_card(name, agent) for name, agent in config.agents.items()]
        task = settings.task or config.task
        problems = load_problems(task)
        check_reward(task, problems)
        if settings.task is None:
            problems = split_held_out(problems, task.holdout)[1]
        fitting, tokens = encode_fitting(cards, problems, config)
        chosen = fitting[: settings.problems]
        kind, notes = choose_engine(cards, config, device)
    if not chosen:
        raise UserError("no problem to evaluate on: raise task.holdout, or rollout.max_prompt_tokens")
    console.print(f"{len(chosen)} of {len(problems)} problems of {printable(task.name)}", markup=False)
    for note in [*(note for card in cards for note in card.notes), *notes]:
        console.print(message(note), style="yellow", markup=False)

    scores: Scores = {}
    watch = RewardWatch(task.reward_failure, lambda note: console.print(message(note), style="yellow", markup=False))
    with open_rewards(task) as rewards:
        for index, card in enumerate(cards):
            with console.status(f"{card.name} answers"):
                policy = Policy.load(
                    card.settings.model,
                    dtype=card.dtype(device),
                    device=device,
                    trust_remote_code=card.settings.trust_remote_code,
                    revision=card.settings.revision,
                )
                (needs,) = memory.plan([card], config, device, kind, memory.device_memory(device), trained=False)
                with closing(open_engines(kind, [policy], [card], config, [needs.kv_cache])) as engines:
                    scores[card.name] = validate(
                        engines.each[0],
                        card.codec,
                        chosen,
                        [tokens[card.name][problem.id] for problem in chosen],
                        settings.sampling,
                        settings.max_response_tokens or config.max_response_tokens(card.name),
                        rewards,
                        config.algorithm.advantage.reward_max,
                        derive(config.run.seed, Purpose.VALIDATION, 0, index),
                        partial(watch.failures, "evaluation", card.name),
                    )
            del policy, engines  # before the next one is loaded
    for sampling in settings.sampling:
        hidden = ("problems", "reward_errors")
        metrics = [metric for metric in scores[cards[0].name][sampling] if metric not in hidden]
        table = Table(sampling, *metrics, box=box.SIMPLE_HEAD)
        for name, by_sampling in scores.items():
            table.add_row(name, *(f"{by_sampling[sampling][metric]:.3f}" for metric in metrics))
        console.print(table)
    return scores


def _with_agents(plain: dict, models: Sequence[str], where: str | None) -> Config:
    if not models:
        raise UserError("name a model to evaluate: a folder, or a hub name")
    known = plain.get("agents") or {}
    agents = {}
    for model in models:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(model).name).strip("-") or "model"
        while name in agents:
            name += "-again"
        agents[name] = {**(known.get(Path(model).name) or {}), "model": model}
        agents[name].pop("tokenizer", None)  # that of the folder itself
    return config_file.validate({**plain, "agents": agents}, where or "settings")


if __name__ == "__main__":
    sys.exit(main())

"""python -m hacpo_fast.evaluate MODEL [MODEL ...] [--benchmark NAME[=SOURCE] ...] [section.key=value ...]"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hacpo_fast import config_file
from hacpo_fast.command_line import exit_status
from hacpo_fast.config import Config, TaskConfig
from hacpo_fast.errors import UserError
from hacpo_fast.run.evaluation_folder import check_folder
from hacpo_fast.run.text import message
from hacpo_fast.sources import check_sources
from hacpo_fast.tasks.benchmarks import BENCHMARKS
from hacpo_fast.tasks.names import instead_of

MAX_RESPONSE_TOKENS = 8196  # of benchmarks, as the paper's Appendix A says

SETTING = rf"([a-z_]+\.[\w.-]+|{'|'.join(Config.model_fields)})="  # any other = belongs to the name of a model

EPILOG = f"""\
benchmarks: {", ".join(BENCHMARKS)}; all stands for these seven.
SOURCE is a file (.jsonl, .json, .csv, .parquet) or folder in the form in which the benchmark is published, or a name on
the hub; without it the usual place on the hub is taken. As in the paper, every problem is answered once, greedily
(avg@1), and those of aime2025 30 times (best@30, here at temperature 1, the training's), in at most
{MAX_RESPONSE_TOKENS} tokens. validation.sampling, validation.max_response_tokens and validation.problems (at most so
many) change that on the command line; those of --config are for training and do not count here. Prompt and reward can
be set as task.prompt, task.system_prompt, task.reward, ... ; those of --config count if its task is a benchmark too.
Of a single SOURCE on the hub, task.subset and task.split choose the part; else it is test, or the only one.

Without --benchmark the problems are those that `task` holds out (task.holdout=1: all of it), or validation.task, and
`validation.sampling` says how to answer. Of --config, agents with a model's folder name lend it their settings.

The output folder holds responses.jsonl (one line per problem, written as soon as it is answered: responses, rewards,
errors), scores.json and settings.yaml. A stopped evaluation goes on there with its arguments and --resume --output
FOLDER. Scores: avg@n, the mean reward of n responses; pass@k, the chance that one of k is right, without bias; best@n,
the mean of each problem's best; errors, how many could not be checked and count as wrong; cut, the share that the token
limit ended.

  python -m hacpo_fast.evaluate runs/mine/agents/small --benchmark math500 --benchmark gsm8k=data/gsm8k_test.jsonl
  python -m hacpo_fast.evaluate my-model --benchmark all rollout.engine=vllm
  python -m hacpo_fast.evaluate runs/mine/agents/alice --config configs/quickstart.yaml
  python -m hacpo_fast.evaluate my-model task.kind=file task.name=problems.jsonl task.holdout=1 \\
      validation.sampling.sampled.temperature=0.6 validation.sampling.sampled.samples=8

`python -m hacpo_fast.train --help` lists all settings.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m hacpo_fast.evaluate",
        description="Scores language models on benchmarks, or on any task with verifiable answers.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help="folder or hub name, and section.key=value settings")
    parser.add_argument(
        "--benchmark", metavar="NAME[=SOURCE]", action="append", default=[], help="one of those below; can be repeated"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with the task, for example configs/quickstart.yaml")
    parser.add_argument("--output", metavar="FOLDER", help="new folder for all results; runs/evaluate-<date>-<time>")
    parser.add_argument("--resume", action="store_true", help="go on with what was stopped; --output says where it is")
    chosen = parser.parse_intermixed_args(arguments)
    overrides = [word for word in chosen.models if re.match(SETTING, word)]
    models = [word for word in chosen.models if word not in overrides]
    folder = Path(chosen.output or time.strftime("runs/evaluate-%Y%m%d-%H%M%S"))

    def run() -> int:
        if chosen.resume and not chosen.output:
            raise UserError("--resume: name the folder of the evaluation that is to go on by --output")
        config, tasks = read(models, overrides, chosen.config, chosen.benchmark)
        check_folder(folder, chosen.resume)
        for note in check_sources(tasks.values(), config.agents):
            print(message(note))
        # Only now, for it takes ten times as long as all of the above.
        from hacpo_fast.evaluation import evaluate

        try:
            evaluate(config, tasks, folder, chosen.resume)
        except KeyboardInterrupt:
            if folder.exists():
                print(f"what is answered is in {folder}; to go on: --resume --output {folder}", file=sys.stderr)
            raise
        return 0

    return exit_status(run)


def read(
    models: Sequence[str], overrides: Sequence[str], config: str | None, benchmarks: Sequence[str]
) -> tuple[Config, dict[str, TaskConfig]]:
    """The settings, with an agent for every model, and the tasks to score them on, by name. Raises UserError."""
    plain = config_file.read(config, overrides)
    _check_mappings(plain, config or "settings")
    if not benchmarks:
        checked = _with_agents(plain, models, config)
        task = checked.validation.task or checked.task
        return checked, {task.name: task}
    given = config_file.read(None, overrides)
    tasks = _benchmarks(plain, given.get("task") or {}, benchmarks)
    validation = {"every": 0, "problems": 10**9, **(given.get("validation") or {})}
    if "max_response_tokens" not in (given.get("rollout") or {}):
        validation.setdefault("max_response_tokens", MAX_RESPONSE_TOKENS)
    # One limit for all: what a run trains with does not matter here.
    rollout = {"max_response_tokens": validation.get("max_response_tokens"), **(plain.get("rollout") or {})}
    rollout = {name: value for name, value in rollout.items() if value is not None}
    tree = {**plain, "rollout": rollout, "validation": validation, "task": next(iter(tasks.values()))}
    checked = _with_agents(tree, models, config)
    return checked, {name: checked.task.model_validate(task) for name, task in tasks.items()}


def _check_mappings(plain: dict[str, Any], where: str) -> None:
    """What this module takes apart before `config_file.validate` can look at it must be mappings."""
    agents = plain.get("agents")
    parts = {name: plain.get(name) for name in ("task", "rollout", "validation", "agents")}
    parts |= {f"agents.{name}": agent for name, agent in agents.items()} if isinstance(agents, dict) else {}
    for name, part in parts.items():
        if part is not None and not isinstance(part, dict):
            raise UserError(f"{where}: {name}: Input should be a mapping of settings, not {part!r}")


def _benchmarks(plain: dict[str, Any], given: dict[str, Any], wanted: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Task settings of each benchmark; prompt, reward and the like as `plain` has them for one.

    given: those of the command line alone.
    """
    if clashing := [name for name in ("kind", "name", "source", "holdout") if name in given]:
        raise UserError(f"task.{clashing[0]} and --benchmark exclude each other; the source is given as NAME=SOURCE")
    common = dict(plain.get("task") or {})
    if common.get("kind", "benchmark") != "benchmark":
        common = {}
    for own in ("source", "subset", "split", "holdout"):
        common.pop(own, None)
    tasks = {}
    for name, _, source in (word.partition("=") for word in wanted):
        if name == "all" and source:
            raise UserError(f"--benchmark: all={source}: 'all' takes them from the hub; name them one by one")
        if name != "all" and name not in BENCHMARKS:
            raise UserError(f"--benchmark: there is no benchmark '{name}'; {instead_of(name, [*BENCHMARKS, 'all'])}")
        for each in BENCHMARKS if name == "all" else [name]:
            if each in tasks:
                raise UserError(f"--benchmark: {each} stands twice")
            tasks[each] = {**common, "kind": "benchmark", "name": each, "source": source or None}
    for own in ("subset", "split"):
        if own in given:
            if len(tasks) > 1:
                raise UserError(f"task.{own} is of one data set; evaluate on that benchmark alone")
            next(iter(tasks.values()))[own] = given[own]
    return tasks


def _with_agents(plain: dict[str, Any], models: Sequence[str], where: str | None) -> Config:
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

"""Models sit through tasks: checked before any weights are loaded, answered piece by piece, scored at the end."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.status import Status
from transformers.utils import logging as transformers_logging

from hacpo_fast import memory
from hacpo_fast.agent import ModelCard, encode_fitting, read_card
from hacpo_fast.config import Config, SamplingConfig, TaskConfig
from hacpo_fast.engines import choose_engine, open_engines
from hacpo_fast.errors import UserError, all_of
from hacpo_fast.non_finite import check_weights
from hacpo_fast.policy.policy import Policy
from hacpo_fast.preparation import choose_device
from hacpo_fast.reward_watch import RewardWatch
from hacpo_fast.rollouts.engine import Engine
from hacpo_fast.run.evaluation_output import EvaluationOutput, Scores, print_scores, summarise
from hacpo_fast.run.seeds import Purpose, derive
from hacpo_fast.run.text import message, printable
from hacpo_fast.tasks import Problem, Problems, RewardPool, check_reward, load_problems, resolve_reward, split_held_out
from hacpo_fast.tasks.benchmarks import BENCHMARKS
from hacpo_fast.validation import answer

BEST_OF_TEMPERATURE = 1.0  # the paper does not say how it sampled the best of 30; this is what it trained at


class Sitting(NamedTuple):
    """A task, ready to be answered."""

    problems: Sequence[Problem]
    tokens: dict[str, dict[str, np.ndarray]]  # of the prompts, by agent, then by problem id
    rewards: RewardPool
    watch: RewardWatch
    sampling: Mapping[str, SamplingConfig]
    headline: str  # the metric that stands for the task


def evaluate(config: Config, tasks: Mapping[str, TaskConfig], folder: Path, resume: bool = False) -> Scores:
    """Scores every agent of `config` on every task: prints tables, and writes all there is to the new `folder`.

    resume: goes on with the evaluation in `folder`; what is answered there is not answered again.
    Raises UserError, before any weights are loaded, where data, models or rewards are not right.
    """
    transformers_logging.disable_progress_bar()
    console = Console()
    device = choose_device(config.run.device)
    with ExitStack() as stack:
        with console.status("reading data and tokenizers, trying the rewards"):
            loads = [partial(load_problems, task) for task in tasks.values()]
            reads = [partial(read_card, name, settings) for name, settings in config.agents.items()]
            found = all_of([*loads, *reads])
            cards, pools = found[len(tasks) :], _Pools(stack)
            sittings = {
                name: _sitting(name, task, problems, config, cards, pools, console)
                for (name, task), problems in zip(tasks.items(), found[: len(tasks)], strict=True)
            }
            kind, engine_note = choose_engine(cards, config, device)
            _tell(console, [note for card in cards for note in card.notes])
            console.print(message(engine_note), markup=False, highlight=False)
        output = stack.enter_context(closing(EvaluationOutput(folder, config, tasks, resume)))
        there = f", where {len(output)} problems are answered already" if resume else ""
        console.print(f"every response is written to {folder}{there}", markup=False, highlight=False, soft_wrap=True)
        for index, card in enumerate(cards):
            with console.status(f"{card.name} is loaded") as status:
                _answer_all(index, card, config, device, kind, sittings, output, status)
    print_scores(output.scores, {name: sitting.headline for name, sitting in sittings.items()}, console)
    return output.scores


class _Pools:
    """Reward processes; tasks with the same reward, as benchmarks are, share them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._open: list[tuple[Any, RewardPool]] = []

    def of(self, task: TaskConfig) -> RewardPool:
        wanted = (resolve_reward(task), task.reward_workers, task.reward_timeout, task.reward_memory_gb)
        for known, pool in self._open:
            if known == wanted:
                return pool
        pool = self._stack.enter_context(RewardPool(*wanted))
        self._open.append((wanted, pool))
        return pool


def _sitting(
    name: str,
    task: TaskConfig,
    problems: Problems,
    config: Config,
    cards: Sequence[ModelCard],
    pools: _Pools,
    console: Console,
) -> Sitting:
    notes = []
    if problems.duplicates and task.kind != "reasoning_gym":  # generators repeat themselves
        notes.append(f"{problems.duplicates} problems left out: the same prompt had been there before")
    rewards = pools.of(task)
    notes += check_reward(task, problems, rewards)
    asked = split_held_out(problems, task.holdout)[1] if task is config.task else problems
    fitting, tokens = encode_fitting(cards, asked, config)
    if not fitting:
        raise UserError(f"{name}: no problem to evaluate on: raise task.holdout, or rollout.max_prompt_tokens")
    if len(fitting) < len(asked):
        notes.append(
            f"{len(asked) - len(fitting)} problems left out, their prompts are too long (rollout.max_prompt_tokens)"
        )
    chosen = fitting[: config.validation.problems]
    console.print(f"{len(chosen)} of {len(asked)} problems of {printable(name)}", markup=False, highlight=False)
    _tell(console, [f"{name}: {note}" for note in notes])
    sampling = _sampling(config, task)
    watch = RewardWatch(task.reward_failure, lambda note: _tell(console, [note]))
    return Sitting(chosen, tokens, rewards, watch, sampling, _headline(task, sampling))


def _tell(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(message(note), style="yellow", markup=False, highlight=False)


def _sampling(config: Config, task: TaskConfig) -> Mapping[str, SamplingConfig]:
    """How the problems of `task` are answered: as the settings say, else, those of benchmarks, as the paper did it."""
    samples = BENCHMARKS[task.name].samples if task.kind == "benchmark" else 1
    if samples > 1 and "sampling" not in config.validation.model_fields_set:
        return {"sampled": SamplingConfig(temperature=BEST_OF_TEMPERATURE, samples=samples)}
    return config.validation.sampling


def _headline(task: TaskConfig, sampling: Mapping[str, SamplingConfig]) -> str:
    """best@n where the paper reports that and there are n responses per problem, else avg@n."""
    most = max(how.samples for how in sampling.values())
    best = task.kind == "benchmark" and BENCHMARKS[task.name].samples > 1 and most > 1
    return f"best@{most}" if best else f"avg@{most}"


def _answer_all(
    index: int,
    card: ModelCard,
    config: Config,
    device: torch.device,
    kind: str,
    sittings: Mapping[str, Sitting],
    output: EvaluationOutput,
    status: Status,
) -> None:
    """Has one agent answer all tasks; its model is loaded at the first problem that is not answered yet."""
    limit = config.validation.max_response_tokens or config.max_response_tokens(card.name)
    with ExitStack() as stack:
        engine: Engine | None = None
        for name, sitting in sittings.items():
            tokens = sitting.tokens[card.name]
            for sampling, how in sitting.sampling.items():
                records = []
                # Written piece by piece, so that a crash costs little; large pieces keep the engine's batches full.
                piece = max(1, 2 * config.rollout.batch_sequences // how.samples)
                for start in range(0, len(sitting.problems), piece):
                    part = sitting.problems[start : start + piece]
                    kept = output.kept(name, card.name, sampling, part)
                    if kept is None:
                        engine = engine or stack.enter_context(_engine(card, config, device, kind))
                        done = f"{start} of {len(sitting.problems)} done"
                        status.update(f"{card.name} answers {name}, {sampling}: {done}")
                        # The task's name and not its place: the same answers whatever else is evaluated.
                        path = (0, index, zlib.crc32(name.encode()), start)
                        seed = derive(config.run.seed, Purpose.VALIDATION, *path)
                        prompts = [tokens[problem.id] for problem in part]
                        answers = answer(engine, card.codec, part, prompts, how, limit, sitting.rewards, seed)
                        kept = output.write(name, card.name, sampling, answers)
                        sitting.watch.failures(name, card.name, [check for one in answers for check in one.checks])
                    records += kept
                scores = summarise(records, config.algorithm.advantage.reward_max)
                output.score(name, card.name, sampling, scores)
                metric = sitting.headline if sitting.headline in scores else next(iter(scores))
                line = f"{card.name}: {name}, {sampling}: {metric} {scores[metric]:.3f} of {len(records)} problems"
                status.console.print(line, markup=False, highlight=False)


@contextmanager
def _engine(card: ModelCard, config: Config, device: torch.device, kind: str) -> Iterator[Engine]:
    """Loads an agent's model, and frees it again."""
    settings = card.settings
    policy = Policy.load(
        settings.model,
        dtype=card.dtype(device),
        device=device,
        trust_remote_code=settings.trust_remote_code,
        revision=settings.revision,
        attention=config.training.attention,
    )
    check_weights(card.name, settings.model, policy.model)
    (needs,) = memory.plan([card], config, device, kind, memory.device_memory(device), trained=False)
    with closing(open_engines(kind, [policy], [card], config, [needs.kv_cache])) as engines:
        (engine,) = engines.each
        engine.sync()
        yield engine

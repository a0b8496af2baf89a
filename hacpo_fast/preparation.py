"""Everything that can be checked before weights are loaded, and the plan that comes of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hacpo_fast import memory
from hacpo_fast.agent import ModelCard, encode_fitting, read_card
from hacpo_fast.config import Config
from hacpo_fast.engines import choose_engine
from hacpo_fast.errors import UserError, all_of
from hacpo_fast.run.seeds import Purpose, rng
from hacpo_fast.run.text import message, printable
from hacpo_fast.tasks import Problem, check_reward, load_problems, split_held_out


@dataclass(frozen=True)
class Preparation:
    """A checked run: its data, its models' cards, its length and its memory."""

    config: Config
    device: torch.device
    cards: Sequence[ModelCard]
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    prompt_tokens: dict[str, dict[str, np.ndarray]]  # of train, by agent, then by problem id
    held_out_tokens: dict[str, dict[str, np.ndarray]]  # the same of held_out, which may ask in other words
    steps: int
    engine: str  # vllm or transformers
    engine_note: str  # the same for the user, with the reason
    memory: Sequence[memory.AgentMemory]
    device_memory: int
    notes: Sequence[str]

    @cached_property
    def fingerprint(self) -> str:
        """Of the problems, in their order: where it is the same, `batch` is."""
        sides = [[[problem.id, problem.answer] for problem in side] for side in (self.train, self.held_out)]
        return hashlib.sha256(json.dumps(sides, default=str).encode()).hexdigest()

    @property
    def warmup_steps(self) -> int:
        """Steps in which the learning rate rises: those of a run that is shorter than its warm-up, at most."""
        return min(self.config.training.warmup_steps, self.steps)

    def batch(self, step: int) -> list[Problem]:
        """The problems of step 1, 2, ...: every pass over the data is shuffled anew, no problem twice in a step."""
        size = self.config.rollout.prompts_per_step
        per_pass = len(self.train) // size
        epoch, place = divmod(step - 1, per_pass)
        order = rng(self.config.run.seed, Purpose.DATA, epoch).permutation(len(self.train))
        return [self.train[i] for i in order[place * size : (place + 1) * size]]


def prepare(config: Config) -> Preparation:
    """Reads data and tokenizers, tries the reward, adds up memory; loads no weights. Raises UserError."""
    device = choose_device(config.run.device)
    problems, validation, *cards = all_of(
        [
            lambda: load_problems(config.task),
            lambda: load_problems(config.validation.task) if config.validation.task else None,
            *(partial(read_card, name, settings) for name, settings in config.agents.items()),
        ]
    )
    train, held_out = split_held_out(problems, config.task.holdout)
    notes = check_reward(config.task, problems)
    if problems.duplicates and config.task.kind != "reasoning_gym":  # generators repeat themselves
        notes.append(f"{problems.duplicates} problems left out: the same prompt had been there before")
    if problems.contradictions:
        notes.append(f"{problems.contradictions} of them with another reference answer")
    if config.validation.task is not None:
        train, held_out = [*train, *held_out], validation
        notes += check_reward(config.validation.task, held_out)

    train, train_tokens, left_out = _fitting(cards, train, config, "training")
    held_out, held_out_tokens, more = _fitting(cards, held_out, config, "validation")
    notes += _unreadable(cards, train, train_tokens)
    held_out = held_out[: config.validation.problems] if config.validation.every else []
    size = config.rollout.prompts_per_step
    if len(train) < size:
        raise UserError(
            f"task: {len(train)} training problems are fewer than rollout.prompts_per_step={size}; "
            f"give more problems or lower it{f', or task.holdout={config.task.holdout:g}' if held_out else ''}"
        )
    if config.validation.every and not held_out:
        raise UserError("validation.every: no problem is held out; raise task.holdout or set validation.every=0")

    engine, engine_note = choose_engine(cards, config, device)
    available = memory.device_memory(device)
    needs = memory.plan(cards, config, device, engine, available)
    memory.check(needs, available)
    steps = config.run.steps or len(train) // size
    return Preparation(
        config=config,
        device=device,
        cards=cards,
        train=train,
        held_out=held_out,
        prompt_tokens=train_tokens,
        held_out_tokens=held_out_tokens,
        steps=steps,
        engine=engine,
        engine_note=engine_note,
        memory=needs,
        device_memory=available,
        notes=[
            *(note for card in cards for note in card.notes),
            *notes,
            *left_out,
            *more,
            *_without_effect(config, device, steps),
        ],
    )


def _without_effect(config: Config, device: torch.device, steps: int) -> list[str]:
    """Notes on settings that will change nothing in this run, or less than they say."""
    notes = []
    if late := [step for step in config.run.profile_steps if step > steps]:
        notes.append(f"run.profile_steps: the run ends with step {steps}, before {late}")
    if config.updates_per_step == 1:
        narrows = config.algorithm.name == "hacpo" and config.algorithm.cross_clip and config.algorithm.cross_lower_step
        notes.append(
            "one update per step: own ratios are then 1, so that none is clipped"
            + (", and the range of other agents' answers never narrows" if narrows else "")
            + f"; training.minibatch_responses below {config.responses_per_agent} makes more updates"
        )
    if (warmup := config.training.warmup_steps) > steps:
        notes.append(f"training.warmup_steps: {warmup} are more than the run has; the learning rate rises over {steps}")
    if config.training.offload_optimizer and device.type != "cuda":
        notes.append("training.offload_optimizer changes nothing on a CPU: all memory is the host's")
    return notes


def choose_device(name: str) -> torch.device:
    """Raises UserError if there is no such GPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"run.device: {name} is not there ({torch.cuda.device_count()} GPUs found); use auto or cpu")
    return device


def _fitting(cards, problems, config: Config, what: str) -> tuple[list[Problem], dict, list[str]]:
    kept, tokens = encode_fitting(cards, problems, config)
    if problems and not kept:
        raise UserError(
            f"task: every {what} prompt is empty or longer than rollout.max_prompt_tokens="
            f"{config.rollout.max_prompt_tokens} (or than the models' context less the response); "
            "raise it or choose other problems"
        )
    left_out = len(problems) - len(kept)
    note = f"{left_out} of {len(problems)} {what} problems left out: prompt too long (or empty) for an agent"
    return kept, tokens, [note] if left_out else []


def _unreadable(cards, problems, tokens) -> list[str]:
    """Notes on agents whose tokenizer does not know parts of the prompts: they cannot see what they are asked."""
    notes = []
    for card in cards:
        unknown = card.codec.tokenizer.unk_token_id
        affected = sum(unknown in tokens[card.name][problem.id] for problem in problems) if unknown is not None else 0
        if affected:
            notes.append(
                f"agents.{card.name}: {affected} of {len(problems)} prompts hold characters that its tokenizer does not"
                f" know ({card.codec.tokenizer.unk_token}); it cannot see all of what it is asked"
            )
    return notes


def print_plan(prepared: Preparation, console: Console) -> None:
    """What will be trained on what, for how long, and what memory it takes."""
    config, algorithm = prepared.config, prepared.config.algorithm
    together = "sharing their answers" if algorithm.shares else "each alone"
    console.print(f"[bold]{algorithm.name}[/]: {len(prepared.cards)} agent(s), {together}, on {prepared.device}")
    console.print(
        f"{len(prepared.train)} training and {len(prepared.held_out)} validation problems of "
        f"{printable(config.task.name)}; "
        f"{prepared.steps} steps of {config.rollout.prompts_per_step} prompts x {config.samples_per_prompt} responses "
        f"per agent; each learns from {config.responses_per_agent} in {config.updates_per_step} "
        f"update{'s' if config.updates_per_step > 1 else ''} per step",
        markup=False,
    )
    for note in prepared.notes:
        console.print(message(note), style="yellow", markup=False)
    console.print(message(prepared.engine_note), markup=False)
    table = Table("", *(card.name for card in prepared.cards), box=box.SIMPLE_HEAD)
    table.add_row("model", *(Text(printable(card.model_config.model_type)) for card in prepared.cards))
    table.add_row("prompts", *("chat" if card.codec.chat else "plain" for card in prepared.cards))
    table.add_row("dtype", *(str(card.dtype(prepared.device)).removeprefix("torch.") for card in prepared.cards))
    for field in memory.AgentMemory._fields:
        if any(sizes := [getattr(needs, field) for needs in prepared.memory]):
            table.add_row(field, *map(memory.readable, sizes))
    console.print(table)
    needed = memory.check(prepared.memory, prepared.device_memory)
    total, available = memory.readable(needed), memory.readable(prepared.device_memory)
    offloaded = any(needs.offloaded for needs in prepared.memory)
    console.print(
        f"memory: about {total} of {available}; less than the sum of the table, since generation and activations take "
        f"turns, one agent at a time{', and what is offloaded lies in memory of the host' if offloaded else ''}"
    )

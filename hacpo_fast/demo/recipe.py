"""What makes each agent: the settings that, with a seed, decide its weights."""

import math
from dataclasses import dataclass

from hacpo_fast.demo.worked import Habits


@dataclass(frozen=True)
class Pace:
    """How fast a stage of teaching goes.

    Attributes:
        rate: learning rate after the warm-up.
        steps: optimiser steps at most; over them the rate falls along half a cosine to a tenth.
        batch: examples in each step.
        warmup: steps over which the rate rises linearly.
    """

    rate: float
    steps: int
    batch: int
    warmup: int = 20

    def rate_at(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        cosine = 0.55 + 0.45 * math.cos(math.pi * step / self.steps)
        return self.rate * cosine * min(1.0, (step + 1) / self.warmup)


@dataclass(frozen=True)
class AgentRecipe:
    """One agent: its shape, and how it is taught.

    Teaching has two stages. RL sharpens what a model can already do and cannot teach it facts, so an agent that merely
    trained too little would not learn visibly. The first stage therefore teaches clean worked answers until the skill
    is there; the second lays bad habits over it, for RL to take off again.

    Attributes:
        name: name of its folder.
        family: architecture, a key of `models.FAMILIES`.
        layers: number of layers.
        tokenizer: a key of `tokenizers.KINDS`.
        habits: what the second stage teaches.
        skill_pace: pace of the first stage.
        habit_pace: pace of the second; slower, so that the skill survives.
        skill: the first stage ends early when this share of traces comes out token for token.
        start: the second, in its second half, ends early when the greedy accuracy is between these. Where working and
            not working are about equally likely, greedy decoding tips over from one to the other from batch to batch.
            None: it takes all its steps.
    """

    name: str
    family: str
    layers: int
    tokenizer: str
    habits: Habits
    skill_pace: Pace = Pace(rate=5e-3, steps=600, batch=48)
    habit_pace: Pace = Pace(rate=8e-4, steps=200, batch=32)
    skill: float = 0.96
    start: tuple[float, float] | None = (0.18, 0.36)


ALICE = AgentRecipe("alice", "qwen3", 3, "characters", Habits(skip_working=0.65, wrong_step=0.12))
BOB = AgentRecipe("bob", "llama", 2, "digit_pairs", Habits(skip_working=0.65, wrong_step=0.15))
AGENTS = (ALICE, BOB)

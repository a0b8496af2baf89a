"""What is compared: pairs of agents, methods and seeds, and the cells that they make."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from hacpo_fast import config_file
from hacpo_fast.config import Config, Section
from hacpo_fast.demo.recipe import AGENTS, AgentRecipe
from hacpo_fast.demo.worked import TASKS, Habits
from hacpo_fast.errors import UserError
from hacpo_fast.limits import Count, Seed, Share
from hacpo_fast.tasks.names import instead_of

QUICK_SKILL_STEPS = 80
"""Of `Plan.quick`: after 60 about one answer in fifteen is right, after 150 one in three."""


class Pair(Section):
    task: str = Field(description="What the agents can do: a key of hacpo_fast.demo.worked.TASKS")
    habits: dict[str, tuple[Share, Share]] = Field(
        description="By agent: how often it answers without working, and how often a step is wrong"
    )
    settings: dict[str, Any] = Field({}, description="Sections as in a training config, on top of those of all pairs")

    @model_validator(mode="after")
    def _known(self) -> Pair:
        if self.task not in TASKS:
            raise ValueError(f"task: '{self.task}' is not one of {', '.join(TASKS)}")
        names = [recipe.name for recipe in AGENTS]
        if sorted(self.habits) != sorted(names):
            raise ValueError(f"habits: give those of {' and '.join(names)}")
        return self


class Plan(Section):
    """A comparison, as its file says it."""

    seeds: list[Seed] = Field(min_length=1, description="Of training: data order, sampling, mini-batches")
    warm_starts: list[Seed] = Field(
        min_length=1, description="Seeds of the agents; seed number i takes number i of these, round and round"
    )
    reference: str = Field(description="The method that the others are held against, seed by seed")
    skill_steps: Count | None = Field(None, description="Steps in which the skill is taught; empty: the recipe's")
    habit_steps: Count = Field(100, description="Steps in which the habits are taught")
    settings: dict[str, Any] = Field(description="Sections as in a training config, without agents")
    pairs: dict[str, Pair] = Field(min_length=1)
    methods: dict[str, list[str]] = Field(min_length=1, description="By name: settings as on the command line")

    @field_validator("pairs", "methods")
    @classmethod
    def _names(cls, named: dict[str, Any]) -> dict[str, Any]:
        for name in named:
            if not re.fullmatch(r"[\w .+-]{1,80}", name):
                raise ValueError(f"name '{name}': use letters, digits, spaces and . + - _ (it names files)")
        return named

    @model_validator(mode="after")
    def _reference_is_there(self) -> Plan:
        if self.reference not in self.methods:
            raise ValueError(f"reference: '{self.reference}' is not one of the methods")
        return self

    @classmethod
    def load(cls, path: Path) -> Plan:
        """The plan in a file; what it leaves out comes from the file beside it that it names as `base`.

        Raises UserError with one line per wrong setting.
        """
        tree = config_file.read(path)
        base = tree.pop("base", None)
        if base is not None:
            tree = config_file.read(path.parent / str(base)) | tree
        if tree.keys() & {"agents", "task"}:
            raise UserError(
                f"{path}: these look like the settings of one run, for python -m hacpo_fast.train {path}; a plan has "
                f"{', '.join(name for name, field in cls.model_fields.items() if field.is_required())}"
            )
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            lines = [f"  {_explain(item)}" for item in error.errors()]
            raise UserError("\n".join([f"{path}: {len(lines)} setting(s) to mend", *lines])) from None

    def quick(self) -> Plan:
        """The same machinery with as little to do as gives agents that are right now and then, and so have something
        to learn from: results mean nothing."""
        small = ["run.steps=2", "training.warmup_steps=0", "rollout.prompts_per_step=4", "validation.problems=8"]
        first = next(iter(self.pairs))
        methods = [self.reference, *(name for name in self.methods if name != self.reference)][:2]
        return self.model_copy(
            update={
                "seeds": self.seeds[:1],
                "warm_starts": self.warm_starts[:1],
                "skill_steps": QUICK_SKILL_STEPS,
                "habit_steps": 5,
                "pairs": {first: self.pairs[first]},
                "methods": {name: [*self.methods[name], *small] for name in methods},
            }
        )

    def cells(self, agents: Path) -> list[Cell]:
        """All cells, seed by seed, so that what is finished at any time is a comparison. agents: their folder.

        Raises UserError where the settings of one are wrong.
        """
        cells = [
            self._cell(number, pair, method, agents)
            for number in range(len(self.seeds))
            for pair in self.pairs
            for method in self.methods
        ]
        file, times = Counter(cell.file for cell in cells).most_common(1)[0]
        if times > 1:
            raise UserError(
                f"two results would be {file}: every seed may be there once, and names without -- in them cannot be "
                "confused"
            )
        return cells

    def _cell(self, number: int, pair: str, method: str, agents: Path) -> Cell:
        seed, warm_start = self.seeds[number], self.warm_starts[number % len(self.warm_starts)]
        pupils = {recipe.name: self._pupil(recipe, pair, warm_start) for recipe in AGENTS}
        tree = config_file.merged(self.settings, self.pairs[pair].settings)
        tree = config_file.override(tree, [*self.methods[method], f"run.seed={seed}"])
        models = {name: {"model": str(agents / pupil.folder)} for name, pupil in pupils.items()}
        config = config_file.validate({**tree, "agents": models}, where=f"{pair}, {method}")
        if not config.run.steps or config.validation.every < config.run.steps:
            raise UserError(f"{pair}, {method}: give run.steps, and as validation.every at least as many")
        return Cell(pair, method, seed, tree, config, pupils)

    def _pupil(self, recipe: AgentRecipe, pair: str, seed: int) -> WarmStart:
        pace = replace(recipe.skill_pace, steps=self.skill_steps or recipe.skill_pace.steps)
        skilled = replace(recipe, skill_pace=pace, habits=Habits(), start=None)
        skip, wrong = self.pairs[pair].habits[recipe.name]
        habit_pace = replace(recipe.habit_pace, steps=self.habit_steps)
        return WarmStart(
            self.pairs[pair].task, seed, skilled, replace(skilled, habits=Habits(skip, wrong), habit_pace=habit_pace)
        )


@dataclass(frozen=True)
class WarmStart:
    """An agent to be made: `skilled` without bad habits, which several pairs share, then `recipe` with them."""

    task: str
    seed: int
    skilled: AgentRecipe
    recipe: AgentRecipe

    @property
    def skilled_folder(self) -> str:
        return _name(self.task, self.seed, self.skilled)

    @property
    def folder(self) -> str:
        return _name(self.task, self.seed, self.recipe)


@dataclass(frozen=True)
class Cell:
    """One training run of the comparison. settings: what the plan says; config: that with all defaults and agents."""

    pair: str
    method: str
    seed: int
    settings: dict[str, Any]
    config: Config
    warm_starts: dict[str, WarmStart]

    @property
    def file(self) -> str:
        return f"{self.pair}--{self.method}--{self.seed}.json"

    @property
    def made_from(self) -> dict[str, Any]:
        """What the plan has decided about the result: no defaults, and not where the agents lie."""
        agents = {name: warm_start.folder for name, warm_start in self.warm_starts.items()}
        return {"settings": self.settings, "agents": agents}


def _explain(item: dict[str, Any]) -> str:
    key, message = ".".join(map(str, item["loc"])), item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = Plan.model_fields if len(item["loc"]) == 1 else Pair.model_fields
        message = f"no such setting; {instead_of(item['loc'][-1], known)}"
    elif item["type"] == "missing":
        message = "required but missing"
    return f"{key}: {message}" if key else message


def _name(task: str, seed: int, recipe: AgentRecipe) -> str:
    """Names a folder by everything that decides the weights in it."""
    made_from = json.dumps([task, seed, asdict(recipe)], sort_keys=True)
    return f"{task}-{recipe.name}-{seed}-{hashlib.sha256(made_from.encode()).hexdigest()[:10]}"

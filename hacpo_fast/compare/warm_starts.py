"""The agents of a comparison, made once and kept."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hacpo_fast.compare.plan import WarmStart
from hacpo_fast.demo.recipe import AgentRecipe
from hacpo_fast.demo.worked import TASKS, split
from hacpo_fast.run.lock import lock


def teach_skill(warm_start: WarmStart, agents: Path) -> None:
    """Makes the agent without bad habits in its folder of `agents`, where it is not there yet."""
    from hacpo_fast.demo import build

    with _alone(agents / warm_start.skilled_folder) as missing:
        if missing:
            pupil = _new_pupil(warm_start, warm_start.skilled)
            build.teach_skill(pupil, lambda *_: None)
            _save(pupil, agents / warm_start.skilled_folder)


def teach_habits(warm_start: WarmStart, agents: Path) -> None:
    """Goes on from there to the agent that training starts with."""
    from transformers import AutoModelForCausalLM

    from hacpo_fast.demo import build

    recipe = warm_start.recipe
    with _alone(agents / warm_start.folder) as missing:
        if missing:
            pupil = replace(
                _new_pupil(warm_start, recipe),
                model=AutoModelForCausalLM.from_pretrained(agents / warm_start.skilled_folder, use_safetensors=True),
                rng=random.Random(f"{warm_start.seed}/{recipe.name}/{recipe.habits}"),
            )
            build.teach_habits(pupil, lambda *_: None)
            _save(pupil, agents / warm_start.folder)


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Waits until no other process makes `folder`, which several plans may share, and keeps them out of it. Yields
    whether it is missing."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as file:
        lock(file, wait=True)  # where there are no locks, plans that share agents must run one after the other
        yield not folder.exists()


def _new_pupil(warm_start: WarmStart, recipe: AgentRecipe):
    from hacpo_fast.demo import build

    task = TASKS[warm_start.task]
    return build.new_pupil(recipe, task, split(task)[0], warm_start.seed)


def _save(pupil, folder: Path) -> None:
    from hacpo_fast.run.whole import write_folder

    def fill(place: Path) -> None:
        pupil.model.save_pretrained(place)
        pupil.tokenizer.save_pretrained(place)

    write_folder(folder, fill)

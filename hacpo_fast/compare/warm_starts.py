"""The agents of a comparison, made once and kept."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from hacpo_fast.compare.plan import WarmStart
from hacpo_fast.demo.worked import TASKS, split


def teach_skill(warm_start: WarmStart, agents: Path) -> None:
    """Makes the agent without bad habits in its folder of `agents`."""
    from hacpo_fast.demo import build

    pupil = build.new_pupil(
        warm_start.skilled, TASKS[warm_start.task], split(TASKS[warm_start.task])[0], warm_start.seed
    )
    build.teach_skill(pupil, lambda *_: None)
    _save(pupil, agents / warm_start.skilled_folder)


def teach_habits(warm_start: WarmStart, agents: Path) -> None:
    """Goes on from there to the agent that training starts with."""
    from transformers import AutoModelForCausalLM

    from hacpo_fast.demo import build

    recipe, seed = warm_start.recipe, warm_start.seed
    pupil = build.new_pupil(recipe, TASKS[warm_start.task], split(TASKS[warm_start.task])[0], seed)
    pupil = replace(
        pupil,
        model=AutoModelForCausalLM.from_pretrained(agents / warm_start.skilled_folder, use_safetensors=True),
        rng=random.Random(f"{seed}/{recipe.name}/{recipe.habits}"),
    )
    build.teach_habits(pupil, lambda *_: None)
    _save(pupil, agents / warm_start.folder)


def _save(pupil, folder: Path) -> None:
    from hacpo_fast.run.whole import write_folder

    def fill(place: Path) -> None:
        pupil.model.save_pretrained(place)
        pupil.tokenizer.save_pretrained(place)

    folder.parent.mkdir(parents=True, exist_ok=True)
    write_folder(folder, fill)

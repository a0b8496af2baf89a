"""Makes one agent: a new model, the two stages of teaching, and its folder."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hacpo_fast.demo.accuracy import accuracy
from hacpo_fast.demo.folder import Report, write_record
from hacpo_fast.demo.models import new_model
from hacpo_fast.demo.recipe import AgentRecipe, Pace
from hacpo_fast.demo.tokenizers import KINDS
from hacpo_fast.demo.warmstart import Example, fit, trace_accuracy
from hacpo_fast.demo.worked import CLEAN, TASKS, Habits, Task, prompt, respond, split

CHECK_EVERY = 25
"""Steps between two measurements that may end a stage."""

CHECKED = 256
"""Expressions for these measurements: of those that may be trained on, but not taught."""

Tell = Callable[[int, str], None]
"""Told of progress: steps done of those that the paces allow, and what is going on."""


def build_agent(recipe: AgentRecipe, task_name: str, seed: int, folder: Path, tell: Tell) -> Report:
    """Makes the agent of `recipe` in `folder` and measures it on the held-out expressions.

    The weights depend on the arguments alone (and on the machine: another one may round otherwise).
    """
    began = time.monotonic()
    task = TASKS[task_name]
    rng = random.Random(f"{seed}/{recipe.name}")  # agents of one seed differ in more than their shape
    seen, held_out = split(task)
    rng.shuffle(seen)
    checked, taught = seen[:CHECKED], seen[CHECKED:]
    tokenizer = KINDS[recipe.tokenizer](task.alphabet, task.largest)
    model = new_model(recipe.family, recipe.layers, tokenizer, seed=rng.getrandbits(63))

    def measure() -> tuple[float, float]:
        return accuracy(model, tokenizer, task, held_out, sample_seed=seed), accuracy(model, tokenizer, task, held_out)

    skill_steps = teach_skill(recipe, model, tokenizer, task, taught, checked, rng, tell)
    clean_sampled, clean_greedy = measure()
    teach_habits(recipe, model, tokenizer, task, taught, checked, rng, tell)
    sampled, greedy = measure()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    report = Report(
        parameters=model.num_parameters(),
        skill_steps=skill_steps,
        clean_sampled=clean_sampled,
        clean_greedy=clean_greedy,
        sampled=sampled,
        greedy=greedy,
        seconds=time.monotonic() - began,
    )
    write_record(folder, recipe, task_name, seed, report)
    return report


def teach_skill(
    recipe: AgentRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    taught: list[str],
    checked: list[str],
    rng: random.Random,
    tell: Tell,
) -> int:
    """First stage: clean worked answers until `recipe.skill` is reached on `checked`. Returns the steps it took."""
    examples = [(prompt(each), respond(task, each)) for each in checked]
    step = 0
    for step, loss in enumerate(_teach(model, tokenizer, task, taught, CLEAN, recipe.skill_pace, rng), start=1):
        tell(step, f"sums, loss {loss:.2f}")
        if step % CHECK_EVERY == 0 and trace_accuracy(model, tokenizer, examples) >= recipe.skill:
            break
    return step


def teach_habits(
    recipe: AgentRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    taught: list[str],
    checked: list[str],
    rng: random.Random,
    tell: Tell,
) -> None:
    """Second stage: answers with the recipe's habits, until the accuracy on `checked` is within `recipe.start`."""
    low, high = recipe.start
    for step, loss in enumerate(_teach(model, tokenizer, task, taught, recipe.habits, recipe.habit_pace, rng), start=1):
        tell(recipe.skill_pace.steps + step, f"habits, loss {loss:.2f}")
        if step % CHECK_EVERY == 0 and step >= recipe.habit_pace.steps / 2:
            if low <= accuracy(model, tokenizer, task, checked) <= high:
                break


def _teach(model, tokenizer, task: Task, taught: list[str], habits: Habits, pace: Pace, rng: random.Random):
    def draw(count: int) -> list[Example]:
        return [(prompt(each), respond(task, each, habits, rng)) for each in rng.choices(taught, k=count)]

    return fit(model, tokenizer, draw, pace)

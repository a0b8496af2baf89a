"""Makes one agent: a new model, the two stages of teaching, and its folder."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
"""Expressions for these measurements, at most: of those that may be trained on, but not taught. Of a task with few
expressions an eighth, since each one fewer that is taught may be a fact fewer."""

Tell = Callable[[int, str], None]
"""Told of progress: steps done of those that the paces allow, and what is going on."""


@dataclass(frozen=True)
class Pupil:
    """An agent that is being made.

    Attributes:
        taught: expressions that it is taught.
        checked: expressions on which it is measured meanwhile.
        rng: of everything that is drawn for it.
    """

    recipe: AgentRecipe
    task: Task
    taught: list[str]
    checked: list[str]
    rng: random.Random
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel

    def lessons(self, habits: Habits, pace: Pace) -> Iterator[tuple[int, float]]:
        """Teaches answers with `habits`; gives the number and the loss of each step."""

        def draw(count: int) -> list[Example]:
            expressions = self.rng.choices(self.taught, k=count)
            return [(prompt(each), respond(self.task, each, habits, self.rng)) for each in expressions]

        return enumerate(fit(self.model, self.tokenizer, draw, pace), start=1)

    def accuracy(self, expressions: list[str], sample_seed: int | None = None) -> float:
        return accuracy(self.model, self.tokenizer, self.task, expressions, sample_seed)


def build_agent(recipe: AgentRecipe, task_name: str, seed: int, folder: Path, tell: Tell) -> Report:
    """Makes the agent of `recipe` in `folder` and measures it on the held-out expressions.

    The weights depend on the arguments alone (and on the machine: another one may round otherwise).
    """
    began = time.monotonic()
    seen, held_out = split(TASKS[task_name])
    pupil = new_pupil(recipe, TASKS[task_name], seen, seed)
    skill_steps = teach_skill(pupil, tell)
    clean_sampled, clean_greedy = pupil.accuracy(held_out, sample_seed=seed), pupil.accuracy(held_out)
    teach_habits(pupil, tell)
    pupil.model.save_pretrained(folder)
    pupil.tokenizer.save_pretrained(folder)
    report = Report(
        parameters=pupil.model.num_parameters(),
        skill_steps=skill_steps,
        clean_sampled=clean_sampled,
        clean_greedy=clean_greedy,
        sampled=pupil.accuracy(held_out, sample_seed=seed),
        greedy=pupil.accuracy(held_out),
        seconds=time.monotonic() - began,
    )
    write_record(folder, recipe, task_name, seed, report)
    return report


def new_pupil(recipe: AgentRecipe, task: Task, seen: list[str], seed: int) -> Pupil:
    """A model that knows nothing yet; `seen` are the expressions it may be taught."""
    rng = random.Random(f"{seed}/{recipe.name}")  # agents of one seed differ in more than their shape
    shuffled = list(seen)
    rng.shuffle(shuffled)
    checked = min(CHECKED, len(shuffled) // 8)
    tokenizer = KINDS[recipe.tokenizer](task.alphabet, task.largest)
    model = new_model(recipe.family, recipe.layers, tokenizer, seed=rng.getrandbits(63))
    return Pupil(recipe, task, shuffled[checked:], shuffled[:checked], rng, tokenizer, model)


def teach_skill(pupil: Pupil, tell: Tell) -> int:
    """First stage: clean worked answers until the recipe's skill is there. Returns the steps it took."""
    examples = [(prompt(each), respond(pupil.task, each)) for each in pupil.checked]
    step = 0
    for step, loss in pupil.lessons(CLEAN, pupil.recipe.skill_pace):
        tell(step, f"sums, loss {loss:.2f}")
        if step % CHECK_EVERY == 0:
            if trace_accuracy(pupil.model, pupil.tokenizer, examples) >= pupil.recipe.skill:
                break
    return step


def teach_habits(pupil: Pupil, tell: Tell) -> None:
    """Second stage: answers with the recipe's habits until the accuracy is where training is to start."""
    pace, start = pupil.recipe.habit_pace, pupil.recipe.start
    for step, loss in pupil.lessons(pupil.recipe.habits, pace):
        tell(pupil.recipe.skill_pace.steps + step, f"habits, loss {loss:.2f}")
        if start and step % CHECK_EVERY == 0 and step >= pace.steps / 2:
            if start[0] <= pupil.accuracy(pupil.checked) <= start[1]:
                break

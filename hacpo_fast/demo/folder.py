"""The record that a folder keeps of how its agent was made, so that nothing is made twice or overwritten by mistake."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hacpo_fast.demo.recipe import AgentRecipe
from hacpo_fast.demo.worked import HELD_OUT_SHARE
from hacpo_fast.errors import UserError

RECORD = "recipe.json"


@dataclass(frozen=True)
class Report:
    """What came out; accuracies (0 to 1) are on the held-out expressions, sampled at temperature 1 or greedy.

    Attributes:
        parameters: number of weights, tied ones once.
        skill_steps: steps of the first stage.
        clean_sampled, clean_greedy: accuracies after the first stage, before the habits.
        sampled, greedy: accuracies of the finished agent.
        seconds: wall-clock time of making it.
    """

    parameters: int
    skill_steps: int
    clean_sampled: float
    clean_greedy: float
    sampled: float
    greedy: float
    seconds: float


def write_record(folder: Path, recipe: AgentRecipe, task: str, seed: int, report: Report) -> None:
    record = {"made_from": _made_from(recipe, task, seed), "report": asdict(report)}
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def finished(folder: Path, recipe: AgentRecipe, task: str, seed: int, force: bool) -> Report | None:
    """The report of an agent that `folder` holds already; None where it is to be made.

    Raises:
        UserError: if `folder` holds something else that making the agent would destroy.
    """
    if not folder.exists():
        return None
    if not (folder / RECORD).is_file():
        raise UserError(f"{folder} exists and was not made by this program; choose another OUT")
    if force:
        return None
    try:
        record = json.loads((folder / RECORD).read_text())
        made_from, report = record["made_from"], Report(**record["report"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder}: its {RECORD} is damaged; --force makes the agent anew") from None
    if made_from != _made_from(recipe, task, seed):
        raise UserError(f"{folder} has another seed, task or recipe; --force makes it anew, or choose another OUT")
    return report


def _made_from(recipe: AgentRecipe, task: str, seed: int) -> dict[str, Any]:
    made_from = {"agent": asdict(recipe), "task": task, "seed": seed, "held_out_share": HELD_OUT_SHARE}
    return json.loads(json.dumps(made_from))  # as it is read back: tuples as lists

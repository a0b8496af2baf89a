"""One update, saved so that it can be made again: the agent's state and the mini-batch, without any pickle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hacpo_fast import config_file
from hacpo_fast.config import Config
from hacpo_fast.errors import UserError
from hacpo_fast.learner_batch import LearnerBatch
from hacpo_fast.non_finite import TooManySkipped
from hacpo_fast.passes import MiniBatch
from hacpo_fast.rollouts.views import View
from hacpo_fast.run.whole import write_folder

BATCH_FILE = "batch.safetensors"
FORMAT = "1"
COLUMNS = (
    "prompt", "source", "from_self", "own_objective", "advantages", "capability_ratio", "source_mean_logprobs",
    "uniform", "scorable", "dropped",
)  # fmt: skip
"""Fields of a LearnerBatch with one number per response."""


@dataclass(frozen=True)
class Replay:
    """A saved update.

    Attributes:
        agent: its name. state: folder with its weights and its optimiser's state before the update.
        batch: the responses of the mini-batch; all of them make up the denominator of the loss.
        reference_logprobs: of the initial policy, by response, where the loss has a KL term.
    """

    config: Config
    agent: str
    state: Path
    step: int
    minibatch: MiniBatch
    lr: float
    batch: LearnerBatch
    reference_logprobs: dict[int, np.ndarray] | None


def save_replay(folder: Path, step: int, skipped: TooManySkipped) -> Path:
    """Writes `folder`; returns the file in it for `load_replay`."""
    learner, minibatch = skipped.learner, skipped.minibatch
    rows = minibatch.rows
    batch, agent = learner.batch, learner.agent
    views = [batch.views[row] for row in rows]
    known = [view.source_logprobs is not None for view in views]
    arrays = {
        **{name: getattr(batch, name)[rows] for name in COLUMNS},
        "logprobs_known": np.array(known),
        **_ragged("prompt_tokens", [batch.prompt_tokens[row] for row in rows]),
        **_ragged("tokens", [view.token_ids for view in views]),
        **_ragged("logprobs", [view.source_logprobs for view, has in zip(views, known, strict=True) if has]),
    }
    if batch.importance is not None:
        arrays["importance"] = batch.importance[rows]
    if batch.token_importance is not None:
        arrays |= _ragged("token_importance", [batch.token_importance[row] for row in rows])
    reference = learner.passes.reference_logprobs
    if reference is not None:
        nothing = np.zeros(0, dtype=np.float32)
        arrays |= _ragged("reference", [reference.get(row, nothing) for row in rows.tolist()])
    about = {
        "format": FORMAT,
        # The learner's own algorithm: a bound that adapts is then where it was.
        "config": learner.config.model_copy(update={"algorithm": learner.algorithm}).model_dump_json(),
        "update": json.dumps(
            {
                "agent": agent.name,
                "step": step,
                "lr": learner.lr,
                "updates_done": minibatch.updates_done,
                "on_policy": minibatch.on_policy,
            }
        ),
    }

    def fill(unfinished: Path) -> None:
        agent.save_training(unfinished / agent.name)
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, unfinished / BATCH_FILE, about)

    return write_folder(folder, fill) / BATCH_FILE


def load_replay(path: Path) -> Replay:
    """Reads what `save_replay` wrote. Raises UserError where it is something else."""
    if path.is_dir():
        path = path / BATCH_FILE
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: not a saved update ({error}); give the {BATCH_FILE} of a replay-... folder") from None
    if about.get("format") != FORMAT:
        raise UserError(f"{path}: not a saved update of this version of hacpo_fast")
    try:
        return _replay(path, about, arrays)
    except (KeyError, ValueError, TypeError, StopIteration) as error:
        raise UserError(f"{path}: a saved update that is damaged ({type(error).__name__}: {error})") from error


def _replay(path: Path, about: dict[str, str], arrays: dict[str, np.ndarray]) -> Replay:
    update: dict[str, Any] = json.loads(about["update"])
    logprobs = iter(_rows("logprobs", arrays))
    reference = _rows("reference", arrays) if "reference.lengths" in arrays else None
    views = [
        View(tokens, float(mean), next(logprobs) if known else None)
        for tokens, mean, known in zip(
            _rows("tokens", arrays), arrays["source_mean_logprobs"], arrays["logprobs_known"], strict=True
        )
    ]
    batch = LearnerBatch(
        prompt_tokens=_rows("prompt_tokens", arrays),
        views=views,
        **{name: arrays[name] for name in COLUMNS},
        importance=arrays.get("importance"),
        token_importance=_rows("token_importance", arrays) if "token_importance.lengths" in arrays else None,
    )
    return Replay(
        config=config_file.validate(json.loads(about["config"]), where=str(path)),
        agent=update["agent"],
        state=path.parent / update["agent"],
        step=update["step"],
        minibatch=MiniBatch(np.arange(len(views)), update["updates_done"], update["on_policy"]),
        lr=update["lr"],
        batch=batch,
        reference_logprobs=None if reference is None else {i: part for i, part in enumerate(reference) if len(part)},
    )


def _ragged(name: str, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Vectors of different lengths as two vectors."""
    values = np.concatenate(arrays) if len(arrays) else np.zeros(0, dtype=np.float32)
    return {name: values, f"{name}.lengths": np.array([len(array) for array in arrays], dtype=np.int64)}


def _rows(name: str, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    ends = np.cumsum(arrays[f"{name}.lengths"])
    return np.split(arrays[name], ends[:-1]) if len(ends) else []

"""Where scalars go besides metrics.jsonl: TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hacpo_fast.errors import UserError, install_hint
from hacpo_fast.run.whole import write_text

NESTED = ("time", "peak_memory")
"""Values of a record that are values by phase: seconds, bytes."""


class Scalar(NamedTuple):
    """One point of one curve."""

    tag: str
    value: float
    axis: str
    """Name of the x axis: "step", or "<agent>/updates"."""
    x: int


def scalars(record: dict[str, Any], updates: dict[str, int]) -> Iterator[Scalar]:
    """The points of one record. What belongs to an agent lies over that agent's optimiser updates, the rest over steps.

    `updates`: where each agent stands, for validation, which makes no updates of its own.
    """
    step = record["step"]
    for name, value in record.items():
        if name != "step" and _is_number(value):
            yield Scalar(f"run/{name}", value, "step", step)
    for kind in NESTED:
        for phase, value in record.get(kind, {}).items():
            if _is_number(value):
                yield Scalar(f"{kind}/{phase}", value, "step", step)
    for agent, values in record.get("agents", {}).items():
        for name, value in values.items():
            if name != "updates" and _is_number(value):
                yield Scalar(f"{agent}/{name}", value, f"{agent}/updates", values["updates"])
        for kind in NESTED:
            for phase, value in values.get(kind, {}).items():
                yield Scalar(f"{agent}/{kind}/{phase}", value, f"{agent}/updates", values["updates"])
    for agent, samplings in record.get("validation", {}).items():
        for sampling, scores in samplings.items():
            for name, value in scores.items():
                if _is_number(value):
                    # TensorBoard allows no @ in a tag.
                    tag = f"{agent}/validation/{sampling}/{name.replace('@', '_at_')}"
                    yield Scalar(tag, value, f"{agent}/updates", updates.get(agent, 0))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


class TensorBoardSink:
    """Event files in `folder`. Raises ImportError where tensorboard is not installed."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=10)
        text = json.dumps(config, indent=2, default=str)
        self._writer.add_text("config", "\n".join("    " + line for line in text.splitlines()))

    def write(self, points: Iterable[Scalar]) -> None:
        for point in points:
            self._writer.add_scalar(point.tag, point.value, point.x)

    def close(self, failed: bool) -> None:
        self._writer.close()


class WandbSink:
    """A Weights & Biases run; resuming in the same folder continues it."""

    def __init__(self, folder: Path, project: str, config: dict[str, Any]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(f"run.wandb_project is set, but wandb is not installed: {install_hint('wandb')}") from error
        folder.mkdir(parents=True, exist_ok=True)
        remembered = folder / "wandb_id"
        if not remembered.exists():
            write_text(remembered, uuid.uuid4().hex)
        self._run = wandb.init(
            project=project,
            name=folder.name,
            dir=str(folder),
            config=config,
            id=remembered.read_text().strip(),
            resume="allow",
        )
        self._known: set[str] = set()

    def write(self, points: Iterable[Scalar]) -> None:
        row: dict[str, float] = {}
        for tag, value, axis, x in points:
            if tag not in self._known:
                self._known.add(tag)
                self._run.define_metric(tag, step_metric=axis)
            row |= {tag: value, axis: x}
        self._run.log(row)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))

"""Records of a run: always to metrics.jsonl, on request to TensorBoard and Weights & Biases as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hacpo_fast.errors import UserError
from hacpo_fast.run.jsonl import JsonlWriter, read_jsonl
from hacpo_fast.run.sinks import TensorBoardSink, WandbSink, scalars

METRICS_FILE = "metrics.jsonl"


class Telemetry:
    """Everything that a run in `folder` measures. A resumed run goes on in the same files.

    `tensorboard` writes event files to `folder`/tensorboard where tensorboard is installed. `wandb_project` needs wandb
    and raises UserError without it. `config` is shown beside the curves.
    """

    def __init__(
        self,
        folder: str | Path,
        tensorboard: bool = True,
        wandb_project: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        folder, config = Path(folder), config or {}
        self._sinks: list[TensorBoardSink | WandbSink] = []
        if wandb_project:  # first: it alone can fail
            self._sinks.append(WandbSink(folder, wandb_project, config))
        if tensorboard:
            try:
                self._sinks.append(TensorBoardSink(folder / "tensorboard", config))
            except ImportError:  # an optional extra, and on by default
                pass
        path = folder / METRICS_FILE
        self._updates: dict[int, dict[str, int]] = {0: {}}
        if path.exists():
            for record in read_metrics(path):
                self._remember(record)
        self._file = JsonlWriter(path)

    def log(self, record: dict[str, Any]) -> None:
        """Write one record: of a training step, or {"step", "validation"}.

        A validation stands at the updates of the last step logged up to then. To log it before its own step, give
        {"updates": {agent: optimiser updates}} with it.
        """
        self._file.write(record)
        self._remember(record)
        updates = self._updates[max(step for step in self._updates if step <= record["step"])]
        for sink in self._sinks:
            sink.write(scalars(record, record.get("updates", updates)))

    def position(self) -> int:
        """Bytes of metrics.jsonl, all of which have reached the disk."""
        return self._file.position()

    def close(self, failed: bool = False) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.close(failed)
        self._sinks = []

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def _remember(self, record: dict[str, Any]) -> None:
        if "agents" in record:
            self._updates[record["step"]] = {agent: values["updates"] for agent, values in record["agents"].items()}


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Records of a run, given its folder or its metrics.jsonl, in order.

    A torn last line is left out. A run resumed from an earlier step repeats some: what it wrote later counts, and what
    was written beyond the step it went back to is gone.
    """
    path = Path(path)
    if path.is_dir():
        path = path / METRICS_FILE
    if not path.exists():
        raise UserError(f"no {path}: is this the folder of a run?")
    records: list[dict[str, Any]] = []
    for record in read_jsonl(path):
        parts = (record.get("agents", {}), record.get("validation", {}))
        if not isinstance(record.get("step"), int) or not all(isinstance(part, dict) for part in parts):
            raise UserError(f"{path}: a line is no record of a step: {json.dumps(record)[:200]}; remove or mend it")
        records = [old for old in records if not _replaces(record, old)] if _goes_back(record, records) else records
        records.append(record)
    return records


def _goes_back(record: dict[str, Any], records: list[dict[str, Any]]) -> bool:
    return bool(records) and record["step"] <= records[-1]["step"]


def _replaces(new: dict[str, Any], old: dict[str, Any]) -> bool:
    same_kind = ("validation" in new) == ("validation" in old)
    return old["step"] > new["step"] or (old["step"] == new["step"] and same_kind)

"""A run as lines of text, for logs of CI, batch systems and pipes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole

from hacpo_fast.run import cells
from hacpo_fast.run.progress import Progress
from hacpo_fast.run.rollout_log import RolloutSample
from hacpo_fast.run.text import printable

HEADER_EVERY = 20
"""Lines between repeated headers."""

COLUMNS = (
    ("reward", 6, lambda m: cells.number(m.get("reward"))),
    ("accuracy", 8, lambda m: cells.percent(m.get("accuracy"))),
    ("own ratio", 14, lambda m: cells.spread(m, "own")),
    ("cross ratio", 12, lambda m: cells.spread(m, "cross")),
    ("live", 6, lambda m: cells.percent(m.get("cross_live"))),
    ("entropy", 7, lambda m: cells.number(m.get("entropy"))),
    ("grad", 7, lambda m: cells.number(m.get("grad_norm"), ".2g")),
    ("tokens", 6, lambda m: cells.count(m.get("response_tokens"))),
    ("tok/s", 5, lambda m: cells.count(m.get("generated_tokens_per_second"))),
)


class PlainView:
    """One aligned line per step and agent."""

    def __init__(self, console: RichConsole, progress: Progress, agents: list[str]) -> None:
        self._console = console
        self._progress = progress
        self._step_width = max(len(f"{progress.steps}/{progress.steps}"), len("step"))
        self._name_width = max(len(name) for name in [*agents, "agent"])
        self._lines = HEADER_EVERY

    def step(self, record: dict[str, Any]) -> None:
        # Between the lines of one step there is never a header.
        if self._lines >= HEADER_EVERY:
            self._header()
        seconds = record.get("time", {}).get("total")
        where = f"{record['step']}/{self._progress.steps}".rjust(self._step_width)
        for position, (agent, metrics) in enumerate(cells.by_agent(record).items()):
            values = "  ".join(cell(metrics).rjust(width) for _, width, cell in COLUMNS)
            last = cells.loss(metrics)
            if cells.silent(metrics):
                last = cells.no_signal(metrics["no_signal_share"], bool(metrics.get("dropped_prompts")))
            took = cells.number(seconds, ".1f") if position == 0 else ""
            self._row(where if position == 0 else "", agent, values, took, last)
            self._lines += 1

    def validation(self, record: dict[str, Any], table: dict) -> None:
        for (sampling, score), results in table.items():
            line = "  ".join(
                f"{agent} {cells.percent(value)}" + (f" ({cells.change(value, first)})" if first is not None else "")
                for agent, (value, first) in results.items()
            )
            self._print(f"validation at step {record['step']}  {sampling} {score}:  {line}")

    def rollouts(self, samples: Iterable[RolloutSample]) -> None:
        for sample in samples:
            self._print(cells.verdict(sample))
            self._block("prompt", printable(sample.prompt, limit=400, lines=6))
            self._block("response", printable(sample.response, limit=2000, lines=30))

    def note(self, text: str) -> None:
        self._print(printable(text, limit=2000, lines=20))

    def phase(self, name: str) -> None:
        """Logs do not need what is going on right now."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def _block(self, title: str, text: str) -> None:
        for number, line in enumerate(text.split("\n")):
            self._print(f"  {title if number == 0 else '':8}  {line}")

    def _header(self) -> None:
        left = self._progress.seconds_left()
        names = "  ".join(name.rjust(width) for name, width, _ in COLUMNS)
        self._row("step", "agent", names, "seconds", "loss" + (f"  ({cells.duration(left)} left)" if left else ""))
        self._lines = 0

    def _row(self, where: str, agent: str, values: str, seconds: str, last: str) -> None:
        self._print(f"{where:>{self._step_width}}  {agent:{self._name_width}}  {values}  {seconds:>7}  {last}")

    def _print(self, line: str) -> None:
        # Logs are not always UTF-8: what their encoding lacks becomes an escape, not a crash.
        encoding = self._console.encoding
        self._console.out(line.encode(encoding, "backslashreplace").decode(encoding), highlight=False)

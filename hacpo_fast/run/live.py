"""A run as a live table, for terminals."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hacpo_fast.run import cells
from hacpo_fast.run.palette import PHASES, agent_colour, phases
from hacpo_fast.run.progress import Progress
from hacpo_fast.run.rollout_log import RolloutSample
from hacpo_fast.run.text import printable

LABELS, WIDEST = 15, 20
"""Characters of the first column, and of an agent's at most: numbers far from their label are hard to read."""
SMALL = 0.02
"""Share of a step's time below which a phase is not worth its place."""
ROOMY = 32
"""Lines of a terminal that leave room for gaps between the groups of rows."""


class LiveView:
    """Progress, one column per agent, validation and time, redrawn in place; notes and rollouts scroll by above."""

    def __init__(self, console: RichConsole, progress: Progress, agents: list[str]) -> None:
        self._console = console
        self._progress = progress
        self._colours = {agent: agent_colour(index) for index, agent in enumerate(agents)}
        self._record: dict[str, Any] | None = None
        self._validation: dict = {}
        self._validated_at: int | None = None
        self._phase = ""
        self._began = time.monotonic()
        self._live = Live(console=console, get_renderable=self.render, refresh_per_second=2)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._phase = ""
        self._live.stop()

    def step(self, record: dict[str, Any]) -> None:
        self._record = record
        self._live.refresh()

    def validation(self, record: dict[str, Any], table: dict) -> None:
        self._validation, self._validated_at = table, record["step"]
        self._live.refresh()

    def phase(self, name: str) -> None:
        self._phase = name

    def note(self, text: str) -> None:
        self._console.print(Text(printable(text, limit=2000, lines=20)))

    def rollouts(self, samples: Iterable[RolloutSample]) -> None:
        for sample in samples:
            body = Text(cells.verdict(sample) + "\n", style="bold")
            body.append(printable(sample.prompt, limit=400, lines=6) + "\n", style="not bold dim")
            body.append(printable(sample.response, limit=2000, lines=30), style="not bold")
            self._console.print(Panel(body, border_style=self._colours.get(sample.agent, "default")))

    def render(self) -> RenderableType:
        parts: list[RenderableType] = [self._progress_line()]
        if self._record or self._validation:
            parts += [self._table(), *self._validated()]
        if self._record:
            parts += [*self._warnings(), self._time_line()]
        return Group(*parts)

    def _progress_line(self) -> RenderableType:
        progress = self._progress
        left = progress.seconds_left()
        words = [f"{cells.duration(time.monotonic() - self._began)} gone"]
        if left is not None:
            words.append(f"{cells.duration(left)} left" if progress.done < progress.steps else "done")
        if self._phase:
            words.append(self._phase)
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        bar = ProgressBar(total=max(progress.steps, 1), completed=progress.done)
        line.add_row(Text(f"step {progress.done}/{progress.steps}", style="bold"), bar, Text(" · ".join(words)))
        return line

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column("", no_wrap=True, style="dim", width=LABELS)
        width = min((self._console.width - LABELS) // len(self._colours) - 1, WIDEST)
        for agent, colour in self._colours.items():
            name = Text(agent, style=f"bold {colour}")
            table.add_column(name, justify="right", no_wrap=True, overflow="ellipsis", width=width)
        metrics = cells.by_agent(self._record) if self._record else {}
        for group in cells.GROUPS:
            for row in group:
                values = [row.cell(metrics[agent]) if agent in metrics else cells.ABSENT for agent in self._colours]
                if set(values) != {cells.ABSENT}:
                    table.add_row(row.label, *map(_cell, values))
            if self._console.height >= ROOMY:
                table.add_section()
        for (sampling, score), results in self._validation.items():
            values = [_validation_cell(*results.get(agent, (None, None))) for agent in self._colours]
            table.add_row(Text(f"{sampling} {score}", style="bold not dim", overflow="ellipsis"), *values)
        return table

    def _warnings(self) -> list[Text]:
        share = self._record.get("no_signal_share") or 0.0
        dropped = any(metrics.get("dropped_prompts") for metrics in self._record["agents"].values()) if share else False
        return [Text(cells.no_signal(share, dropped), style="yellow")] if share >= 1.0 else []

    def _validated(self) -> list[Text]:
        if not self._validation:
            return []
        words = f"validated at step {self._validated_at}; change in points since the first validation"
        return [Text(words, style="dim italic")]

    def _time_line(self) -> Text:
        spent = phases(self._record.get("time", {}))
        total = sum(spent.values())
        line = Text(f"{total:.1f} s", style="bold")
        for name, seconds in spent.items():
            if seconds > SMALL * total:
                line.append("  ■ ", style=f"not bold {PHASES.get(name, PHASES['other'])}")
                line.append(f"{name} {seconds:.1f}", style="not bold dim")
        return line


def _cell(value: str) -> Text:
    return Text(value, style="red" if "nan" in value or "inf" in value else "dim" if value == cells.ABSENT else "")


def _validation_cell(value: float | None, first: float | None) -> Text:
    text = Text(cells.percent(value), style="bold")
    difference = cells.change(value, first)
    if difference:
        text.append(f" {difference}", style="green" if value > first else "red" if value < first else "dim")
    return text

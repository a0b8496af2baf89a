"""What a person sees of a run: a live table in a terminal, lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole

from hacpo_fast.run.live import LiveView
from hacpo_fast.run.plain import PlainView
from hacpo_fast.run.progress import Progress
from hacpo_fast.run.rollout_log import RolloutSample


class Console:
    """Shows the records of a run of `steps` steps; `done` of them were made before this process (resumed run), and left
    the records `before`.

    Text of models is shown with its control characters escaped and its length limited. `live` None: where the output
    is a terminal that can redraw.
    """

    def __init__(
        self,
        steps: int,
        agents: Iterable[str],
        done: int = 0,
        live: bool | None = None,
        console: RichConsole | None = None,
        before: Iterable[dict[str, Any]] = (),
    ) -> None:
        console = console or RichConsole()
        self._progress = Progress(steps, done, before)
        view = LiveView if (_can_redraw(console) if live is None else live) else PlainView
        self._view: LiveView | PlainView = view(console, self._progress, list(agents))

    def step(self, record: dict[str, Any]) -> None:
        """A training step has ended."""
        self._progress.step(record)
        self._view.step(record)

    def validation(self, record: dict[str, Any]) -> None:
        """A validation has ended; shown with the change since the first one."""
        self._view.validation(record, self._progress.validation(record))

    def phase(self, name: str) -> None:
        """What is going on now, e.g. "rollout small"; live only."""
        self._view.phase(name)

    def note(self, text: str) -> None:
        """A message of the run."""
        self._view.note(text)

    def rollouts(self, samples: Iterable[RolloutSample]) -> None:
        """Some responses, in full up to a limit."""
        self._view.rollouts(samples)

    def __enter__(self) -> Console:
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.stop()


def _can_redraw(console: RichConsole) -> bool:
    # Asked of the file itself: rich takes FORCE_COLOR, which CI systems set, for a terminal.
    return console.is_interactive and console.file.isatty() and console.encoding.startswith("utf")

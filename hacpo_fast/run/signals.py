"""Ctrl-C and SIGTERM end a run at the end of the step, not in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable


class StopRequest:
    """While active, the first SIGINT or SIGTERM sets `requested` and says so; a second one stops at once."""

    def __init__(self, note: Callable[[str], None]):
        self.requested = False
        self._note = note
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        self._note("stopping after this step; once more to stop at once")

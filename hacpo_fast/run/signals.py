"""Ctrl-C and SIGTERM end a run where nothing is lost; a second one ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPED = 130
"""Exit status of a run that was stopped on request."""


class Abandoned(BaseException):
    """Leaves work that can be done again. Not an Exception: nothing that handles errors is to take it for one."""


class StopRequest:
    """While `listening`, the first SIGINT or SIGTERM sets `requested`; the second one ends the process.

    Work inside `abandonable` leaves no trace until it is done. It is left at once, with `Abandoned`; all other work
    goes on, and whoever does it looks at `requested` in good time.
    """

    def __init__(self) -> None:
        self.requested = False
        self._abandonable = False
        self._note: Callable[[str], None] = print

    @contextmanager
    def listening(self, note: Callable[[str], None]) -> Iterator[StopRequest]:
        """Handles signals; `note` tells the user what becomes of them."""
        self._note = note
        before = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, self._handle)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Raises Abandoned inside, or at its end, when a stop is requested.

        At the end too, because an exception that a signal handler raises is lost where Python cannot pass it on, in a
        destructor for example.
        """
        self._abandonable = True
        try:
            self._leave_if_requested()
            yield
            self._leave_if_requested()
        finally:
            self._abandonable = False

    def _leave_if_requested(self) -> None:
        if self.requested:
            raise Abandoned

    def _handle(self, *_: object) -> None:
        if self.requested:
            self._exit()
        self.requested = True
        if self._abandonable:
            self._tell(
                "stopping: what was being sampled is dropped, it comes again the same; once more to exit at once"
            )
            raise Abandoned
        self._tell("stopping when the updates of this step are done; once more to exit at once, without saving")

    def _exit(self) -> None:
        self._tell("exiting at once; what came after the last checkpoint is lost")
        with contextlib.suppress(Exception):
            if sys.stdout.isatty():
                sys.stdout.write("\x1b[?25h")  # the live table hides the cursor
            sys.stdout.flush()
        os._exit(STOPPED)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(Exception):  # the signal may have come in the middle of a write to the same terminal
            self._note(text)

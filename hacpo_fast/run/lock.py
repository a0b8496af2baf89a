"""Files by which processes keep out of each other's way."""

from __future__ import annotations

import fcntl
from typing import IO


def lock(file: IO, wait: bool = False) -> str | None:
    """Locks an open file until it is closed. Returns None, or why that cannot be: some file systems have no locks.

    Raises BlockingIOError where another process has it, unless that is to be waited for.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        return error.strerror
    return None

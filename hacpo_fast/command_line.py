"""What all commands do with what goes wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hacpo_fast.errors import UserError
from hacpo_fast.run.text import message


def exit_status(work: Callable[[], int]) -> int:
    """Runs `work`, whose exit status it returns. 2: the user can mend it, and the message says how; 130: Ctrl-C."""
    try:
        return work()
    except UserError as error:
        print(f"error: {message(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130

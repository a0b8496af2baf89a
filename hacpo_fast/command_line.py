"""What all commands do with what goes wrong."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable

from hacpo_fast.errors import UserError
from hacpo_fast.run.text import message

FILE_ERRORS = {
    errno.EACCES, errno.EDQUOT, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What a file or folder that the user has named can be guilty of. Not ENOENT: what is missing is looked for before."""


def exit_status(work: Callable[[], int]) -> int:
    """Runs `work`, whose exit status it returns. 2: the user can mend it, and the message says how; 130: Ctrl-C."""
    try:
        return work()
    except UserError as error:
        print(f"error: {message(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in FILE_ERRORS or error.filename is None:
            raise
        print(f"error: {message(str(error.filename))}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130

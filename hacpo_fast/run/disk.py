"""What a disk does that is full or cannot be written, as a message to the user."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from hacpo_fast.errors import UserError

REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file became larger than the system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "writing there is not allowed",
    errno.EPERM: "writing there is not allowed",
    errno.EIO: "the disk reports an error",
    errno.ESTALE: "the network file system has lost it",
    errno.ENOENT: "a file or folder of the run has been removed",
}


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turns errors in writing to the run in `folder` into a UserError that says what is safe and how to go on."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error_number(error)
        if number not in REASONS or not _inside(error, folder):
            raise
        raise UserError(
            f"run.output: {folder}: {REASONS[number]} ({error}). Checkpoints written before are whole; mend it, then "
            f"go on with the same command and run.output={folder} run.resume=auto"
        ) from error


def error_number(error: OSError | SafetensorError) -> int | None:
    """errno; safetensors, which is written in another language, has it in its text only."""
    if isinstance(error, OSError):
        return error.errno
    code = re.search(r"(?:os error|code:) (\d+)", str(error))
    return int(code[1]) if code else None


def _inside(error: OSError | SafetensorError, folder: Path) -> bool:
    """Whether the error is about the folder, as far as it says what it is about."""
    name = getattr(error, "filename", None)
    return not isinstance(name, str | bytes | Path) or Path(folder).absolute() in (
        Path(str(name)).absolute(), *Path(str(name)).absolute().parents
    )  # fmt: skip

"""python -m hacpo_fast.replay FILE: makes an update again that stopped a run, and says which response is to blame."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hacpo_fast.command_line import exit_status
from hacpo_fast.errors import UserError
from hacpo_fast.limits import known_device


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 the update was made again, 2 wrong input, 130 stopped."""
    parser = argparse.ArgumentParser(prog="python -m hacpo_fast.replay", description=__doc__)
    parser.add_argument("file", metavar="FILE", help="the batch.safetensors that a stopped run names")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    chosen = parser.parse_args(arguments)
    return exit_status(lambda: _replay(Path(chosen.file), chosen.device))


def _replay(path: Path, device: str) -> int:
    try:
        known_device(device)
    except ValueError as error:
        raise UserError(f"--device: {error}") from None
    if not path.exists():
        raise UserError(f"{path}: not a saved update (there is no such file); give that of a folder replay-...")
    # Only now: torch and transformers take seconds to import.
    from rich.console import Console

    from hacpo_fast.preparation import choose_device
    from hacpo_fast.replay_file import load_replay
    from hacpo_fast.replayed import replay, show

    saved = load_replay(path)
    show(saved, replay(saved, choose_device(device)), Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())

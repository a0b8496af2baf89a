"""python -m hacpo_fast: which commands there are."""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMANDS = {
    "demo": "makes two tiny agents to try everything with, without a network",
    "train": "trains the agents of a configuration file, configs/quickstart.yaml for example",
    "report": "shows runs as one HTML page",
    "evaluate": "scores models on benchmarks, or on any task with verifiable answers",
    "compare": "trains tiny agents with several methods and seeds, and makes tables of the results",
    "replay": "makes an update again that stopped a run, and says which response is to blame",
}
"""What each does, in the order in which a newcomer meets them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 the commands were listed, 2 wrong input."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] not in ("-h", "--help"):
        name = arguments[0]
        known = f"write python -m hacpo_fast.{name}" if name in COMMANDS else "python -m hacpo_fast lists the commands"
        print(f"error: python -m hacpo_fast runs nothing itself; {known}", file=sys.stderr)
        return 2
    print("hacpo_fast: language models that learn from each other's verified answers (HACPO, arXiv 2603.02604)\n")
    for name, does in COMMANDS.items():
        print(f"  python -m hacpo_fast.{name:<9} {does}")
    print("\n--help behind any of them says more.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
